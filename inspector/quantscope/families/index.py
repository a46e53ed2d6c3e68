"""Stored tensors by name and by module, so that a family finds its planes without scanning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from quantscope.containers.records import OpenedFile, StoredTensor
from quantscope.errors import QuantscopeError
from quantscope.model import Plane, Role, Span

MAX_SMALL_BYTES = 1 << 16
"""A family may read this much of one stored tensor while it groups."""


class TensorIndex:
    """Every stored tensor of a checkpoint.

    A module is the dotted prefix before a suffix; suffixes can hold dots themselves
    (`weight.quant_state.bitsandbytes__nf4`). The first of several stored tensors of one name counts.
    """

    def __init__(
        self,
        tensors: Iterable[StoredTensor],
        files: Sequence[OpenedFile],
        read: Callable[[StoredTensor], bytes] | None = None,
    ) -> None:
        self._read = read
        self.tensors: dict[str, StoredTensor] = {}
        for tensor in tensors:
            self.tensors.setdefault(tensor.name, tensor)
        self.files: Mapping[int, OpenedFile] = {file.file_id: file for file in files}

    @cached_property
    def _by_last(self) -> dict[str, list[str]]:
        by_last: dict[str, list[str]] = defaultdict(list)
        for name in self.tensors:
            by_last[name.rpartition(".")[2]].append(name)
        return dict(by_last)

    def modules_with(self, suffix: str) -> list[str]:
        """Module prefixes P for which `P.suffix` is stored (P is empty where the name is the suffix)."""
        tail = "." + suffix
        names = self._by_last.get(suffix.rpartition(".")[2], [])
        return [
            name[: -len(tail)] if name != suffix else ""
            for name in names
            if name == suffix or name.endswith(tail)
        ]

    def names_with_last(self, last: str) -> Sequence[str]:
        """Stored names whose last dotted part is `last`."""
        return self._by_last.get(last, ())

    def get(self, module: str, suffix: str) -> StoredTensor | None:
        """The stored tensor `module.suffix`, or None."""
        return self.tensors.get(f"{module}.{suffix}" if module else suffix)

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        children: dict[str, list[str]] = defaultdict(list)
        for name in self.tensors:
            module, _, last = name.rpartition(".")
            children[module].append(last)
        return dict(children)

    def small(self, stored: StoredTensor) -> bytes:
        """Bytes of a small stored tensor that says how others lie (a quant_state, a stored shape).

        Empty where it is larger than MAX_SMALL_BYTES, cannot be read, or the index has no files behind it.
        """
        if self._read is None or not stored.readable or stored.nbytes > MAX_SMALL_BYTES:
            return b""
        try:
            return self._read(stored)
        except QuantscopeError:
            return b""

    def suffixes(self, module: str) -> Sequence[str]:
        """Last parts of the names stored directly under a module."""
        return self._children.get(module, ())

    def plane(
        self,
        role: Role,
        module: str,
        suffix: str,
        *,
        shape: tuple[int, ...] | None = None,
        element_offset: int = 0,
    ) -> Plane | None:
        """The stored tensor `module.suffix` as a plane, or None where it is not stored.

        Args:
            role: role for the logical tensor.
            module: module prefix.
            suffix: stored suffix.
            shape: shape of the part meant, where it is a contiguous slice; all of it by default.
            element_offset: elements before that slice (whole bytes only).
        """
        stored = self.get(module, suffix)
        if stored is None:
            return None
        return self.plane_of(role, stored, suffix, shape=shape, element_offset=element_offset)

    def plane_of(
        self,
        role: Role,
        stored: StoredTensor,
        suffix: str,
        *,
        shape: tuple[int, ...] | None = None,
        element_offset: int = 0,
    ) -> Plane:
        """A stored tensor, or a contiguous slice of it, as a plane."""
        byte_offset, nbytes = stored.byte_offset, stored.nbytes
        if shape is not None:
            total, part = _product(stored.shape), _product(shape)
            byte_offset += nbytes * element_offset // total if total else 0
            nbytes = nbytes * part // total if total else 0
        file = self.files.get(stored.file_id)
        return Plane(
            role=role,
            suffix=suffix,
            stored_name=stored.name,
            spans=(Span(file_id=stored.file_id, byte_offset=byte_offset, nbytes=nbytes),),
            dtype=stored.dtype,
            shape=stored.shape if shape is None else shape,
            byte_order=file.byte_order if file else "little",
        )


def _product(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
