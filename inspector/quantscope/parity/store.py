"""Finished results of a run over a checkpoint, kept so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import msgspec

from quantscope.parity.model import ParityResult, Settings


class ResultStore:
    """One file of results, one JSON document a line, for a checkpoint, a backend and settings.

    A result counts again only where its fingerprint is that of the bytes now in the checkpoint.

    Args:
        folder: where files are kept; the user's state folder by default.
        path: the checkpoint as it was given.
        backend: backend as it was asked for.
        settings: settings of the run.
    """

    def __init__(
        self, path: str, backend: str, settings: Settings, folder: Path | None = None
    ) -> None:
        key = json.dumps(
            [os.path.realpath(path), backend, msgspec.to_builtins(settings)], sort_keys=True
        )
        name = hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).hexdigest()[:32]
        self.file = (folder or default_folder()) / f"{name}.jsonl"

    def load(self) -> dict[str, ParityResult]:
        """Executed results by tensor name; a damaged line is left out."""
        found: dict[str, ParityResult] = {}
        try:
            lines = self.file.read_bytes().splitlines()
        except OSError:
            return found
        for line in lines:
            try:
                result = msgspec.json.decode(line, type=ParityResult)
            except msgspec.MsgspecError:
                continue
            if result.status == "executed":
                found[result.tensor] = result
        return found

    def start(self) -> None:
        """Begin an empty file."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(b"")

    def add(self, result: ParityResult) -> None:
        """Append one result; a folder that cannot be written keeps nothing and disturbs nothing."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab") as stream:
                stream.write(msgspec.json.encode(result) + b"\n")
        except OSError:
            return


def default_folder() -> Path:
    """Folder of kept results: `QUANTSCOPE_STATE`, or the platform's state folder."""
    root = os.environ.get("QUANTSCOPE_STATE")
    if root:
        return Path(root) / "parity"
    import platformdirs

    return Path(platformdirs.user_state_dir("quantscope")) / "parity"
