"""Weights of a checkpoint by the names of a transformers model, decoded by the engine under a reading.

Where the stored form differs from what a model multiplies with, it is put back: experts stored one by one or
stacked, tied heads, and input scales that a producer left to the runtime.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from quantscope.compare.model import RowMap
from quantscope.compare.names import bare
from quantscope.compare.sides import Side
from quantscope.decode.parts import Array, Window
from quantscope.decode.window import STREAM_ELEMENTS, decode_window, window_parts
from quantscope.errors import QuantscopeError, ReadingError, UndecodableError
from quantscope.model import Reading
from quantscope.probes import twists
from quantscope.probes.conversions import Conversions
from quantscope.probes.model import SideRequest
from quantscope.session.inspection import TensorState
from quantscope.session.what_if import chosen_reading

INPUT_SCALE_SUFFIXES = ("pre_quant_scale", "channel_scales")
"""Planes that a runtime multiplies the activation with: W x = (W diag(s)) (x), so they join the weight."""

EXPERT_PARTS = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}
"""Stacked expert parameter -> names of the single experts' weights that make it, by naming scheme."""

Fetch = Callable[[str, tuple[int, ...]], Array | None]
"""Parameter name and shape -> float32 values, or None where the checkpoint has none."""


class ModelWeights:
    """Decoded weights of one side of a probe, by the names that the checkpoint gives them.

    Args:
        side: the checkpoint, inspected.
        request: label and what-if reading.
        planted: decode every quantized weight wrongly on purpose (the control).
    """

    def __init__(self, side: Side, request: SideRequest, *, planted: bool = False) -> None:
        self.side = side
        self.request = request
        self.planted = planted
        self.changed = 0
        self.digest = hashlib.sha256()
        self.used: set[str] = set()
        self._readings: dict[str, Reading] = {}
        self._twists: dict[str, dict[str, str]] = {}
        self._choose_readings()

    def _choose_readings(self) -> None:
        for name, state in self.side.states.items():
            if state.reading is None or state.undecodable:
                continue
            reading, twist = _asked(state, state.reading, self.request.reading)
            self.changed += reading != state.reading or bool(twist)
            self._readings[name] = reading
            if twist:
                self._twists[name] = twist
        if self.request.reading and not self.changed:
            text = ",".join(f"{k}={v}" for k, v in self.request.reading.items())
            own = [reading.contract_values() for reading in self._readings.values()]
            already = any(
                all(values.get(field) == value for field, value in self.request.reading.items())
                for values in own
            )
            raise ReadingError(
                f"{text} changes no tensor of {self.request.path}",
                hint="the file's own side is read so already: leave this reading out"
                if already
                else "no candidate reading has this value",
            )

    @property
    def readings(self) -> dict[str, int]:
        """How many tensors are read which way, in words."""
        words = (
            f"{r.element} zero {r.zero}"
            + ("" if r.zero_convention == "not_applicable" else f" {r.zero_convention}")
            + f" {r.packing.order}"
            for r in self._readings.values()
        )
        return dict(sorted(Counter(words).items()))

    @property
    def unused(self) -> list[str]:
        """Weights of the checkpoint that no parameter of the model took."""
        return sorted(set(self.side.shapes) - self.used)

    @cached_property
    def _stacks(self) -> dict[str, list[TensorState]]:
        """States of stacked experts in order, by the stack's name without `.weight`."""
        found: dict[str, list[TensorState]] = defaultdict(list)
        for state in self.side.states.values():
            if state.tensor.part is not None:
                found[_stack_name(state.tensor.name)].append(state)
        for states in found.values():
            states.sort(key=lambda s: s.tensor.part.index if s.tensor.part else 0)
        return dict(found)

    @cached_property
    def by_bare(self) -> dict[str, str]:
        """Names without wrappers -> names."""
        return {bare(name): name for name in self.names}

    @cached_property
    def names(self) -> list[str]:
        """Logical names of all that can be fed: weights, stacks, and every other stored tensor."""
        names = dict.fromkeys(name for name in self.side.shapes if not name.endswith("]"))
        names |= dict.fromkeys(self._stacks)
        names |= dict.fromkeys(self.side.checkpoint.index.tensors)
        return list(names)

    def refuse_unusable(self) -> None:
        """Refuse a checkpoint that the engine cannot turn into plain weights.

        Raises:
            UndecodableError: with the tensor and the reason.
        """
        for name, state in self.side.states.items():
            if state.undecodable is not None:
                raise UndecodableError(
                    f"{name} cannot be decoded ({state.undecodable}): no logits can be had",
                    source=name,
                )
            if state.reading is None:
                raise UndecodableError(f"{name} has no reading that fits its planes", source=name)
            if "rotat" in state.reading.basis or "hadamard" in state.reading.basis:
                raise UndecodableError(
                    f"{name} is stored in a rotated basis ({state.reading.basis}): the rotation is not "
                    "undone here, so no logits can be had",
                    source=name,
                )

    def stored(self, name: str) -> Array:
        """A weight as an unquantized checkpoint stores it; stacked where it is a stack of experts.

        Raises:
            UndecodableError: nothing has the name.
        """
        if name in self.side.states:
            return self._decoded(self.side.states[name])
        stack = self._stacks.get(_stack_name(name))
        if stack is not None:
            return np.stack([self._decoded(state) for state in stack])
        plain = self.side.checkpoint.find_plain(name)
        if plain is None:
            raise UndecodableError(f"{name} is not stored", source=name)
        self.used.add(name)
        n_rows, _ = self.side.extents(name, RowMap())
        values = self.side.decode(name, range(n_rows))
        if self.planted and not self._readings and len(plain.shape) > 1:
            values = twists.swapped(values)
        return values.reshape(plain.shape)

    def _decoded(self, state: TensorState) -> Array:
        name = state.tensor.name
        self.used.add(name)
        reading, twist = self._readings[name], self._twists.get(name)
        family = self.side.checkpoint.family(state.tensor)
        out = np.empty((reading.shape[-2], reading.shape[-1]), dtype=np.float32)
        for window in _windows(reading):
            if self.planted or twist:
                parts = window_parts(family, state.tensor, reading, window, self.side.reader)
                if twist:
                    parts = twists.twisted(parts, reading, twist)
                if self.planted:
                    parts = twists.planted(parts)
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    piece = family.combine(parts, reading, False)
            else:
                piece = decode_window(family, state.tensor, reading, window, self.side.reader)
            out[window.rows.start : window.rows.stop] = piece
        for suffix in INPUT_SCALE_SUFFIXES:
            scale = self.side.checkpoint.index.get(state.tensor.module, suffix)
            if scale is not None:
                plane = self.side.checkpoint.index.plane_of("companion", scale, suffix)
                out *= self.side.reader.floats(plane).reshape(1, -1)
        return out

    def hashed(self, name: str, values: Array) -> Array:
        """Add a weight to the digest of everything that was fed."""
        values = np.ascontiguousarray(values)
        self.digest.update(f"{name} {values.shape} {values.dtype.str};".encode())
        self.digest.update(values.reshape(-1).view(np.uint8).data)
        return values


def _asked(
    state: TensorState, own: Reading, wanted: dict[str, str]
) -> tuple[Reading, dict[str, str]]:
    """A tensor's reading with the fields asked for, and those that only decoded parts can be changed to."""
    if not wanted:
        return own, {}
    try:
        return chosen_reading(state, wanted), {}
    except ReadingError:
        pass
    twist = {
        field: value
        for field, value in wanted.items()
        if value in twists.FIELDS.get(field, ()) and twists.applies(own, field, value)
    }
    rest = {field: value for field, value in wanted.items() if field not in twists.FIELDS}
    try:
        return (chosen_reading(state, rest) if rest else own), twist
    except ReadingError:
        return own, {}


def _stack_name(name: str) -> str:
    """`...gate_up_proj` of `...gate_up_proj.weight[3]` and of the stack's own name."""
    return (name.rpartition("[")[0] if name.endswith("]") else name).removesuffix(".weight")


def _windows(reading: Reading) -> Iterator[Window]:
    """Windows of whole rows whose first row is a multiple of 32, the most codes of a word here."""
    n_rows, n_cols = reading.shape[-2], reading.shape[-1]
    step = max(32, STREAM_ELEMENTS // max(n_cols, 1) // 32 * 32)
    for start in range(0, n_rows, step):
        yield Window(range(start, min(start + step, n_rows)), range(n_cols))


class HfWeights:
    """Weights of a Hugging Face checkpoint in the forms of a transformers model.

    Args:
        weights: the decoded side.
        conversions: how stored names become parameters.
        transposed: whether a module multiplies expert stacks as [experts, in, out]; None where the
            shape alone must tell.
    """

    def __init__(
        self,
        weights: ModelWeights,
        conversions: Conversions,
        transposed: Callable[[str], bool | None],
    ) -> None:
        self.weights = weights
        self.conversions = conversions
        self.transposed = transposed

    def find(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """The weight for a model parameter; None where nothing fits.

        Args:
            name: parameter name in the model.
            shape: its shape there.
        """
        if self.conversions.knows(name):
            return self._fit(name, self.conversions.make(name, self.weights.stored), shape)
        for candidate in (name, self.weights.by_bare.get(bare(name))):
            if candidate is not None and candidate in self.weights.names:
                return self._fit(name, self.weights.stored(candidate), shape)
        joined = self._joined(name, shape)
        if joined is not None:
            return joined
        if name.endswith("lm_head.weight"):
            embedding = next(
                (n for n in self.weights.side.shapes if n.endswith("embed_tokens.weight")), None
            )
            return (
                None
                if embedding is None
                else self._fit(name, self.weights.stored(embedding), shape)
            )
        return None

    def _joined(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """Experts stored one by one, joined without transformers' table."""
        prefix, _, last = name.removesuffix(".weight").rpartition(".")
        if last not in EXPERT_PARTS or len(shape) != 3:
            return None
        for parts in EXPERT_PARTS[last]:
            names = [
                [self.weights.by_bare.get(bare(f"{prefix}.{e}.{part}.weight")) for part in parts]
                for e in range(shape[0])
            ]
            if all(n is not None for row in names for n in row):
                experts = [
                    np.concatenate([self.weights.stored(str(n)) for n in row]) for row in names
                ]
                return self._fit(name, np.stack(experts), shape, stacked=True)
        return None

    def _fit(
        self, name: str, values: Array, shape: tuple[int, ...], stacked: bool = False
    ) -> Array:
        """Values in the parameter's shape; decoded expert stacks turned where the module wants them so."""
        is_stack = stacked or _stack_name(name) in self.weights._stacks
        if is_stack and values.ndim == 3 and self.transposed(name):
            return fitted(np.ascontiguousarray(values.swapaxes(1, 2)), shape, name)
        return fitted(values, shape, name)


def fitted(values: Array, shape: tuple[int, ...], name: str) -> Array:
    """Values in a parameter's shape: reshaped for vectors, transposed for stacks stored the other way.

    Raises:
        QuantscopeError: the shapes do not go together.
    """
    if values.shape == shape:
        return values
    if values.size == np.prod(shape, dtype=np.int64) and (len(shape) < 2 or values.ndim < 2):
        return values.reshape(shape)
    if values.ndim == 3 and values.swapaxes(1, 2).shape == shape:
        return np.ascontiguousarray(values.swapaxes(1, 2))
    if values.ndim == 2 and len(shape) == 2 and values.shape[1] == shape[1] and _vocabulary(name):
        raise QuantscopeError(
            f"vocabularies differ: {name} has {values.shape[0]} rows in the checkpoint, the model {shape[0]}",
            hint="logits of different vocabularies are not comparable",
            source=name,
        )
    raise QuantscopeError(
        f"{name} has shape {list(values.shape)} in the checkpoint and {list(shape)} in the model",
        source=name,
    )


def _vocabulary(name: str) -> bool:
    return any(word in name for word in ("embed", "lm_head", "wte", "output"))


def owner_transposed(model: Any) -> Callable[[str], bool | None]:
    """Whether the module of a parameter says that its expert stacks are [experts, in, out]."""

    def transposed(name: str) -> bool | None:
        try:
            owner = model.get_submodule(name.rpartition(".")[0])
        except AttributeError:
            return None
        said = getattr(owner, "is_transposed", None)
        return said if isinstance(said, bool) else None

    return transposed
