"""The minimal reproducer: a tensor's planes and the configs as a checkpoint that shows the same findings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from quantscope.checkpoint import Checkpoint
from quantscope.containers.records import EXTRACT_KEY, OpenedFile, StoredTensor
from quantscope.containers.source import ByteSource
from quantscope.errors import QuantscopeError, UnreadableError
from quantscope.model import Finding, LogicalTensor
from quantscope.report.container_writers import gguf_chunks, safetensors_chunks
from quantscope.report.selection import tensors_of
from quantscope.rules.names import role_of

MAX_CONFIG_BYTES = 8 << 20
SMALL_BYTES = 90_000
"""A copy below this is small enough for a ticket."""
MAX_MATES = 8
"""Other tensors of a finding that are tried beside the one, where it does not show alone."""

WriteFile = Callable[[str, Iterable[bytes]], None]
Rescan = Callable[[str], Sequence[Finding]]


class Reproducer(msgspec.Struct, frozen=True, kw_only=True):
    """What was written and what it shows."""

    folder: str
    files: tuple[str, ...]
    nbytes: int
    tensors: tuple[str, ...]
    shown: tuple[str, ...]
    """Ids of the original findings that the reproducer gives too."""
    not_shown: tuple[tuple[str, str], ...]
    """Findings that it does not give, each with the reason."""


def reproduce(
    checkpoint: Checkpoint,
    findings: Sequence[Finding],
    tensor: LogicalTensor,
    folder: str,
    *,
    write: WriteFile,
    rescan: Rescan,
) -> Reproducer:
    """Write the reproducer of one tensor and look whether it gives the tensor's findings.

    Args:
        checkpoint: the opened original.
        findings: findings of the original.
        tensor: the tensor that the ticket is about.
        folder: an empty or new folder.
        write: writes one file.
        rescan: findings of a path.

    Raises:
        UnreadableError: the folder is not empty, or a plane's bytes are not all there.
    """
    own = [f for f in findings if _about(f, tensor)]

    def attempt(tensors: Sequence[LogicalTensor]) -> tuple[list[str], list[Finding]]:
        files = write_files(checkpoint, tensors, folder, write)
        fresh = rescan(folder)
        return files, [f for f in own if not _shows(f, fresh, tensor)]

    chosen = [tensor]
    files, missing = attempt(chosen)
    if any(_may_show(f) for f in missing):
        chosen, missing = _with_mates(checkpoint, chosen, missing, attempt)
        files, missing = attempt(chosen)
    return Reproducer(
        folder=folder,
        files=tuple(files),
        nbytes=sum(os.path.getsize(os.path.join(folder, name)) for name in files),
        tensors=tuple(t.name for t in chosen),
        shown=tuple(f.id for f in own if f not in missing),
        not_shown=tuple((f.id, _reason(f)) for f in missing),
    )


Attempt = Callable[[Sequence[LogicalTensor]], tuple[list[str], list[Finding]]]


def _with_mates(
    checkpoint: Checkpoint,
    chosen: list[LogicalTensor],
    missing: list[Finding],
    attempt: Attempt,
) -> tuple[list[LogicalTensor], list[Finding]]:
    """The smallest set found with which more findings show; the tensor alone where none does."""
    tensor = chosen[0]
    best, least = chosen, missing
    for mates in _mates(checkpoint, missing, tensor):
        _, left = attempt([tensor, *mates])
        if len(left) > len(least) or len(left) == len(missing):
            continue
        found, left = _fewest([tensor, *mates], left, attempt)
        if len(left) < len(least) or _nbytes(found) < _nbytes(best):
            best, least = found, left
        if not any(_may_show(f) for f in least) and _nbytes(best) < SMALL_BYTES:
            break
    return best, least


def _fewest(
    chosen: list[LogicalTensor], least: list[Finding], attempt: Attempt
) -> tuple[list[LogicalTensor], list[Finding]]:
    """The set without every mate that is not needed, large ones tried first."""
    for mate in sorted(chosen[1:], key=lambda t: -_nbytes([t])):
        fewer = [t for t in chosen if t is not mate]
        _, left = attempt(fewer)
        if len(left) <= len(least):
            chosen, least = fewer, left
    return chosen, least


def _nbytes(tensors: Iterable[LogicalTensor]) -> int:
    return sum(plane.nbytes for tensor in tensors for plane in tensor.planes)


def write_files(
    checkpoint: Checkpoint, tensors: Sequence[LogicalTensor], folder: str, write: WriteFile
) -> list[str]:
    """Write the planes and configs; names of the files inside the folder."""
    stored = stored_of(checkpoint, tensors)
    first = checkpoint.file(stored[0].file_id)
    os.makedirs(folder, exist_ok=True)
    names = []
    if first.kind == "gguf":
        name = "reproducer.gguf"
        chunks = gguf_chunks(first, stored, checkpoint.sources)
    else:
        name = "model.safetensors"
        metadata = _metadata(checkpoint, first, stored)
        chunks = safetensors_chunks(stored, metadata, checkpoint.sources)
    write(os.path.join(folder, name), chunks)
    names.append(name)
    for config in checkpoint.opened.configs:
        if config.size > MAX_CONFIG_BYTES or os.path.basename(config.name) != config.name:
            continue
        with ByteSource(config.path) as source:
            write(os.path.join(folder, config.name), (source.read_at(0, source.size),))
        names.append(config.name)
    return names


def check_folder(folder: str) -> None:
    """Refuse a folder that holds something.

    Raises:
        UnreadableError: it is no folder, or not empty.
    """
    if os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise UnreadableError(
            f"{folder} is not an empty folder", hint="give a new folder", source=folder
        )


def stored_of(checkpoint: Checkpoint, tensors: Sequence[LogicalTensor]) -> list[StoredTensor]:
    """Stored tensors of logical ones with the companions of their modules, in file order.

    Raises:
        UnreadableError: the file does not hold all bytes of one of them.
    """
    names: dict[str, None] = {}
    modules = {tensor.module for tensor in tensors}
    for tensor in tensors:
        names.update(dict.fromkeys(tensor.stored_names()))
    for companion in checkpoint.grouping.companions:
        if companion.module in modules:
            names[companion.stored_name] = None
    found = [checkpoint.find_plain(name) for name in names]
    stored = [tensor for tensor in found if tensor is not None]
    for item in stored:
        end = item.byte_offset + item.nbytes
        if (
            not item.readable
            or end > checkpoint.file(item.file_id).size
            or item.strides is not None
        ):
            raise UnreadableError(
                f"{item.name} cannot be copied: its bytes do not all lie in the file, row by row",
                hint="the fault is in the container; attach the file's header instead",
                source=item.name,
            )
    if not stored:
        raise QuantscopeError("the tensor has no stored planes", source=tensors[0].name)
    return sorted(stored, key=lambda t: (t.file_id, t.byte_offset))


def _metadata(
    checkpoint: Checkpoint, file: OpenedFile, stored: Sequence[StoredTensor]
) -> dict[str, str]:
    """The file's own `__metadata__`, without entries about tensors that are left out, and a word that it is a cut."""
    kept = {tensor.name for tensor in stored}
    logical = {t.name for t in checkpoint.grouping.tensors if kept.intersection(t.stored_names())}
    named = {t.name for t in checkpoint.grouping.tensors} | set(checkpoint.index.tensors)
    own = {
        key: value
        for key, value in file.metadata.items()
        if isinstance(value, str) and (key not in named or key in kept or key in logical)
    }
    return {**own, EXTRACT_KEY: f"{len(kept)} of {len(checkpoint.index.tensors)} stored tensors"}


def _about(finding: Finding, tensor: LogicalTensor) -> bool:
    names = {tensor.name, tensor.module, *tensor.stored_names()}
    return bool(names.intersection(tensors_of(finding))) or finding.subject.stored in names


def _shows(finding: Finding, fresh: Sequence[Finding], tensor: LogicalTensor) -> bool:
    return any(
        f.code == finding.code and f.kind == finding.kind and _about(f, tensor) for f in fresh
    )


def _may_show(finding: Finding) -> bool:
    """Whether more tensors can bring a finding out; a container's own faults no copy keeps."""
    return not finding.code.startswith(("QC", "QH"))


def _mates(
    checkpoint: Checkpoint, missing: Sequence[Finding], tensor: LogicalTensor
) -> Iterator[list[LogicalTensor]]:
    """Sets to try: siblings of the module, the same module of other layers, and so on."""
    others = [t for t in checkpoint.grouping.tensors if t.name != tensor.name]
    parent = tensor.module.rpartition(".")[0]
    siblings = [t for t in others if t.module.rpartition(".")[0] == parent][:MAX_MATES]
    role = role_of(tensor.module)
    peers = [t for t in others if role_of(t.module) == role][:MAX_MATES]
    names = {name for finding in missing for name in tensors_of(finding)}
    members = [t for t in others if t.name in names][:MAX_MATES]
    small = sorted(others, key=lambda t: _nbytes([t]))[:MAX_MATES]
    for mates in (siblings, peers, members, [*siblings, *peers], small):
        if mates:
            yield mates


def _reason(finding: Finding) -> str:
    if finding.code.startswith(("QC", "QH")):
        return "the fault is in the container, which a copy does not keep"
    if finding.subject.tensor is None:
        return "it is about the checkpoint as a whole"
    return "it shows only together with the rest of the checkpoint"
