"""Which reader takes a file of others, told from its first line and its keys."""

from __future__ import annotations

from quantscope.evidence.external import ExternalEvidence, Kind
from quantscope.evidence.kernel_log import read_kernel_log
from quantscope.evidence.lm_eval import read_lm_eval
from quantscope.evidence.serving import Slo, read_serving


def sniff(data: bytes) -> Kind:
    """The kind that a file looks like; what looks like nothing known is a log."""
    start = data.lstrip(b" \t\r\n")
    first_line = start.partition(b"\n")[0]
    if first_line.startswith(b"{") and b'"request_start_s"' in first_line:
        return "serving_records"
    names = (b'"versions"', b'"n-samples"', b'"n-shot"', b'"config"')
    if start.startswith(b"{") and b'"results"' in data and any(name in data for name in names):
        return "lm_eval_results"
    return "kernel_log"


def read_external(
    data: bytes, name: str, *, kind: Kind | None = None, slo: Slo | None = None
) -> ExternalEvidence:
    """Reads a file of others; never raises for what it holds.

    Args:
        data: the file's bytes.
        name: the file's name, as the entry shows it.
        kind: what the file is; told from its content where None.
        slo: limits for serving records, fixed beforehand.
    """
    chosen = sniff(data) if kind is None else kind
    if chosen == "serving_records":
        return read_serving(data, name, slo=slo)
    if chosen == "lm_eval_results":
        return read_lm_eval(data, name)
    return read_kernel_log(data, name)
