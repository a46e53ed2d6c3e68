"""Tensors: every logical tensor, as a tree or flat, filtered as you type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
from textual import events, on
from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from quantscope_views.bindings import bindings_for
from quantscope_views.lines import Line, line
from quantscope_views.place import Place
from quantscope_views.present.states import loading_state, no_match_state
from quantscope_views.present.tensor_rows import (
    COLUMNS,
    FlatRows,
    TreeRows,
    status_line,
)
from quantscope_views.present.tensor_table import SORT_KEYS, TensorTable
from quantscope_views.present.tensor_tree import TensorTree, TreeLine
from quantscope_views.screens.base import BaseScreen
from quantscope_views.widgets.lines_view import LinesView
from quantscope_views.widgets.state_pane import StatePane
from quantscope_views.widgets.virtual_table import VirtualTable


class FilterBox(Input):
    """The filter; Enter and Down go to the table, Escape clears it and then goes back."""

    help_topic = "tensors"

    async def _on_key(self, event: events.Key) -> None:
        if event.key in ("down", "enter"):
            event.stop()
            event.prevent_default()
            self.screen.query_one(VirtualTable).focus()
        elif event.key == "escape":
            event.stop()
            event.prevent_default()
            self.value = ""
            self.screen.query_one(VirtualTable).focus()
        else:
            await super()._on_key(event)


class TensorsScreen(BaseScreen):
    """The table of tensors.

    Args:
        members: names that the table is limited to; all by default.
    """

    name_in_tabs = "tensors"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for("tensors")]

    def __init__(self, members: Sequence[str] = (), finding: str | None = None) -> None:
        super().__init__()
        self._members = tuple(members)
        self._finding = finding
        self._is_tree = False
        self._sort = "file"
        self._reverse = False
        self._tree: TensorTree | None = None
        self._tree_of: TensorTable | None = None
        self._opened: set[int] = set()
        self._within: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        self._rows: FlatRows | TreeRows | None = None
        self._last_filter: tuple[str, np.ndarray[tuple[int], np.dtype[np.int64]]] | None = None

    def compose_body(self) -> Iterable[Widget]:
        """A status line, the filter, the table; or a state."""
        yield LinesView(id="tensors-status", cursor_on="never", can_focus=False)
        yield FilterBox(placeholder="filter: name, format, match", id="filter", compact=True)
        yield StatePane(id="state")
        yield VirtualTable(COLUMNS, id="table")

    def on_mount(self) -> None:
        """The table has focus first."""
        super().on_mount()
        self.query_one("#table", VirtualTable).focus()

    @property
    def filter_text(self) -> str:
        """The filter as typed."""
        return self.query_one("#filter", FilterBox).value

    def workspace_changed(self, what: str) -> None:
        """New rows, or newer values in them."""
        self.refresh_top()
        table = self.workspace.table
        if table is None:
            if what != "job":
                self._show_state()
            return
        in_place = isinstance(self._rows, FlatRows) and self._sort == "file"
        if what in ("rows", "judged") and in_place:
            self.query_one("#table", VirtualTable).refresh_rows()
            self._show_status()
            return
        if what == "job":
            return
        self._last_filter = None
        self._within = self._limited(table)
        self._show_rows()

    def _limited(self, table: TensorTable) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
        if not self._members:
            return None
        wanted = [table.position[name] for name in self._members if name in table.position]
        return np.array(sorted(wanted), dtype=np.int64)

    def _show_state(self) -> None:
        state = self.query_one("#state", StatePane)
        trouble = self.workspace.trouble()
        state.display = True
        self.query_one("#table").display = False
        state.show_state(
            trouble
            if trouble is not None
            else loading_state("grouping stored tensors into logical ones", None)
        )

    def _matching(self, table: TensorTable) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Positions that the filter leaves; a longer filter only looks through the last result."""
        text = self.filter_text
        within = self._within
        if self._last_filter is not None:
            before, found = self._last_filter
            if before and text.startswith(before) and " " not in text[len(before) :]:
                within = found
        found = table.matching(text, within)
        self._last_filter = (text, found)
        return found

    def _show_rows(self, cursor: int | None = None) -> None:
        table = self.workspace.table
        if table is None:
            return
        view = self.query_one("#table", VirtualTable)
        state = self.query_one("#state", StatePane)
        found = self._matching(table)
        if not len(found) and self.filter_text:
            state.display, view.display = True, False
            state.show_state(no_match_state(self.filter_text, len(table)))
            self._rows = FlatRows(table, found, self.ascii_only)
            self._show_status()
            return
        state.display, view.display = False, True
        view.sorted_by = "" if self._is_tree else self._sort
        if self._is_tree and self._tree is not None and self._tree_of is table:
            kept = np.zeros(len(table), dtype=np.bool_)
            kept[found] = True
            lines = self._tree.lines(self._opened, kept, table.match, table.nbytes)
            self._rows = TreeRows(table, lines, self.ascii_only)
        else:
            order = table.ordered(found, self._sort, self._reverse)
            self._rows = FlatRows(table, order, self.ascii_only)
        view.show(self._rows, cursor)
        self._show_status()

    def _show_status(self) -> None:
        table = self.workspace.table
        if table is None or self._rows is None:
            return
        shown = self._rows.tensor_count
        limited = len(self._within) if self._within is not None else None
        self.query_one("#tensors-status", LinesView).show(
            lambda width: [
                self._status(table, shown, limited, width),
            ]
        )

    def _status(self, table: TensorTable, shown: int, limited: int | None, width: int) -> Line:
        text = status_line(
            shown,
            len(table),
            examined=table.examined,
            sort="tree" if self._is_tree else self._sort,
            members=limited,
        )
        return line((f" {text}", "dim" if limited is None else "check"))

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show_rows(cursor=0)

    @on(VirtualTable.Chosen)
    def _row_chosen(self, event: VirtualTable.Chosen) -> None:
        event.stop()
        rows = self._rows
        if isinstance(rows, TreeRows) and rows.lines[event.row].node >= 0:
            self._fold(rows.lines[event.row], not rows.lines[event.row].is_open)
            return
        if rows is None:
            return
        name = rows.tensor_name(event.row)
        if name is not None:
            self.qapp.open_tensor(name, finding=self._finding)

    @on(VirtualTable.Folded)
    def _row_folded(self, event: VirtualTable.Folded) -> None:
        event.stop()
        rows = self._rows
        if isinstance(rows, TreeRows):
            found = rows.lines[event.row]
            if found.node >= 0:
                self._fold(found, event.open_it)

    def _fold(self, branch: TreeLine, open_it: bool) -> None:
        if open_it:
            self._opened.add(branch.node)
        else:
            self._opened.discard(branch.node)
        self._show_rows()

    def action_focus_filter(self) -> None:
        """Put the cursor into the filter."""
        self.query_one("#filter", FilterBox).focus()

    def action_clear(self) -> None:
        """Show every tensor again."""
        self._members = ()
        self._within = None
        self._last_filter = None
        self.query_one("#filter", FilterBox).value = ""
        self._show_rows(cursor=0)
        self.query_one("#table", VirtualTable).focus()

    def action_tree(self) -> None:
        """Tree by module, or flat."""
        table = self.workspace.table
        if table is None:
            return
        self._is_tree = not self._is_tree
        if self._is_tree and self._tree_of is not table:
            names = [row.name for row in table.rows]
            self.qapp.bridge.small("tree", lambda _: (table, TensorTree(names)))
            return
        self._show_rows(cursor=0)

    def take_result(self, key: str, result: object) -> None:
        """The tree was built."""
        if key != "tree" or not isinstance(result, tuple):
            return
        table, tree = result
        if table is self.workspace.table:
            self._tree, self._tree_of = tree, table
            self._opened = tree.first_open()
            self._last_filter = None
            self._show_rows(cursor=0)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._is_tree = False
        self._sort = SORT_KEYS[(SORT_KEYS.index(self._sort) + 1) % len(SORT_KEYS)]
        self._show_rows(cursor=0)

    def action_reverse(self) -> None:
        """Turn the order round."""
        self._reverse = not self._reverse
        self._show_rows(cursor=0)

    def offers(self, action_id: str) -> bool:
        """Nothing is sorted or filtered before names are known."""
        if self.workspace.table is None and action_id.startswith("tensors."):
            return False
        return super().offers(action_id)

    def place(self) -> Place:
        """The tensor under the cursor."""
        rows = self._rows
        name = None
        if rows is not None and len(rows):
            name = rows.tensor_name(self.query_one("#table", VirtualTable).cursor)
        return Place(screen="tensors", tensor=name, members=self._members)
