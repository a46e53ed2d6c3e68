"""What a wrong reading of a field would do to the decoded weights, in words."""

from __future__ import annotations

from collections.abc import Sequence

from quantscope.model import Json

ZERO_EFFECTS = {
    (
        "as_is",
        "minus_one",
    ): "read as stored: every weight one step (1 x scale) higher than under stored + 1",
    (
        "minus_one",
        "as_is",
    ): "read as stored + 1: every weight one step (1 x scale) lower than under stored",
}
"""(this reading, the other one) -> effect."""


def effect_of(field: str, value: Json, among: Sequence[Json]) -> str:
    """Effect of reading `field` as `value` rather than as another of the values left."""
    if field == "zero_convention":
        for other in among:
            text = ZERO_EFFECTS.get((str(value), str(other)))
            if text is not None:
                return text
        return "weights of groups with an all-ones zero differ"
    effects = {
        "packing": "codes come out in another order: weights land on other channels",
        "element": "codes mean other numbers: every weight differs",
        "group": "scales apply to other channels",
        "scale": "every weight differs by a factor",
    }
    return effects.get(field, "decoded weights differ")
