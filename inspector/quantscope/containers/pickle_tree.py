"""From a walked pickle to tensors by name and plain values as a tree."""

from __future__ import annotations

from typing import Any

from quantscope.containers.pickle_walk import Global, Opaque, Storage, Tensor
from quantscope.containers.records import Json

MAX_NODES = 500_000
MAX_DEPTH = 64
MAX_TEXT = 1 << 20
_INT_LIMIT = 1 << 63


class _Flattener:
    """Walks a tree once, with a budget: a memo lets a small pickle describe an endless tree."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.left = MAX_NODES
        self.complete = True

    def visit(self, value: Any, path: tuple[str, ...]) -> tuple[Json, bool]:
        """The plain part of a value, and whether there is any."""
        self.left -= 1
        if self.left < 0 or len(path) > MAX_DEPTH:
            self.complete = False
            return None, False
        if isinstance(value, Tensor):
            self._keep(value, path)
            return None, False
        if isinstance(value, Opaque):
            return self._opaque(value, path)
        if isinstance(value, dict):
            return self._items([(str(key), inner) for key, inner in value.items()], path)
        if isinstance(value, list | tuple):
            return self._sequence(value, path)
        if isinstance(value, str):
            self.left -= len(value) // 64
        return _plain(value), True

    def _keep(self, tensor: Tensor, path: tuple[str, ...]) -> None:
        self.left -= sum(map(len, path)) // 64
        if self.left < 0:
            self.complete = False
            return
        name = ".".join(path) or "tensor"
        spare, number = name, 1
        while spare in self.tensors:
            number += 1
            spare = f"{name}#{number}"
        self.tensors[spare] = tensor

    def _items(self, items: list[tuple[str, Any]], path: tuple[str, ...]) -> tuple[Json, bool]:
        tree: dict[str, Json] = {}
        for key, inner in items:
            plain, some = self.visit(inner, (*path, key))
            if some:
                tree[key] = plain
            if self.left < 0:
                break
        return tree, bool(tree) or not items

    def _sequence(
        self, value: list[Any] | tuple[Any, ...], path: tuple[str, ...]
    ) -> tuple[Json, bool]:
        parts = []
        for place, inner in enumerate(value):
            plain, some = self.visit(inner, (*path, str(place)))
            if some:
                parts.append(plain)
            if self.left < 0:
                break
        return parts, bool(parts) or not value

    def _opaque(self, value: Opaque, path: tuple[str, ...]) -> tuple[Json, bool]:
        tree: dict[str, Json] = {"opaque": value.label}
        plain, some = self.visit(value.state, path) if value.state is not None else (None, False)
        if some and plain:
            tree["state"] = plain
        return tree, True


def _plain(value: Any) -> Json:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return {"string": len(value)}
    if isinstance(value, bool | str | float) or value is None:
        return value
    if isinstance(value, int):
        if -_INT_LIMIT <= value < _INT_LIMIT:
            return value
        return hex(value) if value.bit_length() <= 1024 else f"<{value.bit_length()} bits>"
    if isinstance(value, bytes | bytearray):
        return {"bytes": len(value), "hex": bytes(value[:64]).hex()}
    if isinstance(value, Storage):
        return {"storage": value.key, "numel": value.numel}
    if isinstance(value, Global):
        return {"global": value.label}
    return {"opaque": type(value).__name__}


def flatten(value: Any) -> tuple[dict[str, Tensor], dict[str, Json], bool]:
    """Tensors by dotted name, plain values as a tree, and whether the whole tree was walked."""
    walker = _Flattener()
    plain, some = walker.visit(value, ())
    if not some:
        tree: dict[str, Json] = {}
    else:
        tree = plain if isinstance(plain, dict) else {"value": plain}
    return walker.tensors, tree, walker.complete
