"""Questions to a report: which entry a finding is about, which names it covers, what it ran."""

from __future__ import annotations

from collections.abc import Iterator

from quantscope.report.names import expand_names
from quantscope.report.schema import FieldEntry, FindingEntry, Report, TensorEntry


def members_of(finding: FindingEntry) -> Iterator[str]:
    """Every name that a finding is folded over."""
    return expand_names(finding.members, finding.members_form)


def names_of(entry: TensorEntry) -> Iterator[str]:
    """Every tensor of a folded entry."""
    return expand_names(entry.names, entry.names_form)


def tensor_of(finding: FindingEntry) -> str | None:
    """The tensor that a finding is about, or its first member."""
    return finding.subject.tensor or next(members_of(finding), None)


def entry_of(finding: FindingEntry, report: Report) -> TensorEntry | None:
    """The folded entry that holds the finding's tensor."""
    name = tensor_of(finding)
    if name is None:
        return None
    for entry in report.tensors:
        if entry.input == finding.input and name in names_of(entry):
            return entry
    return None


def value_in_force(field: FieldEntry) -> object:
    """What the bytes say of a field where they speak, else the first declared value, else None."""
    inferred = field.inferred
    if inferred is not None and (inferred.strength != "convention" or not field.declared):
        return inferred.value
    return field.declared[0].value if field.declared else None


def example_words(finding: FindingEntry) -> str:
    """One weight from its code to both values; empty without an example."""
    example = finding.example
    if example is None:
        return ""
    zero = f", stored zero {example.stored_zero}" if example.stored_zero is not None else ""
    scale = f", scale {number_words(example.scale)}" if example.scale is not None else ""
    return (
        f"out {example.row}, in {example.col}: code {example.code}{zero}{scale}; as declared "
        f"{number_words(example.as_declared)}, as inferred {number_words(example.as_inferred)} "
        f"(byte 0x{example.byte_offset:X} of {example.file})"
    )


def number_words(value: object) -> str:
    """A number of a report in at most six digits; a folded one as its extremes."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict) and set(value) == {"min", "max"}:
        return f"{number_words(value['min'])} .. {number_words(value['max'])}"
    return str(value)
