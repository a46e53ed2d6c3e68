"""Which checkpoint names make a model's parameter, by transformers' own table of conversions.

transformers 5 holds experts stacked while checkpoints store them one by one, renames modules and splits fused
weights; its table (transformers/conversion_mapping.py) says how. Releases without the table name modules as
checkpoints do.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from quantscope.decode.parts import Array
from quantscope.probes.config import ModelBuildError

Stored = Callable[[str], Array]
"""Logical name -> float32 weight in the shape that an unquantized checkpoint stores."""


class Conversions:
    """How stored names become parameters of one model.

    Args:
        model: the model on the meta device.
        names: logical names of everything that the checkpoint stores.
    """

    def __init__(self, model: Any, names: Iterable[str]) -> None:
        self._model = model
        self._sources: dict[str, list[tuple[str | None, str]]] = defaultdict(list)
        self._converter: dict[str, Any] = {}
        self._first: dict[str, str] = {}
        self._plan(sorted(names, key=_natural))

    def _plan(self, names: list[str]) -> None:
        try:
            from transformers.conversion_mapping import get_model_conversion_mapping
            from transformers.core_model_loading import (
                WeightConverter,
                WeightRenaming,
                rename_source_key,
            )
        except ImportError:
            return
        entries = get_model_conversion_mapping(self._model)
        renamings = [e for e in entries if isinstance(e, WeightRenaming)]
        converters = [e for e in entries if isinstance(e, WeightConverter)]
        by_pattern = {p: c for c in converters for p in c.source_patterns}
        wanted = self._model.state_dict()
        prefix = self._model.base_model_prefix
        for name in names:
            target, pattern = rename_source_key(name, renamings, converters, prefix, wanted)
            if target not in wanted and name in wanted:
                target, pattern = name, None
            if target not in wanted:
                continue
            if pattern is not None:
                converter = self._converter.setdefault(target, by_pattern[pattern])
                head = converter.target_patterns[0]
                for other in converter.target_patterns:
                    self._first[target.replace(head, other)] = target
            else:
                self._first.setdefault(target, target)
            self._sources[target].append((pattern, name))

    def knows(self, parameter: str) -> bool:
        """Whether the table finds stored names for a parameter."""
        return parameter in self._first

    def make(self, parameter: str, stored: Stored) -> Array:
        """A parameter's values.

        Args:
            parameter: name in the model.
            stored: gives stored weights by logical name.

        Raises:
            ModelBuildError: the stored weights do not have the shapes that the conversion joins.
        """
        first = self._first[parameter]
        sources = self._sources[first]
        converter = self._converter.get(first)
        if converter is None:
            return stored(sources[-1][1])
        import torch

        converter = copy.deepcopy(converter)
        for pattern, name in sources:
            values = torch.from_numpy(np.ascontiguousarray(stored(name)))
            converter.add_tensor(first, name, pattern, values)
        try:
            made = converter.convert(first, model=self._model, config=self._model.config)
            values = made[parameter]
        except (KeyError, RuntimeError, ValueError) as problem:
            raise ModelBuildError(
                f"{parameter} cannot be joined from {len(sources)} stored weights: {problem}",
                source=parameter,
            ) from None
        result: Array = (values[0] if isinstance(values, list) else values).numpy()
        return result


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Numbers in a name compare as numbers, so that expert 10 follows expert 9."""
    return [(0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", name) if p]
