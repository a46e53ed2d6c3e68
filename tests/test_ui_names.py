"""Names in narrow columns stay different names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from quantscope_views.lines import brief_names


def test_long_names_lose_what_they_have_in_common() -> None:
    names = [
        f"model.layers.{layer}.self_attn.{kind}_proj.weight" for layer in (0, 27) for kind in "qk"
    ]
    assert list(brief_names(names, 21).values()) == [
        "…0.self_attn.q_proj",
        "…0.self_attn.k_proj",
        "…27.self_attn.q_proj",
        "…27.self_attn.k_proj",
    ]


def test_names_that_fit_and_a_single_name_are_left_alone() -> None:
    assert brief_names(["lm_head.weight", "model.layers.0.mlp.up_proj.weight"], 40) == {}
    assert brief_names(["model.layers.0.mlp.up_proj.weight", "lm_head.weight"], 20) == {}


@given(st.lists(st.text(alphabet="ab.", max_size=12), unique=True, max_size=6), st.integers(1, 8))
def test_different_names_never_become_one(names: list[str], width: int) -> None:
    brief = brief_names(names, width)
    assert len(set(brief.values())) == len(brief)
    assert all(brief[name] for name in brief)
