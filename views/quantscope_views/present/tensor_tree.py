"""Modules as a tree with counts, flattened to the lines that are open."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from quantscope_views.present.tensor_table import natural_key

OPEN_WHEN_FEW = 200
"""A filter that leaves at most this many tensors opens every branch that holds one."""


class TreeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One visible line: a branch (`node` >= 0) or a tensor (`position` >= 0)."""

    depth: int
    label: str
    node: int = -1
    position: int = -1
    count: int = 0
    """Tensors of the branch that the filter leaves."""
    total: int = 0
    is_open: bool = False
    worst: int = 0
    """Rank of the worst match in the branch."""
    nbytes: int = 0


class TensorTree:
    """Branches over tensors in natural order; each branch covers a run of that order.

    Args:
        names: tensor names by table position.
    """

    def __init__(self, names: Sequence[str]) -> None:
        order = sorted(range(len(names)), key=lambda i: natural_key(names[i]))
        self.order = np.array(order, dtype=np.int64)
        self._labels: list[str] = []
        self._depth: list[int] = []
        self._first: list[int] = []
        self._last: list[int] = []
        self._parent: list[int] = []
        self._children: list[list[int]] = []
        self._leaf_depth = np.zeros(len(names), dtype=np.int32)
        self._leaf_node = np.full(len(names), -1, dtype=np.int64)
        self._build(names, order)
        self._names = names

    def _build(self, names: Sequence[str], order: Sequence[int]) -> None:
        stack: list[int] = []
        path: list[str] = []
        for at, position in enumerate(order):
            parts = names[position].split(".")[:-1]
            keep = 0
            while keep < len(path) and keep < len(parts) and path[keep] == parts[keep]:
                keep += 1
            for node in stack[keep:]:
                self._last[node] = at
            del stack[keep:], path[keep:]
            for part in parts[keep:]:
                node = self._add(part, stack[-1] if stack else -1, len(stack), at)
                stack.append(node)
                path.append(part)
            self._leaf_depth[at] = len(stack)
            self._leaf_node[at] = stack[-1] if stack else -1
        for node in stack:
            self._last[node] = len(order)

    def _add(self, label: str, parent: int, depth: int, first: int) -> int:
        node = len(self._labels)
        self._labels.append(label)
        self._depth.append(depth)
        self._first.append(first)
        self._last.append(first)
        self._parent.append(parent)
        self._children.append([])
        if parent >= 0:
            self._children[parent].append(node)
        return node

    def __len__(self) -> int:
        return len(self._labels)

    def node_of(self, position: int) -> list[int]:
        """Branches above a tensor, outermost first."""
        at = int(np.nonzero(self.order == position)[0][0])
        node = int(self._leaf_node[at])
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self._parent[node]
        return path[::-1]

    def first_open(self) -> set[int]:
        """Branches open at the start: chains of single children from the root."""
        opened: set[int] = set()
        roots = [node for node, parent in enumerate(self._parent) if parent < 0]
        level = roots if len(roots) == 1 else []
        while level:
            opened.update(level)
            children = self._children[level[0]]
            level = children if len(children) == 1 else []
        return opened

    def lines(
        self,
        opened: set[int],
        kept: NDArray[np.bool_],
        match: NDArray[np.int8],
        nbytes: NDArray[np.int64],
    ) -> list[TreeLine]:
        """Visible lines.

        Args:
            opened: open branches.
            kept: by table position, whether the filter leaves the tensor.
            match: rank of the match by table position.
            nbytes: stored bytes by table position.
        """
        shown = kept[self.order]
        counts = np.concatenate([[0], np.cumsum(shown)])
        sizes = np.concatenate([[0], np.cumsum(np.where(shown, nbytes[self.order], 0))])
        ranks = np.where(shown, match[self.order], 127).astype(np.int8)
        left = int(counts[-1])
        everything = left < len(self.order) and left <= OPEN_WHEN_FEW
        lines: list[TreeLine] = []
        self._walk(-1, 0, len(self.order), opened, everything, shown, counts, sizes, ranks, lines)
        return lines

    def _walk(
        self,
        node: int,
        first: int,
        last: int,
        opened: set[int],
        everything: bool,
        shown: NDArray[np.bool_],
        counts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        ranks: NDArray[np.int8],
        lines: list[TreeLine],
    ) -> None:
        """Append the lines below a branch, iteratively: children and own tensors in natural order."""
        pending: list[tuple[int, int]] = [(node, first)]
        ends = {node: last}
        while pending:
            branch, at = pending.pop()
            end = ends[branch]
            while at < end:
                child = self._child_at(branch, at)
                if child is None:
                    if shown[at]:
                        lines.append(
                            TreeLine(
                                depth=int(self._leaf_depth[at]),
                                label=self._names[int(self.order[at])].rpartition(".")[2],
                                position=int(self.order[at]),
                                count=1,
                                total=1,
                            )
                        )
                    at += 1
                    continue
                start, stop = self._first[child], self._last[child]
                inside = int(counts[stop] - counts[start])
                if inside:
                    is_open = everything or child in opened
                    lines.append(
                        TreeLine(
                            depth=self._depth[child],
                            label=self._labels[child],
                            node=child,
                            count=inside,
                            total=stop - start,
                            is_open=is_open,
                            worst=int(ranks[start:stop].min()),
                            nbytes=int(sizes[stop] - sizes[start]),
                        )
                    )
                    if is_open:
                        pending.append((branch, stop))
                        ends[child] = stop
                        pending.append((child, start))
                        break
                at = stop
            else:
                continue

    def _child_at(self, branch: int, at: int) -> int | None:
        """The child branch that begins at a position of the order, or None where a tensor stands."""
        node = int(self._leaf_node[at])
        while node >= 0 and self._parent[node] != branch:
            node = self._parent[node]
        return node if node >= 0 and self._parent[node] == branch else None
