"""Ignore lists against many modules: the fast lookup says what entry-by-entry matching says."""

from __future__ import annotations

import random
import time

import pytest
from quantscope.families.modules import compiled, matches
from quantscope.model import Source
from quantscope.rules.exclusions import Dialect, Exclusion, Lookup

WHERE = Source("config.json", "/quantization_config/ignore")

LAYERS = (
    f"{stack}layers.{layer}.{part}"
    for stack in ("model.", "model.language_model.", "")
    for layer in range(12)
    for part in ("self_attn.q_proj", "mlp.gate", "mlp.gate_proj", "mlp.experts.3.w1")
)

MODULES = (*LAYERS, "lm_head", "model.embed_tokens", "visual.blocks.0.attn.qkv", "")

ENTRIES: tuple[tuple[str, Dialect], ...] = (
    ("lm_head", "compressed-tensors"),
    ("re:.*lm_head", "compressed-tensors"),
    (r"re:^model\.layers\.1\.", "compressed-tensors"),
    (r"re:model.layers.1.*gate$", "compressed-tensors"),
    (r"re:(visual|model)\.blocks", "compressed-tensors"),
    (r"re:visual|lm_head", "compressed-tensors"),
    (r"re:model\.layers\.1?\.mlp", "compressed-tensors"),
    (r"re:model\.layers?\.3\.mlp", "compressed-tensors"),
    (r"re:model\.layers\.1\d*\.mlp\.gate", "compressed-tensors"),
    ("re:(?i)LM_HEAD", "compressed-tensors"),
    ("re:(", "compressed-tensors"),
    ("model.layers.3", "compressed-tensors"),
    ("layers.3", "compressed-tensors"),
    ("layers.3", "component"),
    ("gate", "component"),
    ("mlp.experts", "component"),
    ("mlp.experts", "glob"),
    ("model.layers.4*", "glob"),
    ("*gate", "glob"),
    ("model.layers.?.mlp", "glob"),
    ("model.layers.[12].mlp*", "glob"),
    ("lm_head.weight", "component"),
    ("model.layers.5.", "component"),
    ("model.layers.5", "exact"),
    ("layers.5", "exact"),
    (r".*layers\.7\..*", "regex"),
    (r"^model\.layers\.7\.self_attn\.q_proj$", "regex"),
    ("nothing.here", "component"),
    ("...", "component"),
)


@pytest.mark.parametrize("seed", range(40))
def test_lookup_equals_matching_entry_by_entry(seed: int) -> None:
    draw = random.Random(seed)
    chosen = draw.sample(ENTRIES, draw.randrange(1, len(ENTRIES)))
    entries = tuple(Exclusion(entry=e, source=WHERE, dialect=d) for e, d in chosen)
    lookup = Lookup(entries)
    slow = {m: next((e for e in entries if e.covers(m)), None) for m in MODULES}
    assert lookup.first(MODULES) == {m: e for m, e in slow.items() if e is not None}
    assert lookup.without_match(MODULES) == tuple(
        e for e in entries if not any(e.covers(m) for m in MODULES)
    )


EXPLOSIVE = (
    r"(\w+\.?)+z",
    "(a|a)*b",
    "(.*a){9}b",
    "(?:a|a){30}b",
    "a?" * 30 + "a" * 30,
    "(a|a)" * 60 + "b",
    r"\w+\w+\w+\w+\w+\w+z",
    r"(a)\1*\1*\1*\1*z",
    r"(?P<x>a+)(?P=x)*z",
)


@pytest.mark.parametrize("pattern", EXPLOSIVE)
def test_pattern_that_may_never_end_is_refused(pattern: str) -> None:
    assert compiled(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        (".*.*.*.*.*z", "a" * 60, False),
        (".*a.*a.*a.*a.*a.*b", "a" * 60, False),
        (".*a.*a.*a.*a.*a.*b", "a" * 60 + "b", True),
        (r".*self_attn.*layers.*", "model.layers.3.self_attn.layers.x", True),
        (r".*layers\.3.*mlp.*down.*", "model.layers.3.mlp.down_proj", True),
        (r".*layers\.3.*mlp.*down.*", "model.layers.3.mlp.up_proj", False),
        (
            r"(model\.)?layers\.\d+\.(self_attn\.(q|k|v)_proj|mlp\.up_proj)$",
            "layers.7.mlp.up_proj",
            True,
        ),
        (".*", "a" * 500, False),
    ],
)
def test_patterns_match_in_bounded_time(pattern: str, name: str, fits: bool) -> None:
    regex = compiled(pattern)
    assert regex is not None
    begin = time.perf_counter()
    assert matches(regex, name) is fits
    assert time.perf_counter() - begin < 1
