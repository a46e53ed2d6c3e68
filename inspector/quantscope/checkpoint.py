"""A checkpoint: its containers and config files, opened for reading, and its logical tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import TracebackType

from quantscope.closest import closest_hint
from quantscope.containers.detect import open_path
from quantscope.containers.records import Opened, OpenedFile, StoredTensor
from quantscope.containers.source import SourceSet
from quantscope.decode.ledger import ReadLedger
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import NoSuchTensorError
from quantscope.families.declarations import Declarations
from quantscope.families.grouping import Grouping, group_tensors
from quantscope.families.guard import guarded
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Family
from quantscope.families.registry import FamilyRegistry
from quantscope.model import LogicalTensor


class Checkpoint:
    """An opened path. Use as a context manager; nothing is ever written to it."""

    def __init__(self, opened: Opened, sources: SourceSet, registry: FamilyRegistry) -> None:
        self.opened = opened
        self.sources = sources
        self.registry = registry
        self._families: dict[str, Family] = {}

    @classmethod
    def open(cls, path: str, registry: FamilyRegistry | None = None) -> Checkpoint:
        """Open a file, folder, index or part of a split set; only headers and config files are read.

        Raises:
            NotACheckpointError: nothing there is a container.
            UnreadableError: the path cannot be opened at all.
        """
        opened, sources = open_path(path)
        return cls(opened, sources, registry or FamilyRegistry.from_entry_points())

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every file."""
        self.sources.close()

    @cached_property
    def index(self) -> TensorIndex:
        """Stored tensors by name and module."""
        return TensorIndex(
            self.opened.tensors,
            self.opened.files,
            lambda stored: self.sources[stored.file_id].read_at(stored.byte_offset, stored.nbytes),
        )

    @cached_property
    def declarations(self) -> Declarations:
        """Every declaration with its place."""
        return Declarations(self.opened.configs, self.opened.files)

    @cached_property
    def grouping(self) -> Grouping:
        """Logical tensors, companions, orphans, plain and unrecognised tensors."""
        return group_tensors(self.index, self.declarations, self.registry)

    @cached_property
    def _by_name(self) -> dict[str, LogicalTensor]:
        names: dict[str, LogicalTensor] = {}
        for tensor in self.grouping.tensors:
            for stored in tensor.stored_names():
                names.setdefault(stored, tensor)
        for tensor in self.grouping.tensors:
            names.setdefault(tensor.module, tensor)
        for tensor in self.grouping.tensors:
            names[tensor.name] = tensor
        return names

    def family(self, tensor: LogicalTensor) -> Family:
        """The family that claimed a tensor; what it raises is a typed error that names it."""
        family = self._families.get(tensor.family)
        if family is None:
            family = self._families[tensor.family] = guarded(self.registry[tensor.family])
        return family

    def file(self, file_id: int) -> OpenedFile:
        """An opened file by id."""
        return self.opened.files[file_id]

    def find(self, name: str) -> LogicalTensor:
        """A logical tensor by its name, its module or the stored name of one of its planes.

        Raises:
            NoSuchTensorError: none has it; the hint names the closest.
        """
        found = self._by_name.get(name)
        if found is not None:
            return found
        if name in self.index.tensors:
            raise NoSuchTensorError(
                f"{name} is stored unquantized",
                hint="list PATH shows quantized tensors",
                source=name,
            )
        raise NoSuchTensorError(
            f"no tensor is called {name}", hint=self._closest(name), source=name
        )

    def _closest(self, name: str) -> str:
        """Logical names that may be meant; a module or a stored name only where no logical one is close."""
        logical = [tensor.name for tensor in self.grouping.tensors]
        hint = closest_hint(name, logical) or closest_hint(name, self._by_name)
        return hint or closest_hint(
            name, self.index.tensors, "`quantscope list PATH` shows all names"
        )

    def find_plain(self, name: str) -> StoredTensor | None:
        """A plain stored tensor by name."""
        return self.index.tensors.get(name)

    def reader(
        self, ledger: ReadLedger | None = None, cancelled: Callable[[], bool] | None = None
    ) -> PlaneReader:
        """A plane reader over this checkpoint's files."""
        return PlaneReader(self.sources, ledger, cancelled)
