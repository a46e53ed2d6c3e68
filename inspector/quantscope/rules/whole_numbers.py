"""Keys that must hold whole numbers and hold something else."""

from __future__ import annotations

from collections.abc import Iterator

from quantscope.model import Json, Subject
from quantscope.rules.base import Hit, Rule
from quantscope.rules.facts import Facts
from quantscope.rules.field_rule import word

WHOLE_NUMBER_METHODS = frozenset({"gptq", "awq", "auto-round", "intel/auto-round", "qqq"})
"""Methods whose loaders take bits and group_size as whole numbers."""


def _is_block(value: Json) -> bool:
    """Whether a group size is rows and columns of a block, as AutoRound 0.16 writes it for FP8_BLOCK."""
    numbers = value if isinstance(value, list) else []
    return len(numbers) == 2 and all(type(number) is int and number > 0 for number in numbers)


def no_numbers(rule: Rule, facts: Facts, keys: tuple[str, ...]) -> Iterator[Hit]:
    """Keys of a section that hold something else than a whole number."""
    for section in facts.sections:
        for key in keys:
            value = section.get(key)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if whole or not section.has(key) or section.method not in WHOLE_NUMBER_METHODS:
                continue
            if "auto-round" in section.method and _is_block(value):
                continue
            source = section.source(key)
            yield rule.hit(
                Subject(file=source.file, config_key=str(source), field=key),
                f"{source} is {word(value)[:40]}, which is no whole number",
                fold=str(source),
                impact="loaders refuse the model or take their default",
                try_=f"set {source} to what the planes fit",
                who="config",
                severity="warning",
                data={"value": str(value)[:40]},
            )
