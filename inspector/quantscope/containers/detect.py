"""Opens whatever a path names: a file, a folder, an index, a part of a split set, a Hugging Face cache."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Literal

from quantscope.containers.assembly import Assembly, list_folder, stays_inside
from quantscope.containers.beside import check_beside
from quantscope.containers.configs import read_configs
from quantscope.containers.folder import (
    INDEX_NAME,
    Plan,
    plan_folder,
    set_key,
    set_names,
    shard_groups,
)
from quantscope.containers.index import match_index, open_shards, read_index, tensors_of_set
from quantscope.containers.issues import IssueLog
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.readers import kind_by_name
from quantscope.containers.records import ContainerIssue, Json, Opened, StoredTensor
from quantscope.containers.source import SourceSet, unreadable
from quantscope.containers.split import check_single, open_split, split_name
from quantscope.errors import NotACheckpointError, UnreadableError

_CACHE_PREFIXES = ("models--", "datasets--", "spaces--")


def open_path(path: str) -> tuple[Opened, SourceSet]:
    """Opens a path and reads headers and config files, no tensor data.

    Args:
        path: a file, a folder, a `*.safetensors.index.json`, one part of a split GGUF, a snapshot or the
            repository folder of a Hugging Face cache.

    Returns:
        What was found, and the pool from which the bytes of its files are read. The caller closes the pool.

    Raises:
        NotACheckpointError: nothing there is a container that any reader knows.
        UnreadableError: the path does not exist, may not be read, or is no file or folder.
    """
    where = os.path.expanduser(path)
    try:
        mode = os.stat(where).st_mode
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        return _Opening(path, where).folder()
    if not stat.S_ISREG(mode):
        raise UnreadableError(
            f"{path} is neither a regular file nor a folder",
            hint="give a file or a checkpoint folder",
            source=path,
        )
    return _Opening(path, os.path.dirname(where) or ".").file(os.path.basename(where))


class _Opening:
    """One call of `open_path`: collects what goes into `Opened`."""

    def __init__(self, path: str, root: str) -> None:
        self.path = path
        self.root = root
        self.assembly = Assembly(root)
        self.issues: list[ContainerIssue] = []
        self.log = IssueLog(os.path.basename(os.path.normpath(root)))
        self.index: Json = None

    def file(self, name: str) -> tuple[Opened, SourceSet]:
        """A single file, an index, or a part of a split set."""
        if INDEX_NAME.search(name):
            files = list_folder(self.root)[0]
            tensors = self._index(name, files)
            return self._opened("index", tensors, files)
        part = split_name(name)
        if part:
            files = list_folder(self.root)[0]
            tensors = open_split(self.assembly, part, files, self.log)
            return self._opened("split", tensors, {})
        parsed = self.assembly.add(name)
        if parsed is None:
            raise NotACheckpointError(
                f"{self.path} is no safetensors, GGUF or torch file",
                hint="give a weight file, its index, or the folder that holds it",
                source=self.path,
            )
        self._single_rules(parsed)
        beside: dict[str, int] = {}
        if parsed.file.kind != "gguf":
            # Config files beside a GGUF file say nothing about it.
            with suppress(UnreadableError):
                beside = list_folder(self.root)[0]
        return self._opened("file", parsed.tensors, beside)

    def folder(self) -> tuple[Opened, SourceSet]:
        """A checkpoint folder, or the repository folder of a cache."""
        self._enter_cache()
        files, folders, issues = list_folder(self.root)
        self.issues.extend(issues)
        plan = plan_folder(files)
        if plan.kind == "none":
            self._nothing_here(files, folders)
        self._outside_links(plan)
        if plan.kind == "index" and plan.index:
            tensors = self._index(plan.index, files)
            return self._opened("folder", tensors, files, plan)
        if plan.kind == "split":
            part = split_name(plan.files[0])
            if part:
                tensors = open_split(self.assembly, part, files, self.log)
                return self._opened("folder", tensors, files, plan)
        return self._opened("folder", self._set(plan, files), files, plan)

    def _set(self, plan: Plan, files: dict[str, int]) -> tuple[StoredTensor, ...]:
        names = plan.files
        if plan.kind == "undecided":
            names = self._decide(plan, files)
        parsed = [one for one in map(self.assembly.add, names) if one is not None]
        if len(parsed) == 1:
            self._single_rules(parsed[0])
        if len(parsed) > 1:
            message = f"{len(parsed)} files are taken as one set; there is no index"
            self.log.add("set-without-index", message, files=list(names))
        self._complete_rule(names)
        return tensors_of_set(parsed, self.log)

    def _decide(self, plan: Plan, files: dict[str, int]) -> tuple[str, ...]:
        """All files where no tensor name stands twice, else the largest."""
        trial = Assembly(self.root)
        seen: set[str] = set()
        for name in plan.files[:256]:
            parsed = trial.add(name)
            names = {tensor.name for tensor in parsed.tensors} if parsed else set()
            if seen & names:
                return (min(plan.files, key=lambda one: (-files[one], one)),)
            seen |= names
        return plan.files[:256]

    def _complete_rule(self, names: tuple[str, ...]) -> None:
        for group in shard_groups(dict.fromkeys(names, 0)):
            first = 0 if 0 in group.files else 1
            missing = [no for no in range(first, group.count + first) if no not in group.files]
            if missing and group.count <= 100_000:
                message = f"the names count {group.count} shards of {group.stem}, {len(missing)} are not there"
                self.log.add(
                    "set-incomplete",
                    message,
                    missing=missing[:1000],
                    count=group.count,
                    files=sorted(group.files.values()),
                )

    def _index(self, name: str, files: dict[str, int]) -> tuple[StoredTensor, ...]:
        """The shards of an index; falls back to files beside it where none of them is there."""
        log = IssueLog(name)
        index = read_index(self.root, name, log)
        self.index = index.raw
        shards = open_shards(self.assembly, index, log)
        tensors = match_index(index, shards, log)
        rest = {one: size for one, size in files.items() if one not in shards and one != name}
        if not shards:
            rest = {one: size for one, size in rest.items() if not INDEX_NAME.search(one)}
            plan = plan_folder(rest)
            if plan.kind in ("set", "undecided"):
                tensors = self._set(plan, rest)
        else:
            check_beside(self.root, index, shards, rest, log)
        self.issues.extend(log.done())
        if not self.assembly.parsed and not index.readable:
            raise NotACheckpointError(
                f"{self.path} has an index that cannot be read and no weights",
                hint=self.issues[0].message if self.issues else "",
                source=self.path,
            )
        return tensors

    def _single_rules(self, parsed: ParsedFile) -> None:
        if parsed.file.kind == "gguf":
            check_single(parsed, self.log)

    def _enter_cache(self) -> None:
        """From models--org--name to the snapshot that refs/main names."""
        base = os.path.basename(os.path.abspath(self.root))
        snapshots = os.path.join(self.root, "snapshots")
        if not base.startswith(_CACHE_PREFIXES) or not os.path.isdir(snapshots):
            return
        names = list(list_folder(snapshots)[1])
        if not names:
            raise NotACheckpointError(
                f"{self.path} is a cache folder without a snapshot",
                hint="download the model again",
                source=self.path,
            )
        chosen = self._main_revision()
        if chosen not in names:
            chosen = names[0]
            if len(names) > 1:
                message = f"{len(names)} snapshots and no refs/main: {chosen} is opened"
                self.log.add("snapshot-choice", message, snapshots=names)
        self.root = os.path.join(snapshots, chosen)
        self.assembly = Assembly(self.root)

    def _main_revision(self) -> str | None:
        path = os.path.join(self.root, "refs", "main")
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return None
            with open(path, "rb") as file:
                return file.read(200).decode("ascii", errors="replace").strip()
        except OSError:
            return None

    def _outside_links(self, plan: Plan) -> None:
        for name in plan.candidates:
            path = os.path.join(self.root, name)
            if os.path.islink(path) and not stays_inside(self.root, path):
                message = f"{name} is a link to a file outside of the folder"
                self.log.add("symlink-outside", message, file=name)

    def _nothing_here(self, files: dict[str, int], folders: tuple[str, ...]) -> None:
        holders = []
        for folder in folders[:100]:
            try:
                inner = list_folder(os.path.join(self.root, folder))[0]
            except UnreadableError:
                continue
            if any(kind_by_name(name) != "unknown" for name in inner):
                holders.append(folder)
        message = f"{self.path} holds no safetensors, GGUF or torch file"
        hint = "give the folder that holds the weights"
        if not files and not folders:
            message = f"{self.path} is an empty folder"
        if holders:
            more = f" and {len(holders) - 5} more" if len(holders) > 5 else ""
            hint = (
                f"weights lie in subfolders, which are not entered: {', '.join(holders[:5])}{more}"
            )
        raise NotACheckpointError(message, hint=hint, source=self.path)

    def _opened(
        self,
        kind: Literal["file", "folder", "index", "split"],
        tensors: tuple[StoredTensor, ...],
        files: dict[str, int],
        plan: Plan | None = None,
    ) -> tuple[Opened, SourceSet]:
        configs, config_issues = read_configs(self.root, files)
        parsed_names = {one.file.name for one in self.assembly.parsed}
        variants: tuple[str, ...] = ()
        if plan:
            others = [name for name in plan.candidates if name not in parsed_names]
            opened_sets = {set_key(name) for name in parsed_names}
            others = [name for name in others if set_key(name) not in opened_sets]
            indexes = [name for name in files if INDEX_NAME.search(name) and name != plan.index]
            variants = (*set_names(others), *indexes)
        opened = Opened(
            path=self.path,
            root=self.root,
            kind=kind,
            files=self.assembly.files,
            tensors=tensors,
            configs=configs,
            issues=(*self.assembly.issues, *self.issues, *self.log.done(), *config_issues),
            variants=variants,
            index=self.index,
            revision=self._revision(),
        )
        return opened, self.assembly.sources()

    def _revision(self) -> str | None:
        parent, name = os.path.split(os.path.abspath(self.root))
        return name if os.path.basename(parent) == "snapshots" else None
