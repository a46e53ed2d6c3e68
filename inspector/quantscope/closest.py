"""Names that a person probably meant, for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FEW_CHARACTERS = 240
"""All names there are, where none is close, if they fit in so many characters."""
MAX_NAMES = 20_000
_CUTOFF = 0.6


def closest(word: str, names: Iterable[str], n: int = 3) -> list[str]:
    """Up to `n` names, best first: those that hold the word as whole dotted parts, then as letters, then alike ones."""
    pool = list(dict.fromkeys(names))[:MAX_NAMES]
    wanted = word.strip().strip(".").casefold()
    if not wanted:
        return []
    dotted = [name for name in pool if f".{wanted}." in f".{name.casefold()}."]
    if dotted:
        return dotted[:n]
    within = [name for name in pool if wanted in name.casefold()]
    if within:
        return within[:n]
    return _alike(wanted, pool, n)


def _alike(wanted: str, pool: list[str], n: int) -> list[str]:
    """Names whose last parts, as many as the word has, or one more, are spelt alike."""
    parts = wanted.count(".") + 1
    by_tail: dict[str, list[str]] = {}
    for name in pool:
        folded = name.casefold().split(".")
        for tail in {".".join(folded[at]) for at in (slice(-parts, None), slice(-parts - 1, -1))}:
            if tail:
                by_tail.setdefault(tail, []).append(name)
    found: dict[str, None] = {}
    for tail in difflib.get_close_matches(wanted, by_tail, n=n, cutoff=_CUTOFF):
        found.update(dict.fromkeys(by_tail[tail]))
    return list(found)[:n]


def closest_hint(word: str, names: Iterable[str], otherwise: str = "", n: int = 3) -> str:
    """`closest: a, b`; where nothing is close all names, if they are few, or else another hint."""
    pool = list(dict.fromkeys(names))
    near = closest(word, pool, n)
    if near:
        return "closest: " + ", ".join(near)
    if pool and sum(len(name) + 2 for name in pool) <= FEW_CHARACTERS:
        return "there are: " + ", ".join(pool)
    return otherwise
