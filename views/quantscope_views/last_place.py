"""The last place in a checkpoint, kept in the user's state folder; worthless once the files changed."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quantscope_views.place import Place

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint

VERSION = 1
THEME_FILE = "theme"


class LastPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One saved session."""

    version: int
    path: str
    fingerprint: str
    place: Place
    theme: str = ""


def fingerprint_of(checkpoint: Checkpoint) -> str:
    """One digest over the fingerprints of all files."""
    text = "\n".join(f"{file.name} {file.fingerprint}" for file in checkpoint.opened.files)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def sessions_folder() -> Path:
    """Where sessions are kept."""
    from platformdirs import user_state_dir

    return Path(user_state_dir("quantscope")) / "sessions"


def save_place(folder: Path, checkpoint: Checkpoint, place: Place, theme: str) -> None:
    """Write a session atomically; a folder that cannot be written is no reason to fail."""
    fingerprint = fingerprint_of(checkpoint)
    saved = LastPlace(
        version=VERSION,
        path=os.path.abspath(checkpoint.opened.path),
        fingerprint=fingerprint,
        place=place,
        theme=theme,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
        with os.fdopen(handle, "wb") as stream:
            stream.write(msgspec.json.encode(saved))
        os.replace(name, folder / f"{fingerprint}.json")
    except (OSError, UnicodeEncodeError):
        return


def load_place(folder: Path, checkpoint: Checkpoint) -> LastPlace | None:
    """The saved session of exactly these files, or None."""
    fingerprint = fingerprint_of(checkpoint)
    try:
        found = msgspec.json.decode((folder / f"{fingerprint}.json").read_bytes(), type=LastPlace)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.version == VERSION and found.fingerprint == fingerprint else None


def save_theme(folder: Path, name: str) -> None:
    """Keep the theme that a person chose, for every checkpoint."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / THEME_FILE).write_text(name, encoding="utf-8")
    except OSError:
        return


def load_theme(folder: Path) -> str:
    """The theme that a person chose last; empty where there is none."""
    try:
        return (folder / THEME_FILE).read_text(encoding="utf-8")[:100].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def place_words(place: Place) -> str:
    """A place in few words."""
    if place.tensor is None:
        return place.screen
    tab = f" {place.tab}" if place.tab else ""
    at = f" {place.at[0]},{place.at[1]}" if place.at else ""
    return f"{place.tensor}{tab}{at}"


def recent_paths(folder: Path, limit: int = 12) -> list[str]:
    """Paths of the newest sessions, newest first, each once; those that are gone are left out."""
    try:
        files = sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_mtime)
    except OSError:
        return []
    found: dict[str, None] = {}
    for file in files[: 4 * limit]:
        try:
            saved = msgspec.json.decode(file.read_bytes(), type=LastPlace)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if os.path.isabs(saved.path) and os.path.exists(saved.path):
            found[saved.path] = None
    return list(found)[:limit]
