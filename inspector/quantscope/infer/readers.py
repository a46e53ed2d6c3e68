"""What known runtimes do with a doubtful field: a dated table, and the words that follow from it.

Each row was read from the runtime's own source at the version named. A runtime that is not listed was
not looked at; nothing is assumed of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from quantscope.model import Claim, Json

TABLE_DATE = "2026-08"
"""Month of the snapshots behind the table."""

Action = Literal["uses", "ignores", "refuses"]


class ReadingContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime can see of a tensor when it decides how to read it."""

    family: str
    bit_width: int
    symmetric: bool | None = None
    """The declared symmetry; None where nothing is declared."""
    has_group_index: bool = False
    checkpoint_format: str | None = None
    """The value written under `checkpoint_format`."""
    format: str | None = None
    """The value written under `format`."""


class Stance(msgspec.Struct, frozen=True, kw_only=True):
    """What one runtime does with a field in a context.

    `value` is the contract value it decodes with (None where it ignores the plane or refuses the file).
    """

    reader: str
    version: str
    action: Action
    value: Json = None
    words: str = ""
    source: str = ""


class ReaderRow(msgspec.Struct, frozen=True, kw_only=True):
    """One runtime's rule for one field of some families."""

    reader: str
    version: str
    source: str
    field: str
    families: tuple[str, ...]
    decide: Callable[[ReadingContext], tuple[Action, Json, str]]


def _follows_both_keys(context: ReadingContext) -> tuple[Action, Json, str]:
    written = context.checkpoint_format or context.format or "gptq"
    value = "minus_one" if written == "gptq" else "as_is"
    return "uses", value, f"from the declared format ({written})"


def _follows_checkpoint_format(context: ReadingContext) -> tuple[Action, Json, str]:
    written = context.checkpoint_format or "gptq"
    return "uses", "as_is" if written == "gptq_v2" else "minus_one", "reads checkpoint_format only"


def _exllamav2(context: ReadingContext) -> tuple[Action, Json, str]:
    if context.bit_width != 4:
        return "refuses", None, "reads 4-bit GPTQ only"
    return _follows_checkpoint_format(context)


def _vllm(context: ReadingContext) -> tuple[Action, Json, str]:
    if context.bit_width not in (4, 8):
        return "refuses", None, "reads 4- and 8-bit GPTQ only"
    if context.symmetric is not True:
        return "refuses", None, "takes sym=true only"
    return "ignores", None, "assumes the middle code and never looks at qzeros"


def _always_minus_one(context: ReadingContext) -> tuple[Action, Json, str]:
    return "uses", "minus_one", "always adds one"


def _llama_cpp(context: ReadingContext) -> tuple[Action, Json, str]:
    if context.bit_width not in (2, 4, 8):
        return "refuses", None, "converts 2-, 4- and 8-bit GPTQ only"
    if not context.has_group_index:
        return "refuses", None, "needs g_idx"
    return _follows_checkpoint_format(context)


def _mlx_lm(context: ReadingContext) -> tuple[Action, Json, str]:
    if context.has_group_index:
        return "refuses", None, "refuses files with g_idx"
    return "uses", "as_is", "unpacks GPTQ as if it were AWQ"


def _as_is(context: ReadingContext) -> tuple[Action, Json, str]:
    return "uses", "as_is", "zeros as stored"


def _as_is_4bit(context: ReadingContext) -> tuple[Action, Json, str]:
    if context.bit_width != 4:
        return "refuses", None, "reads 4-bit AWQ only"
    return "uses", "as_is", "zeros as stored"


def _refuses_awq(context: ReadingContext) -> tuple[Action, Json, str]:
    return "refuses", None, "does not convert AWQ"


_GPTQ = ("gptq",)
_AWQ = ("awq", "awq_gemm", "awq_gemv", "awq_gemv_fast")

READERS: tuple[ReaderRow, ...] = (
    ReaderRow(
        reader="gptqmodel",
        version="7.7",
        source="gptqmodel/quantization/config.py, gptqmodel/utils/model.py",
        field="zero_convention",
        families=_GPTQ,
        decide=_follows_both_keys,
    ),
    ReaderRow(
        reader="transformers",
        version="5.24",
        source="utils/quantization_config.py (hands the file to gptqmodel)",
        field="zero_convention",
        families=_GPTQ,
        decide=_follows_both_keys,
    ),
    ReaderRow(
        reader="exllamav2",
        version="2025-12",
        source="exllamav2/config.py, exllamav2/ext.py",
        field="zero_convention",
        families=_GPTQ,
        decide=_exllamav2,
    ),
    ReaderRow(
        reader="llama.cpp convert",
        version="0c1e570",
        source="conversion/base.py",
        field="zero_convention",
        families=_GPTQ,
        decide=_llama_cpp,
    ),
    ReaderRow(
        reader="auto-gptq",
        version="0.7.1",
        source="auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py",
        field="zero_convention",
        families=_GPTQ,
        decide=_always_minus_one,
    ),
    ReaderRow(
        reader="vLLM",
        version="0.33",
        source="quantization/auto_gptq.py, kernels/linear/mixed_precision/exllama.py",
        field="zero_convention",
        families=_GPTQ,
        decide=_vllm,
    ),
    ReaderRow(
        reader="mlx-lm",
        version="2026-08",
        source="mlx_lm/utils.py",
        field="zero_convention",
        families=_GPTQ,
        decide=_mlx_lm,
    ),
    ReaderRow(
        reader="autoawq",
        version="0.2.9",
        source="awq/modules/linear/gemm.py",
        field="zero_convention",
        families=_AWQ,
        decide=_as_is,
    ),
    ReaderRow(
        reader="vLLM",
        version="0.33",
        source="quantization/auto_awq.py",
        field="zero_convention",
        families=_AWQ,
        decide=_as_is_4bit,
    ),
    ReaderRow(
        reader="llama.cpp convert",
        version="0c1e570",
        source="conversion/base.py",
        field="zero_convention",
        families=_AWQ,
        decide=_refuses_awq,
    ),
)
"""Rows by runtime; the field and families say where each applies."""


def stances(field: str, context: ReadingContext) -> list[Stance]:
    """What every known runtime does with a field of such a tensor."""
    found = []
    for row in READERS:
        if row.field == field and context.family in row.families:
            action, value, words = row.decide(context)
            found.append(
                Stance(
                    reader=row.reader,
                    version=row.version,
                    action=action,
                    value=value,
                    words=words,
                    source=row.source,
                )
            )
    return found


def context_of(
    family: str, bit_width: int, claims: Sequence[Claim], has_group_index: bool
) -> ReadingContext:
    """The context that a tensor's declared claims give."""

    def written(key: str) -> str | None:
        for claim in claims:
            if claim.source.pointer.endswith("/" + key) and isinstance(claim.written, str):
                return claim.written
        return None

    symmetric = next((c.value for c in claims if c.field == "symmetric"), None)
    return ReadingContext(
        family=family,
        bit_width=bit_width,
        symmetric=symmetric if isinstance(symmetric, bool) else None,
        has_group_index=has_group_index,
        checkpoint_format=written("checkpoint_format"),
        format=written("format"),
    )


def readers_wrong(found: Sequence[Stance], right: Json) -> list[Stance]:
    """Runtimes that decode with another value than the right one."""
    return [s for s in found if s.action == "uses" and s.value != right]


def readers_right(found: Sequence[Stance], right: Json) -> list[Stance]:
    """Runtimes that decode with the right value."""
    return [s for s in found if s.action == "uses" and s.value == right]


def readers_text(found: Sequence[Stance]) -> str:
    """`gptqmodel 7.7, transformers 5.24` for a line on screen."""
    return ", ".join(f"{s.reader} {s.version}" for s in found)


def file_or_loader(declared: Sequence[Json], inferred: Json, found: Sequence[Stance]) -> str:
    """Answer in words whether the file or the loader is at fault.

    Args:
        declared: distinct declared values of the field.
        inferred: the value the bytes speak for, or None.
        found: stances of the known runtimes.
    """
    if inferred is None:
        return "undecided: the bytes do not tell the readings apart"
    wrong = readers_text(readers_wrong(found, inferred))
    if declared and any(value != inferred for value in declared):
        return "the file: its declaration contradicts its bytes" + (
            f"; {wrong} follow the declaration" if wrong else ""
        )
    if not declared:
        if not wrong:
            return "neither: nothing is declared, and every known reader takes the right reading"
        return f"both: the file declares nothing, and {wrong} guess wrong"
    if wrong:
        return f"the loader: the file says what it means, {wrong} read it otherwise"
    return "neither: declaration, bytes and known readers agree"
