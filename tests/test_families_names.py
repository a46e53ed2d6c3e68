"""Ignore and target lists: the prepared list answers as the plain rule does, entry by entry."""

from __future__ import annotations

import itertools

from quantscope.families.declarations import Declarations
from quantscope.families.modules import NameList, pattern_matches

ENTRIES = ("lm_head", "model.layers.0", "re:.*mlp.*", "re:^lm", "Linear", "re:[", "a.b.c", "*gate*")
MODULES = (
    "lm_head", "lm_head.x", "lm_headx", "model.layers.0.mlp.up", "model.layers.01.q", "a.b", "a.b.c.d", "",
    "x.gate.y",
)  # fmt: skip


def test_the_prepared_list_agrees_with_the_rule_of_one_entry() -> None:
    for entries in itertools.combinations(ENTRIES, 2):
        for module in MODULES:
            for kind in ("Linear", "Embedding"):
                wanted = any(pattern_matches(entry, module, kind) for entry in entries)
                assert NameList(entries).matches(module, kind) == wanted, (entries, module, kind)


def test_shell_patterns_count_only_where_asked() -> None:
    assert NameList(["*gate*"], shell=True).matches("x.gate.y")
    assert not NameList(["*gate*"]).matches("x.gate.y")


def test_work_is_done_once_a_key() -> None:
    declared = Declarations([], [])
    done: list[int] = []
    for _ in range(3):
        assert declared.once("k", lambda: done.append(1) or len(done)) == 1
    assert declared.once("other", lambda: 2) == 2
