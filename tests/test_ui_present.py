"""Presentation logic without Textual: words, places, tables, trees, triage, contract and zero lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.model import Evidence
from quantscope.report.words import short_group_words
from quantscope.rules.catalogue import judge
from quantscope.session.inspection import Inspection
from quantscope.session.pipeline import inspect
from quantscope_views.last_place import LastPlace, load_place, save_place
from quantscope_views.lines import Line, cells, cut_end, fit, labelled, side_by_side, wrap
from quantscope_views.place import GoTo, Place, parse_go_to
from quantscope_views.present.compare import (
    CompareChoice,
    compare_lines,
    compare_readings,
    compare_with,
    detail_lines,
    head_lines,
)
from quantscope_views.present.contract import contract_lines, equation_lines
from quantscope_views.present.headline import grouped_overview, overview_of
from quantscope_views.present.histogram import bar_line, number_line
from quantscope_views.present.layers import layer_of
from quantscope_views.present.logits import kl_strip
from quantscope_views.present.looked_at import looked_at_lines
from quantscope_views.present.reading_choice import choice_of
from quantscope_views.present.scales import _facts, read_scale_facts, scale_lines
from quantscope_views.present.scan_tally import tally_of
from quantscope_views.present.tensor_rows import FlatRows, status_line
from quantscope_views.present.tensor_table import FactsMaker, RowFacts, TensorTable
from quantscope_views.present.tensor_tree import TensorTree
from quantscope_views.present.triage import (
    finding_lines,
    needs_you_title,
    why_lines,
)
from quantscope_views.present.triage_facts import TriageFacts
from quantscope_views.present.words import (
    fixed_words,
    number_words,
    seconds_words,
    share_words,
    size_words,
)
from quantscope_views.present.zero import _fitting, _mean_words, odd_ones, zero_lines
from quantscope_views.present.zero_facts import read_zero_facts
from ui_driver import gptq_folder


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(0, "0 B"), (932, "932 B"), (36_000, "36 kB"), (1_652_800, "1.65 MB"), (668e9, "668 GB")],
)
def test_sizes_are_decimal(nbytes: float, words: str) -> None:
    assert size_words(int(nbytes)) == words


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(0, 0, "none"), (10, 10, "100%"), (9999, 10000, "99.9%"), (1, 10_000, "<0.1%"), (1, 2, "50%"),
     (0, 5, "0.0%")],
)  # fmt: skip
def test_a_share_never_says_all_of_less(part: int, whole: int, words: str) -> None:
    assert share_words(part, whole) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
        (-0.0, "-0"),
        (0.122803, "0.122803"),
    ],
)
def test_odd_values_have_names(value: float, words: str) -> None:
    assert number_words(value) == words


def test_tiny_values_are_not_shown_as_zero() -> None:
    assert fixed_words(1.2e-9) == "1.200e-09"
    assert fixed_words(0.0) == "0.000000"


def test_times_and_groups_in_words() -> None:
    assert [seconds_words(s) for s in (0.41, 12, 200)] == ["0.4s", "12s", "3m20s"]
    assert short_group_words({"axis": "in", "size": 128}) == "g128"
    assert short_group_words({"axis": "block", "size": [128, 128]}) == "128x128"
    assert short_group_words({"axis": "channel", "size": None}) == "per-channel"


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("0x106B85", GoTo(byte_offset=0x106B85)),
        ("106b85h", GoTo(byte_offset=0x106B85)),
        ("1076101", GoTo(byte_offset=1076101)),
        ("@16", GoTo(byte_offset=16)),
        ("17,131", GoTo(at=(17, 131))),
        ("(17, 131)", GoTo(at=(17, 131))),
        ("[17,131]", GoTo(at=(17, 131))),
        ("model.q_proj", GoTo(name="model.q_proj")),
        ("0xzz", GoTo(name="0xzz")),
        ("  ", None),
    ],
)
def test_go_to_tells_offsets_elements_and_names_apart(typed: str, wanted: GoTo | None) -> None:
    assert parse_go_to(typed) == wanted


def test_lines_are_folded_at_spaces_and_long_words_are_chopped() -> None:
    assert wrap("one two three", 8) == ["one two", "three"]
    assert wrap("x" * 10, 4) == ["xxxx", "xxxx", "xx"]
    assert wrap("", 5) == [""]
    assert all(cells(piece) <= 6 for piece in wrap("漢字漢字漢字 ab", 6))
    assert fit("ab", 4, right=True) == "  ab"
    assert cut_end("abcdef", 4) == "abc…"


def test_labels_stand_once_and_text_wraps_beside_them() -> None:
    lines = labelled("declared", "a b c d e f g h", 20)
    assert lines[0].text.startswith(" declared  a")
    assert all(line.text.startswith(" " * 11) for line in lines[1:])
    both = side_by_side(lines, [Line(spans=lines[0].spans)], 30)
    assert len(both) == len(lines)


def rows(count: int = 20) -> TensorTable:
    """Rows with every match and several formats."""
    matches = ("agree", "disagree", "broken", "ambiguous")
    return TensorTable(
        RowFacts(
            name=f"model.layers.{i}.w{i % 3}",
            word="gptq" if i % 2 else "gguf",
            shape=(4, 4),
            nbytes=i,
            format="int4",
            group="g128",
            contract_id=f"{i % 2:04d}",
            match=matches[i % 4],
            bits=float(i % 5),
        )
        for i in range(count)
    )


def test_a_filter_needs_every_word_and_ignores_case() -> None:
    table = rows()
    found = table.matching("GPTQ layers.1")
    assert [table.rows[i].name for i in found.tolist()] == [
        f"model.layers.{i}.w{i % 3}" for i in (1, 11, 13, 15, 17, 19)
    ]
    assert len(table.matching("differs")) == 5
    assert len(table.matching("")) == 20


def test_sorting_keeps_file_order_among_equals_also_when_turned_round() -> None:
    table = rows()
    every = table.matching("")
    by_match = table.ordered(every, "match").tolist()
    assert [table.rows[i].match for i in by_match[:5]] == ["broken"] * 5
    assert by_match[:5] == sorted(by_match[:5])
    turned = [table.rows[i].match for i in table.ordered(every, "match", reverse=True).tolist()]
    assert turned == [table.rows[i].match for i in by_match[::-1]]
    assert table.ordered(every, "match", reverse=True).tolist()[-5:] == by_match[:5]
    names = [table.rows[i].name for i in table.ordered(every, "name").tolist()]
    assert names.index("model.layers.2.w2") < names.index("model.layers.10.w1")


def test_newer_facts_replace_rows_and_are_found_by_the_filter() -> None:
    table = rows(4)
    table.update(2, [RowFacts(name="model.layers.2.w2", word="awq", shape=(1,), nbytes=1)])
    assert table.matching("awq").tolist() == [2]
    assert table.examined == 3


def test_a_tree_counts_what_the_filter_leaves_and_opens_when_it_is_little() -> None:
    table = rows(30)
    tree = TensorTree([row.name for row in table.rows])
    kept = np.zeros(30, dtype=np.bool_)
    kept[[3, 4]] = True
    lines = tree.lines(set(), kept, table.match, table.nbytes)
    assert [(line.label, line.count, line.total) for line in lines if line.node >= 0] == [
        ("model", 2, 30),
        ("layers", 2, 30),
        ("3", 1, 1),
        ("4", 1, 1),
    ]
    assert [line.position for line in lines if line.position >= 0] == [3, 4]
    every = np.ones(30, dtype=np.bool_)
    closed = tree.lines(set(), every, table.match, table.nbytes)
    assert [line.label for line in closed] == ["model"]
    assert closed[0].nbytes == sum(range(30))


def test_names_without_dots_and_names_that_are_branches_too() -> None:
    tree = TensorTree(["a", "a.b", "a.b.c", "z"])
    every = np.ones(4, dtype=np.bool_)
    lines = tree.lines(set(range(len(tree))), every, np.zeros(4, np.int8), np.zeros(4, np.int64))
    assert sorted(line.position for line in lines if line.position >= 0) == [0, 1, 2, 3]


def test_the_status_line_names_counts_order_and_members() -> None:
    text = status_line(3, 20, examined=20, sort="file", members=None)
    assert text == "3 of 20 tensors, by file order"
    assert "members of a finding" in status_line(3, 20, examined=0, sort="tree", members=3)


@pytest.fixture
def liar(tmp_path: Path) -> Inspection:
    """A judged inspection of a folder whose declaration contradicts its codes."""
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    return inspect(Checkpoint.open(str(folder)), judge=judge)


def triage_of(found: Inspection, **changes: Any) -> TriageFacts:
    """Facts of the Triage screen."""
    overview = grouped_overview(found.checkpoint, overview_of(found.checkpoint))
    values: dict[str, Any] = {
        "overview": overview,
        "inspection": found,
        "tally": tally_of(found),
        "stage": "sample",
    }
    return TriageFacts(**(values | changes))


@pytest.mark.parametrize("width", [80, 120, 160])
def test_every_line_of_every_presenter_fits_its_width(liar: Inspection, width: int) -> None:
    facts = triage_of(liar)
    state = liar.states[0]
    choice = choice_of(state)
    zeros = read_zero_facts(liar.checkpoint, state, (0, 0))
    scales = read_scale_facts(liar.checkpoint, state)
    assert choice is not None
    blocks = [
        finding_lines(facts, width, False),
        why_lines(liar.findings[0], state, facts, width),
        looked_at_lines(facts, width),
        contract_lines(state, width, False, every_field=True),
        zero_lines(state, zeros, facts.tally, width, True),
        scale_lines(scales, width, True, "-"),
    ]
    for block in blocks:
        assert block
        for line in block:
            assert cells(line.text.rstrip()) <= width, line.text


def test_triage_says_who_acts_and_what_it_rests_on(liar: Inspection) -> None:
    facts = triage_of(liar)
    assert needs_you_title(facts) == "NEEDS YOU: 1 kind"
    assert "from headers" in needs_you_title(triage_of(liar, stage="headers"))
    assert "partial" in needs_you_title(triage_of(liar, partial="stopped after 3 of 8 tensors"))
    why = "\n".join(line.text for line in why_lines(liar.findings[0], liar.states[0], facts, 80))
    for word in (
        "declared",
        "checkpoint_format",
        "inferred",
        "<- fits",
        "effect",
        "readers",
        "try",
    ):
        assert word in why
    looked = "\n".join(line.text for line in looked_at_lines(facts, 80))
    assert "codes 100%" in looked
    assert "logits check" in looked
    assert "logits check" not in "\n".join(
        line.text for line in looked_at_lines(triage_of(liar, ran=("logits check",)), 80)[:5]
    )


def test_every_number_of_the_presenters_says_how_it_is_known(liar: Inspection) -> None:
    state = liar.states[0]
    facts = triage_of(liar)
    zeros = read_zero_facts(liar.checkpoint, state, (0, 0))
    blocks = [
        finding_lines(facts, 80, False),
        contract_lines(state, 80, False)[1:-1],
        [line for line in equation_lines(state, 80, False) if " B " in line.text],
        [line for line in zero_lines(state, zeros, facts.tally, 80, False) if "mean" in line.text],
    ]
    for block in blocks:
        for line in block:
            if any(char.isdigit() for char in line.text) and not line.text.startswith("─"):
                assert line.about, line.text


def test_no_screen_words_that_promise_too_much(liar: Inspection) -> None:
    facts = triage_of(liar)
    state = liar.states[0]
    text = "\n".join(
        line.text.lower()
        for line in [
            *finding_lines(facts, 80, False),
            *looked_at_lines(facts, 80),
            *contract_lines(state, 80, False),
            *equation_lines(state, 80, False),
        ]
    )
    for word in ("clean", "passed", "verdict", "accepted", "certified"):
        assert word not in text


def test_one_tensor_on_the_other_side_is_named_as_the_odd_one(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=9)
    found = inspect(Checkpoint.open(str(folder)))
    assert "no odd one out" in odd_ones(tally_of(found), found.states[0])
    import msgspec

    odd = found.states[4]
    steps = tuple(
        msgspec.structs.replace(step, supports=("minus_one",))
        if step.method == "code statistic"
        else step
        for step in odd.evidence
    )
    states = list(found.states)
    states[4] = msgspec.structs.replace(odd, evidence=steps)
    changed = msgspec.structs.replace(found, states=tuple(states))
    assert odd.tensor.name in odd_ones(tally_of(changed), found.states[0])


def test_comparing_two_readings_shows_every_pair_one_step_apart(liar: Inspection) -> None:
    found, other = compare_readings(liar, lambda _: None, lambda: False)
    assert other is liar
    zero_rows = compare_lines(found, CompareChoice(tab="zeros", only_differences=False), 100)
    assert sum("stored+1" in line.text and "stored " in line.text for line in zero_rows) == 8
    value_rows = compare_lines(found, CompareChoice(tab="values"), 100)
    assert sum("differs" in line.text for line in value_rows) == 8
    only = compare_lines(found, CompareChoice(tab="only"), 100)
    assert "only in A: 0 tensors" in only[0].text


def test_a_narrow_compare_shows_both_sides_of_a_field_and_says_what_is_swapped() -> None:
    samples = Path(__file__).resolve().parents[1] / "sample_checkpoints"
    with Checkpoint.open(str(samples / "twin-gptq")) as checkpoint:
        found, _ = compare_with(
            inspect(checkpoint), str(samples / "twin-awq"), None, lambda _: None, lambda: False
        )
    rows = [line.text for line in compare_lines(found, CompareChoice(tab="contract"), 79)]
    assert "zero = stored + 1 | zero = stored" in rows[1]
    detail = [line.text for line in detail_lines(found.pairs[0], CompareChoice(tab="contract"), 79)]
    assert any("A I32 along in sequential   B I32 along out awq" in text for text in detail)
    plain = head_lines(found, CompareChoice(), ("a", "b"), 79)[1].text
    assert "WHAT-IF" not in plain
    assert (
        "WHAT-IF rules swapped"
        in head_lines(found, CompareChoice(swapped=True), ("a", "b"), 79)[1].text
    )


def test_contract_ids_differ_where_a_field_differs(tmp_path: Path, liar: Inspection) -> None:
    maker = FactsMaker()
    own = {maker.facts(state).contract_id for state in liar.states}
    assert len(own) == 1
    import msgspec

    reading = liar.states[0].reading
    assert reading is not None
    other = msgspec.structs.replace(
        liar.states[0], reading=msgspec.structs.replace(reading, zero_convention="minus_one")
    )
    assert maker.facts(other).contract_id not in own


def test_a_last_place_is_kept_atomically_and_only_for_the_same_files(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    sessions = tmp_path / "sessions"
    place = Place(screen="tensor", tensor="m.weight", tab="bytes", at=(1, 2))
    with Checkpoint.open(str(folder)) as checkpoint:
        save_place(sessions, checkpoint, place, "quantscope-dark")
        saved = load_place(sessions, checkpoint)
        assert isinstance(saved, LastPlace)
        assert saved.place == place
        assert [path.suffix for path in sessions.iterdir()] == [".json"]
        next(sessions.iterdir()).write_text("broken")
        assert load_place(sessions, checkpoint) is None
    save_place(Path("/dev/null/nowhere"), checkpoint, place, "")


def test_pictures_of_counts_in_text() -> None:
    assert bar_line([0, 1, 8], 3, True).text == "    .  @  ".ljust(len(" " + "   " * 3))
    line = number_line(0.0, 13, -1.5, 1.5)
    assert line[6] == "H"
    assert number_line(9.0, 13, -1.5, 1.5).endswith(">")
    assert number_line(None, 13, -1.5, 1.5).count(".") == 6
    assert kl_strip((0.0, 0.0), 20, True)[0].text == " 0 at every position"
    strip = kl_strip((0.0, 1e-3, 1.0), 20, True)[0].text
    assert strip[1] == " "
    assert strip[3] == "@"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("model.layers.12.mlp.up_proj.weight", 12),
        ("blk.3.attn_k.weight", 3),
        ("lm_head.weight", None),
        ("transformer.h.7.attn", 7),
    ],
)
def test_layers_are_read_off_names(name: str, number: int | None) -> None:
    assert layer_of(name) == number


def test_rows_explain_their_bits_and_ids(liar: Inspection) -> None:
    maker = FactsMaker()
    table = TensorTable(maker.facts(state) for state in liar.states)
    about = "\n".join(FlatRows(table, table.matching(""), False).explain(0))
    assert "stored bytes of all its planes" in about
    assert "twins decode alike" in about
    assert "differs (zero_convention)" in about


def test_zero_numbers_are_left_out_rather_than_cut_where_columns_are_narrow() -> None:
    numbers = {"mean_as_is": -0.0141, "standard_error_as_is": 0.0203, "groups": 1_234_567}
    step = Evidence(
        field="zero_convention",
        method="code statistic",
        supports=("as_is",),
        strength="strong",
        numbers=dict(numbers),
    )
    words = _mean_words(step, "as_is")
    assert [_fitting(words, room) for room in (40, 29, 20)] == [
        "-0.014 +- 0.020   1234567 groups",
        "-0.014 +- 0.020  1234567 gr.",
        "-0.014 +- 0.020",
    ]


def test_a_plane_of_nothing_but_nan_has_a_line_in_the_picture_of_scales() -> None:
    values = np.full(128, np.nan)
    values[:3] = 0
    lines = scale_lines((_facts("scales", values, 128),), 80, False, "-")
    text = "\n".join(line.text for line in lines)
    assert "scales: no finite value but 0 in 128" in text
    assert "125 NaN, 3 zero" in text


@pytest.mark.real
def test_scales_are_counted_by_the_power_of_two_below_them(real_set: Path) -> None:
    folder = real_set / "gptqmodel-w4g128-asym-v2"
    name = "model.layers.0.self_attn.q_proj.scales"
    data = (folder / "model.safetensors").read_bytes()
    head = int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8 : 8 + head])[name]["data_offsets"]
    stored = np.frombuffer(data[8 + head + first : 8 + head + last], "<f2").astype(np.float64)
    with Checkpoint.open(str(folder)) as checkpoint:
        state = inspect(checkpoint).state("model.layers.0.self_attn.q_proj.weight")
        (facts,) = read_scale_facts(checkpoint, state)
    exponents = np.frexp(stored)[1] - 1
    assert facts.first_power == exponents.min()
    assert facts.counts == tuple(np.bincount(exponents - exponents.min()).tolist())
    assert (facts.smallest, facts.median, facts.largest) == (
        stored.min(),
        np.median(stored),
        stored.max(),
    )
