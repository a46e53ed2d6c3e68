"""What rules look at: an inspection seen by module, layer, declaration and stored tensor; computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np

from quantscope.containers.records import EXTRACT_KEY, OpenedFile, StoredTensor
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import STORAGE, PlaneReader, to_float32
from quantscope.errors import QuantscopeError
from quantscope.families.declarations import Section
from quantscope.model import Json, Plane, Source, Subject
from quantscope.rules import names
from quantscope.session.inspection import Inspection, TensorState

MAX_SMALL_ELEMENTS = 1 << 16
"""Side tensors up to this many elements (activation and KV scales) are read by the rules."""

TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "language_model", "thinker_config")
"""Keys under which a multimodal config nests the language model's."""

T = TypeVar("T")

WEIGHT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})


class Small(msgspec.Struct, frozen=True, kw_only=True):
    """Values of a small stored tensor."""

    stored: StoredTensor
    values: tuple[float, ...]

    @property
    def single(self) -> float | None:
        """The value where there is just one."""
        return self.values[0] if len(self.values) == 1 else None


class Facts:
    """One inspection as the rules see it. Everything is lazy and kept."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self.checkpoint = inspection.checkpoint
        self.opened = inspection.checkpoint.opened
        self.index = inspection.checkpoint.index
        self.declared = inspection.checkpoint.declarations
        self.grouping = inspection.checkpoint.grouping
        self.states = inspection.states
        self._small: dict[str, Small | None] = {}
        self._once: dict[Callable[[Facts], Any], Any] = {}

    def once(self, compute: Callable[[Facts], T]) -> T:
        """What a function makes of these facts, computed the first time and kept."""
        if compute not in self._once:
            self._once[compute] = compute(self)
        found: T = self._once[compute]
        return found

    # -- files and names -------------------------------------------------------------------------

    @cached_property
    def files(self) -> dict[int, OpenedFile]:
        """Opened files by id."""
        return {file.file_id: file for file in self.opened.files}

    @cached_property
    def is_gguf(self) -> bool:
        """Whether the tensors come from GGUF."""
        return any(file.kind == "gguf" for file in self.opened.files)

    @property
    def stored(self) -> dict[str, StoredTensor]:
        """Stored tensors by name; the first of several of one name."""
        return self.index.tensors

    def file_name(self, file_id: int) -> str | None:
        """Name of a file inside the checkpoint."""
        file = self.files.get(file_id)
        return file.name if file is not None else None

    @cached_property
    def gguf(self) -> dict[str, tuple[Source, Json]]:
        """GGUF keys of all parts, the first part's value first."""
        keys: dict[str, tuple[Source, Json]] = {}
        for file in self.opened.files:
            if file.kind == "gguf":
                for key, value in file.metadata.items():
                    keys.setdefault(key, (Source(file.name, key), value))
        return keys

    @cached_property
    def incomplete(self) -> bool:
        """Whether files or tensors are known to be missing, so that absences prove nothing more."""
        gone = {"index-shard-missing", "index-shard-broken", "set-incomplete", "gg-split-missing"}
        gone |= {"gg-split-empty", "gg-split-unreadable", "index-name-outside", "gg-raw-part"}
        if any(issue.name in gone for issue in self.opened.issues):
            return True
        return any(not file.parsed for file in self.opened.files)

    @cached_property
    def is_extract(self) -> bool:
        """Whether this is a minimal reproducer, whose layers and modules were left out on purpose."""
        return any(EXTRACT_KEY in file.metadata for file in self.opened.files)

    # -- declarations ----------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Json]:
        """The model config, or an empty dict."""
        return self.declared.model

    def model_value(self, key: str) -> tuple[Json, Source | None]:
        """A value of the model config, at the top or in the language model's section, with its source."""
        if key in self.config:
            return self.config[key], Source("config.json", f"/{key}")
        for outer in TEXT_SECTIONS:
            nested = self.config.get(outer)
            if isinstance(nested, dict) and key in nested:
                return nested[key], Source("config.json", f"/{outer}/{key}")
        return None, None

    @property
    def sections(self) -> tuple[Section, ...]:
        """Quantization declarations."""
        return self.declared.sections

    @cached_property
    def methods(self) -> frozenset[str]:
        """Every quant_method that is written, in lower case."""
        return frozenset(section.method for section in self.sections if section.method)

    @cached_property
    def producers(self) -> frozenset[str]:
        """Tools that left their mark: auto-round, auto-gptq, gptqmodel, llm-compressor, modelopt, ..."""
        found: set[str] = set()
        for section in self.sections:
            data = section.data
            if data.get("autoround_version") or data.get("provider") == "auto-round":
                found.add("auto-round")
            if section.method in ("auto-round", "intel/auto-round", "auto_round"):
                found.add("auto-round")
            quantizer = section.get("meta", "quantizer")
            text = " ".join(map(str, quantizer)) if isinstance(quantizer, list) else str(quantizer)
            for tool in ("gptqmodel", "optimum", "auto_gptq"):
                if tool in text:
                    found.add("auto-gptq" if tool == "auto_gptq" else tool)
            producer = section.get("producer", "name")
            if producer == "modelopt" or section.method.startswith("modelopt"):
                found.add("modelopt")
            if section.method == "compressed-tensors":
                found.add("compressed-tensors")
            if section.method == "quark":
                found.add("quark")
        if "hf_quant_config.json" in self.declared.configs:
            found.add("modelopt")
        if "recipe.yaml" in self.declared.configs:
            found.add("llm-compressor")
        for file in self.opened.files:
            if "auto_gptq_version" in file.metadata:
                found.add("auto-gptq")
        return frozenset(found)

    @cached_property
    def marked(self) -> bool:
        """Whether marker tensors or header metadata say what the planes are, without a config."""
        if any(self.index.names_with_last(word) for word in ("scaled_fp8", "comfy_quant")):
            return True
        words = ("quant", "gptq", "comfy", "tensor_names", "__grit__")
        keys = {key for file in self.opened.files for key in file.metadata} - {EXTRACT_KEY}
        return any(word in key for key in keys for word in words)

    @property
    def declares(self) -> bool:
        """Whether anything declares the quantization."""
        return bool(self.sections) or self.marked or self.is_gguf

    @cached_property
    def broken_tensors(self) -> frozenset[str]:
        """Stored tensors of which a container issue speaks."""
        return frozenset(issue.tensor for issue in self.opened.issues if issue.tensor)

    @cached_property
    def tied(self) -> bool | None:
        """`tie_word_embeddings` as written; None where it is not."""
        value, _ = self.model_value("tie_word_embeddings")
        return value if isinstance(value, bool) else None

    # -- logical tensors -------------------------------------------------------------------------

    @cached_property
    def by_module(self) -> dict[str, list[TensorState]]:
        """States by module."""
        modules: dict[str, list[TensorState]] = defaultdict(list)
        for state in self.states:
            modules[state.tensor.module].append(state)
        return dict(modules)

    @cached_property
    def by_stored(self) -> dict[str, TensorState]:
        """The first state that uses a stored tensor."""
        found: dict[str, TensorState] = {}
        for state in self.states:
            for name in state.tensor.stored_names():
                found.setdefault(name, state)
        return found

    @cached_property
    def plain_weights(self) -> dict[str, StoredTensor]:
        """Unquantized matrices by module: `M.weight` of two or more dimensions in a float dtype."""
        found: dict[str, StoredTensor] = {}
        for stored in self.grouping.plain:
            if (
                len(stored.shape) >= 2
                and stored.name.endswith(".weight")
                and stored.dtype in WEIGHT_DTYPES
            ):
                found[stored.name[: -len(".weight")]] = stored
        return found

    @cached_property
    def families(self) -> frozenset[str]:
        """Families that claimed a tensor."""
        return frozenset(state.tensor.family for state in self.states)

    @cached_property
    def modules(self) -> frozenset[str]:
        """Every module that stores a tensor, quantized or plain."""
        found = {name.rpartition(".")[0] for name in self.stored}
        return frozenset(found | set(self.by_module) | set(self.plain_weights))

    @cached_property
    def roles(self) -> dict[str, list[TensorState]]:
        """States by their place in a layer, numbers left out."""
        found: dict[str, list[TensorState]] = defaultdict(list)
        for state in self.states:
            found[names.role_of(state.tensor.module)].append(state)
        return dict(found)

    @cached_property
    def layers(self) -> dict[str, dict[int, set[str]]]:
        """Stack -> layer number -> names stored in that layer, without the layer's own prefix."""
        stacks: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for name in self.stored:
            place = names.layer_of(name)
            if place is not None and names.expert_of(place.stack + ".") is None:
                stacks[place.stack][place.index].add(place.rest)
        return {stack: dict(layers) for stack, layers in stacks.items()}

    # -- subjects and bytes ----------------------------------------------------------------------

    def of_tensor(
        self, state: TensorState, plane: Plane | None = None, field: str | None = None
    ) -> Subject:
        """A subject that names a logical tensor, and a plane of it with its bytes."""
        if plane is None:
            file_id = state.tensor.planes[0].file_id if state.tensor.planes else -1
            return Subject(tensor=state.tensor.name, file=self.file_name(file_id), field=field)
        return Subject(
            tensor=state.tensor.name,
            stored=plane.stored_name,
            file=self.file_name(plane.file_id),
            byte_range=plane_range(plane),
            field=field,
        )

    def of_stored(self, stored: StoredTensor, tensor: str | None = None) -> Subject:
        """A subject that names a stored tensor with its bytes."""
        return Subject(
            tensor=tensor,
            stored=stored.name,
            file=self.file_name(stored.file_id),
            byte_range=(stored.byte_offset, stored.byte_offset + stored.nbytes),
        )

    @cached_property
    def reader(self) -> PlaneReader | None:
        """Bounded reads that count in the inspection's ledger; None where only headers may be read."""
        if self.inspection.mode == "headers":
            return None
        return self.checkpoint.reader(self.inspection.ledger)

    def small(self, name: str) -> Small | None:
        """Values of a small floating or integer stored tensor; None where it cannot or may not be read."""
        if name not in self._small:
            self._small[name] = self._read_small(name)
        return self._small[name]

    def _read_small(self, name: str) -> Small | None:
        stored = self.stored.get(name)
        values = None if stored is None else self.array(stored, MAX_SMALL_ELEMENTS)
        if stored is None or values is None:
            return None
        return Small(stored=stored, values=tuple(float(v) for v in values))

    def array(self, stored: StoredTensor, limit: int, start: int = 0) -> Array | None:
        """Up to `limit` elements of a stored tensor from element `start` on, as float32."""
        code = STORAGE.get(stored.dtype)
        if self.reader is None or code is None or not stored.readable or stored.strides:
            return None
        item = int(code[1:])
        count = min(limit, stored.nbytes // item - start)
        if count <= 0:
            return None
        try:
            data = self.reader.read_bytes(
                "companion", stored.file_id, stored.byte_offset + start * item, count * item
            )
        except QuantscopeError:
            return None
        file = self.files.get(stored.file_id)
        order = ">" if file is not None and file.byte_order == "big" else "<"
        raw = np.frombuffer(data, dtype=np.dtype(order + code))
        return to_float32(raw.astype(np.dtype("=" + code), copy=False), stored.dtype)

    def ending(self, *suffixes: str) -> Iterator[StoredTensor]:
        """Stored tensors whose last dotted part is one of the given words, in the order of the words."""
        for suffix in suffixes:
            for name in self.index.names_with_last(suffix):
                yield self.stored[name]

    def siblings(self) -> Iterator[tuple[str, Sequence[TensorState]]]:
        """(parent, states) of modules that engines fuse into one matrix, each group of one parent."""
        for module in self.by_module:
            own, parent = names.last(module), names.parent(module)
            for group in names.FUSED_TOGETHER:
                if own != group[0]:
                    continue
                found = [
                    state
                    for name in group
                    for state in self.by_module.get(f"{parent}.{name}" if parent else name, ())[:1]
                ]
                if len(found) > 1:
                    yield parent, found


def plane_range(plane: Plane) -> tuple[int, int] | None:
    """First and one past the last byte of a plane, strides included."""
    if not plane.spans:
        return None
    first = min(span.byte_offset for span in plane.spans)
    last = max(
        span.byte_offset + (span.count - 1) * span.stride_bytes + span.nbytes
        for span in plane.spans
    )
    return first, last


def data_of(value: Any) -> Any:
    """A number fit for JSON data: non-finite values as words."""
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
