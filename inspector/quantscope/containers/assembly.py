"""Collects the files of one checkpoint while it is opened, and keeps names inside its folder."""

from __future__ import annotations

import os
import re

from quantscope.containers.issues import IssueLog
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.readers import read_file, unreadable_file
from quantscope.containers.records import ContainerIssue, OpenedFile, StoredTensor
from quantscope.containers.source import ByteSource, SourceSet, SourceSpec
from quantscope.errors import QuantscopeError

_DRIVE = re.compile(r"^[A-Za-z]:")
MAX_FOLDER_NAMES = 20_000


class Assembly:
    """Files, tensors and issues of a checkpoint, in the order in which they were added."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.parsed: list[ParsedFile] = []
        self.issues: list[ContainerIssue] = []
        self._specs: list[SourceSpec] = []

    def add(self, name: str) -> ParsedFile | None:
        """Opens `root/name` and reads its header; None where it is no container.

        A file that the system refuses becomes a record with an issue.
        """
        file_id = len(self.parsed)
        path = os.path.join(self.root, name)
        try:
            with ByteSource(path, name=name) as source:
                parsed = read_file(source, file_id)
                spec = source.spec(file_id)
        except QuantscopeError as error:
            parsed, spec = unreadable_file(name, path, file_id, error), None
        if parsed is None:
            return None
        self.parsed.append(parsed)
        self.issues.extend(parsed.issues)
        if spec is not None:
            self._specs.append(spec)
        return parsed

    @property
    def files(self) -> tuple[OpenedFile, ...]:
        """All files, in order of their ids."""
        return tuple(parsed.file for parsed in self.parsed)

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """All tensors of all files; a name may stand twice."""
        return tuple(tensor for parsed in self.parsed for tensor in parsed.tensors)

    def sources(self) -> SourceSet:
        """A pool over every file that could be opened."""
        return SourceSet(self._specs)


def unsafe_name(name: str) -> str | None:
    """Why a file name from an index may not be followed, or None."""
    if not name:
        return "is empty"
    if "\0" in name:
        return "holds a zero byte"
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        return "is an absolute path"
    if ".." in re.split(r"[/\\]", name):
        return "climbs out of the folder with .."
    if "\\" in name:
        return "holds a backslash"
    return None


def stays_inside(root: str, path: str) -> bool:
    """True where `path`, all links followed, lies below `root`.

    Links from a snapshot of a Hugging Face cache (models--org--name/snapshots/hash/file) into the blobs of the
    same repository count as inside (huggingface_hub: file_download.py).
    """
    real_root, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([real_root, real]) == real_root:
        return True
    folder, levels = real_root, 0
    while levels < 4 and os.path.dirname(folder) != folder:
        parent = os.path.dirname(folder)
        if os.path.basename(parent) == "snapshots":
            return os.path.dirname(real) == os.path.join(os.path.dirname(parent), "blobs")
        folder, levels = parent, levels + 1
    return False


def list_folder(root: str) -> tuple[dict[str, int], tuple[str, ...], tuple[ContainerIssue, ...]]:
    """Files of a folder with their sizes, its subfolders, and what was odd about them.

    Anything that is neither a regular file nor a folder nor a link to one is listed with size -1.

    Raises:
        UnreadableError: the folder cannot be listed.
    """
    from quantscope.containers.source import unreadable

    log = IssueLog(os.path.basename(root) or root)
    files: dict[str, int] = {}
    folders: list[str] = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if len(files) + len(folders) >= MAX_FOLDER_NAMES:
                    message = (
                        f"the folder holds more than {MAX_FOLDER_NAMES} names; the rest is not seen"
                    )
                    log.add("folder-over-limit", message)
                    break
                try:
                    if entry.is_dir():
                        folders.append(entry.name)
                    else:
                        files[entry.name] = entry.stat().st_size if entry.is_file() else -1
                except OSError:
                    files[entry.name] = -1
    except OSError as error:
        raise unreadable(root, error) from error
    ordered = {name: files[name] for name in sorted(files)}
    return ordered, tuple(sorted(folders)), log.done()
