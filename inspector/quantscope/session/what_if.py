"""A tensor's reading with fields changed as a person asks: what the bytes would mean under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from quantscope.closest import closest, closest_hint
from quantscope.errors import ReadingError
from quantscope.model import CONTRACT_FIELDS, Reading
from quantscope.session.inspection import TensorState

ZERO_READINGS = ("as_is", "minus_one", "minus_one_unwrapped", "minus_one_word_add")


def reading_in_force(state: TensorState) -> Reading:
    """The tensor's reading.

    Raises:
        ReadingError: no reading was found at all.
    """
    if state.reading is None:
        raise ReadingError(
            f"{state.tensor.name} has no reading: {state.undecodable or 'its planes fit none'}",
            source=state.tensor.name,
        )
    return state.reading


def chosen_reading(state: TensorState, wanted: dict[str, str]) -> Reading:
    """The reading in force with fields changed as a person asks.

    Args:
        state: the tensor.
        wanted: contract field -> a value, or one part of a structured value (`packing=awq`, `group=64`).

    Raises:
        ReadingError: no candidate reading has these values; the hint lists the values there are.
    """
    check_fields(wanted)
    reading = reading_in_force(state)
    fields = dict(wanted)
    convention = fields.pop("zero_convention", None)
    if fields:
        reading = _candidate(state, reading, fields)
    if convention is None:
        return reading
    if reading.zero != "integer":
        raise ReadingError(
            f"{state.tensor.name} has no reading zero_convention={convention}",
            hint="it stores no integer zeros",
            source=state.tensor.name,
        )
    return msgspec.structs.replace(reading, zero_convention=convention)


def _candidate(state: TensorState, base: Reading, fields: dict[str, str]) -> Reading:
    pool = [base, *state.solved.solutions, *state.solved.candidates]
    kept = [r for r in pool if all(_fits(r.contract_values(), k, v) for k, v in fields.items())]
    if kept:
        values = base.contract_values()
        return max(
            kept, key=lambda r: sum(r.contract_values().get(k) == v for k, v in values.items())
        )
    hints = [_hint(pool, field, value) for field, value in fields.items()]
    text = ",".join(f"{key}={value}" for key, value in fields.items())
    raise ReadingError(
        f"{state.tensor.name} has no reading {text}",
        hint="; ".join(hints),
        source=state.tensor.name,
    )


def check_fields(wanted: Mapping[str, str]) -> None:
    """Refuse a word that is no field of the contract, and a zero convention that nobody uses.

    Raises:
        ReadingError: with the closest words.
    """
    for field in wanted:
        if field not in CONTRACT_FIELDS:
            raise ReadingError(
                f"{field} is no field of a reading",
                hint=closest_hint(field, CONTRACT_FIELDS),
                source=field,
            )
    convention = wanted.get("zero_convention")
    if convention is not None and convention not in ZERO_READINGS:
        raise ReadingError(
            f"{convention} is no zero convention",
            hint=closest_hint(convention, ZERO_READINGS),
            source=convention,
        )


def _hint(pool: Sequence[Reading], field: str, value: str) -> str:
    """The values that readings of the tensor have in a field, the closest first named."""
    near = closest(
        value, sorted({s for r in pool for s in _spellings(r.contract_values().get(field))})
    )
    close = f"closest: {', '.join(near)}; " if near else ""
    return f"{close}{field} here: {', '.join(_values(pool, field)) or 'none'}"


def _fits(values: dict[str, object], field: str, text: str) -> bool:
    return text in _spellings(values.get(field))


def _spellings(value: object) -> set[str]:
    if isinstance(value, dict):
        return {str(part) for part in value.values()}
    if isinstance(value, bool):
        return {"symmetric", "true"} if value else {"asymmetric", "false"}
    return {str(value)} if value is not None else set()


def _values(readings: Sequence[Reading], field: str) -> list[str]:
    seen: dict[str, None] = {}
    for reading in readings:
        value = reading.contract_values().get(field)
        if isinstance(value, dict):
            value = "/".join(
                str(part) for part in value.values() if not isinstance(part, list | dict)
            )
        if value is not None:
            seen[str(value)] = None
    return list(seen)[:12]
