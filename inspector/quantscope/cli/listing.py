"""`quantscope list PATH`: stored and logical tensors as a plain table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quantscope.cli import output, params, running, tables
from quantscope.cli.diagnostics import ExitCode

if TYPE_CHECKING:
    from quantscope.containers.records import StoredTensor
    from quantscope.session.inspection import Inspection, TensorState

HEAD = ("what", "name", "of", "family", "dtype", "shape", "bytes", "file", "byte_offset")

TEXT_HEAD = ("name", "dtype", "shape", "bytes", "where")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a logical tensor, or a stored one with the logical tensor that it belongs to."""

    what: str
    """quantized, plane, companion, orphan, plain or unrecognised."""
    name: str
    of: str = ""
    family: str = ""
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    file: str
    byte_offset: int | None

    def cells(self) -> tuple[Any, ...]:
        """Cells of a table line."""
        shape = str(list(self.shape)).replace(" ", "")
        offset = "" if self.byte_offset is None else self.byte_offset
        return (
            self.what,
            self.name,
            self.of,
            self.family,
            self.dtype,
            shape,
            self.bytes,
            self.file,
            offset,
        )

    def text(self, *, brief: bool, one_file: bool) -> tuple[Any, ...]:
        """Cells for a person: what belongs to a logical tensor stands further in, below it.

        Args:
            brief: a plane's own part of its name is enough.
            one_file: the file need not be named.
        """
        shape = str(list(self.shape)).replace(" ", "")
        if self.what == "quantized":
            return self.name, self.dtype, shape, self.bytes, self.family
        name = self.name
        if self.what == "plane":
            module = self.of.removesuffix("weight")
            name = "  " + (name.removeprefix(module) if brief else name)
        where = "" if one_file else self.file
        if self.byte_offset is not None:
            where = f"{where} @{self.byte_offset}".strip()
        said = "" if self.what == "plane" else f"{self.what} "
        return name, self.dtype, shape, self.bytes, said + where


@click.command("list", short_help="Stored and logical tensors as a plain table.")
@params.path_argument
@click.option("--tsv", "as_tsv", is_flag=True, help="Tab-separated, for scripts.")
@click.option(
    "--json", "as_json", type=click.Choice(["-"]), metavar="-", help="One JSON document to stdout."
)
def command(path: str, as_tsv: bool, as_json: str | None) -> int:
    """List every logical tensor of PATH with its planes, then every other stored tensor.

    Only headers are read.
    """
    from quantscope.session.pipeline import Scope, inspect

    with running.opened(path) as checkpoint:
        inspection = inspect(checkpoint, Scope(mode="headers"))
        rows = list(rows_of(inspection))
    if as_json is not None:
        output.write_json({"tensors": rows})
    elif as_tsv:
        output.write_text("\n".join(tables.tsv(HEAD, [row.cells() for row in rows])))
    else:
        width = tables.terminal_columns()
        one_file = len({row.file for row in rows if row.file}) < 2
        lines = [row.text(brief=width is not None, one_file=one_file) for row in rows]
        output.write_text("\n".join(tables.columns(TEXT_HEAD, lines, width, first=(4,))))
    return ExitCode.OK


def rows_of(inspection: Inspection) -> Iterator[Row]:
    """Logical tensors each followed by its stored ones, then the rest in the order of the file."""
    checkpoint = inspection.checkpoint
    for state in inspection.states:
        yield _logical(state, inspection)
        for name in state.tensor.stored_names():
            stored = checkpoint.find_plain(name)
            if stored is not None:
                yield _stored("plane", stored, inspection, of=state.tensor.name)
    grouping = checkpoint.grouping
    what = {companion.stored_name: "companion" for companion in grouping.companions}
    of = {companion.stored_name: companion.module for companion in grouping.companions}
    what |= {orphan.stored_name: "orphan" for orphan in grouping.orphans}
    what |= {tensor.name: "plain" for tensor in grouping.plain}
    what |= {tensor.name: "unrecognised" for tensor in grouping.unrecognised}
    for stored in checkpoint.opened.tensors:
        if stored.name in what:
            yield _stored(what[stored.name], stored, inspection, of=of.get(stored.name, ""))


def _logical(state: TensorState, inspection: Inspection) -> Row:
    tensor, reading = state.tensor, state.reading
    first = tensor.planes[0] if tensor.planes and tensor.planes[0].spans else None
    return Row(
        what="quantized",
        name=tensor.name,
        family=tensor.word,
        dtype=reading.element if reading is not None else "?",
        shape=reading.shape if reading is not None else tensor.shape,
        bytes=sum(plane.nbytes for plane in tensor.planes),
        file=inspection.checkpoint.file(first.file_id).name if first is not None else "",
        byte_offset=None,
    )


def _stored(what: str, stored: StoredTensor, inspection: Inspection, *, of: str) -> Row:
    return Row(
        what=what,
        name=stored.name,
        of=of,
        dtype=stored.dtype,
        shape=stored.shape,
        bytes=stored.nbytes,
        file=inspection.checkpoint.file(stored.file_id).name,
        byte_offset=stored.byte_offset,
    )
