"""A person's own keys: `keymap.toml` in the user config folder, ids of the registry to keys."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from quantscope_views.actions import ACTIONS

MAX_KEYMAP_BYTES = 1 << 20


class Keymap(msgspec.Struct, frozen=True, kw_only=True):
    """Keys by action id, and what in the file could not be used."""

    keys: dict[str, str] = {}
    problems: tuple[str, ...] = ()


def keymap_path() -> Path:
    """Where the keymap is looked for."""
    from platformdirs import user_config_dir

    return Path(user_config_dir("quantscope")) / "keymap.toml"


def read_keymap(path: Path) -> Keymap:
    """Read a keymap; anything wrong becomes a problem to show, never an error."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_KEYMAP_BYTES:
            return Keymap()
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        return Keymap(problems=(f"keymap {path.name} not used: {problem}",))
    known = {action.id for action in ACTIONS}
    keys: dict[str, str] = {}
    problems: list[str] = []
    for action_id, value in table.items():
        if action_id not in known:
            problems.append(f"keymap: no action is called {action_id}")
        elif not isinstance(value, str) or not value.strip():
            problems.append(f"keymap: {action_id} needs a key as text")
        else:
            keys[action_id] = value
    return Keymap(keys=keys, problems=tuple(problems))
