"""Weights of a checkpoint by the names of a transformers model, decoded by the engine under a reading.

Where the stored form differs from what a model multiplies with, it is put back here: experts stored one by one or
stacked, tied heads, input scales that a producer left to the runtime, and the forms of GGUF (rotary row order,
norms stored plus one), for which transformers' own processors are used.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from quantscope.compare.model import RowMap
from quantscope.compare.names import bare
from quantscope.compare.sides import Side
from quantscope.decode.parts import Array, Parts
from quantscope.decode.window import decode_window, stream_windows, window_parts
from quantscope.errors import QuantscopeError, ReadingError, UndecodableError
from quantscope.model import Reading
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


class ModelWeights:
    """Decoded weights of one side of a probe.

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
        self._readings: dict[str, Reading] = {}
        self._choose_readings()

    def _choose_readings(self) -> None:
        for name, state in self.side.states.items():
            if state.reading is None or state.undecodable:
                continue
            reading = state.reading
            if self.request.reading:
                try:
                    reading = chosen_reading(state, self.request.reading)
                except ReadingError:
                    reading = state.reading
            self.changed += reading != state.reading
            self._readings[name] = reading
        if self.request.reading and not self.changed:
            text = ",".join(f"{k}={v}" for k, v in self.request.reading.items())
            raise ReadingError(
                f"{text} changes no tensor of {self.request.path}",
                hint="the file is read so already, or no candidate reading has this value",
            )

    @cached_property
    def _by_stored(self) -> dict[str, list[TensorState]]:
        """States of stacked tensors by the stored name they share, in order of their part."""
        found: dict[str, list[TensorState]] = defaultdict(list)
        for state in self.side.states.values():
            codes = state.tensor.plane("codes") or state.tensor.planes[0]
            found[codes.stored_name].append(state)
        for states in found.values():
            states.sort(key=lambda s: s.tensor.part.index if s.tensor.part else 0)
        return dict(found)

    @cached_property
    def _by_bare(self) -> dict[str, str]:
        return {bare(name): name for name in self.side.shapes}

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
                    f"{name} is stored in a rotated basis ({state.reading.basis}): the rotation is not undone here",
                    source=name,
                )

    def stored(self, name: str) -> Array:
        """A weight as it is stored under a name: stacked where several logical tensors share it.

        Raises:
            UndecodableError: nothing has the name.
        """
        if name in self.side.states:
            return self._decoded(self.side.states[name])
        stack = self._by_stored.get(name)
        if stack:
            pieces = [self._decoded(state) for state in stack]
            return pieces[0] if len(pieces) == 1 else np.stack(pieces)
        plain = self.side.checkpoint.find_plain(name)
        if plain is None:
            raise UndecodableError(f"{name} is not stored", source=name)
        n_rows, _ = self.side.extents(name, RowMap())
        values = self.side.decode(name, range(n_rows))
        return values.reshape(plain.shape)

    def _decoded(self, state: TensorState) -> Array:
        name = state.tensor.name
        reading = self._readings[name]
        family = self.side.checkpoint.family(state.tensor)
        out = np.empty((reading.shape[-2], reading.shape[-1]), dtype=np.float32)
        for window in stream_windows(reading):
            if self.planted:
                parts = window_parts(family, state.tensor, reading, window, self.side.reader)
                piece = family.combine(_plant(parts), reading, False)
            else:
                piece = decode_window(family, state.tensor, reading, window, self.side.reader)
            out[window.rows.start : window.rows.stop] = piece
        for suffix in INPUT_SCALE_SUFFIXES:
            scale = self.side.checkpoint.index.get(state.tensor.module, suffix)
            if scale is not None:
                plane = self.side.checkpoint.index.plane_of("companion", scale, suffix)
                out *= self.side.reader.floats(plane).reshape(1, -1)
        return out

    def find(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """The weight for a model parameter of a Hugging Face checkpoint; None where nothing fits.

        Args:
            name: parameter name in the model.
            shape: its shape there.
        """
        for candidate in (name, self._by_bare.get(bare(name))):
            if candidate is not None and (candidate in self.side.shapes):
                return _fitted(self.stored(candidate), shape, name)
        stacked = self._stacked(name, shape)
        if stacked is not None:
            return stacked
        if name.endswith("lm_head.weight"):
            embedding = next(
                (n for n in self.side.shapes if n.endswith("embed_tokens.weight")), None
            )
            return None if embedding is None else _fitted(self.stored(embedding), shape, name)
        return None

    def _stacked(self, name: str, shape: tuple[int, ...]) -> Array | None:
        prefix, _, last = name.removesuffix(".weight").rpartition(".")
        if name in self._by_stored or f"{name}_blocks" in self._by_stored:
            key = name if name in self._by_stored else f"{name}_blocks"
            return _fitted(self.stored(key), shape, name)
        if last not in EXPERT_PARTS or len(shape) != 3:
            return None
        for parts in EXPERT_PARTS[last]:
            names = [
                [self._by_bare.get(bare(f"{prefix}.{e}.{part}.weight")) for part in parts]
                for e in range(shape[0])
            ]
            if all(n is not None for row in names for n in row):
                experts = [np.concatenate([self.stored(str(n)) for n in row]) for row in names]
                return _fitted(np.stack(experts), shape, name)
        return None

    def hashed(self, name: str, values: Array) -> Array:
        """Add a weight to the digest of everything that was fed."""
        self.digest.update(name.encode())
        self.digest.update(np.ascontiguousarray(values).tobytes())
        return values


def _plant(parts: Parts) -> Parts:
    """The control's wrong reading: zero + 1 everywhere; without a zero, neighbouring codes swapped."""
    if parts.zero is not None:
        parts.zero = np.asarray(parts.zero) + 1
        return parts
    codes = np.array(parts.codes)
    even = codes.shape[1] // 2 * 2
    codes[:, :even] = (
        codes[:, :even].reshape(codes.shape[0], -1, 2)[:, :, ::-1].reshape(codes.shape[0], even)
    )
    parts.codes = codes
    return parts


def _fitted(values: Array, shape: tuple[int, ...], name: str) -> Array:
    """Values in a parameter's shape: reshaped for vectors, transposed for stacks stored the other way."""
    if values.shape == shape:
        return values
    if values.size == np.prod(shape, dtype=np.int64) and (len(shape) < 2 or values.ndim < 2):
        return values.reshape(shape)
    if values.ndim == 3 and values.swapaxes(1, 2).shape == shape:
        return np.ascontiguousarray(values.swapaxes(1, 2))
    raise QuantscopeError(
        f"{name} has shape {list(values.shape)} in the checkpoint and {list(shape)} in the model",
        source=name,
    )


class GgufForms:
    """What transformers knows of a GGUF's names and stored forms; made once, shared by every pass.

    Args:
        model: the model on the meta device, with its config.
        side: the GGUF.
    """

    def __init__(self, model: Any, side: Side) -> None:
        from transformers import modeling_gguf_pytorch_utils as gguf_utils

        architecture = str(side.metadata.get("general.architecture", ""))
        kind = gguf_utils.TENSOR_PROCESSORS.get(architecture, gguf_utils.TensorProcessor)
        self.processor = kind(config=model.config.get_text_config().to_dict())
        self.mapping: dict[str, str] = gguf_utils.get_gguf_hf_weights_map(model, self.processor)
        self.names: dict[str, list[str]] = defaultdict(list)
        stored = {tensor.name for tensor in side.checkpoint.opened.tensors}
        for gguf_name, hf_name in self.mapping.items():
            full = gguf_name if gguf_name in stored else f"{gguf_name}.weight"
            if full in stored:
                self.names[hf_name].append(full)


class GgufWeights:
    """Weights of a GGUF in the forms of a transformers model.

    Args:
        weights: the decoded side.
        forms: names and processors.
    """

    def __init__(self, weights: ModelWeights, forms: GgufForms) -> None:
        self.weights = weights
        self.forms = forms

    def find(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """The weight for a model parameter; None where nothing maps to it."""
        names = self.forms.names.get(name)
        if not names and name.endswith("lm_head.weight"):
            embedding = next(
                (n for n in self.forms.names if n.endswith("embed_tokens.weight")), None
            )
            names = self.forms.names.get(embedding or "")
        if not names:
            return None
        collected: dict[str, Any] = {"tensors": {}}
        values: Array | None = None
        for gguf_name in names:
            result = self.forms.processor.process(
                weights=self.weights.stored(gguf_name),
                name=gguf_name,
                tensor_key_mapping=self.forms.mapping,
                parsed_parameters=collected,
            )
            values = np.asarray(result.weights) if result.name is not None else None
        if values is None:
            values = collected["tensors"][name].numpy()
        return _fitted(values, shape, name)


Fetch = Callable[[str, tuple[int, ...]], Array | None]
"""Parameter name and shape -> float32 values, or None where the checkpoint has none."""
