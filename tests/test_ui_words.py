"""What people read in the app: the words of a scan, numbers with a meaning and a unit, nothing said too early."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.cli.main import run
from quantscope.model import Evidence, Finding, Subject
from quantscope.report.words import STRENGTH_WORDS, value_words
from quantscope.rules.catalogue import judge
from quantscope.samples import write_samples
from quantscope.session.events import Progress
from quantscope.session.inspection import Inspection
from quantscope.session.pipeline import inspect
from quantscope_views.lines import cells
from quantscope_views.present.contract import contract_lines, equation_lines, field_about
from quantscope_views.present.headline import (
    Overview,
    format_words,
    grouped_overview,
    headline_rows,
    overview_of,
)
from quantscope_views.present.layers import LayerFacts, layer_lines
from quantscope_views.present.looked_at import closing_words, looked_at_lines
from quantscope_views.present.numbers import finding_numbers, step_numbers_words
from quantscope_views.present.reading_choice import choice_of
from quantscope_views.present.run_facts import read_choices
from quantscope_views.present.scan_tally import ScanTally, tally_of
from quantscope_views.present.states import progress_words
from quantscope_views.present.tensor_table import FactsMaker
from quantscope_views.present.triage import (
    empty_lines,
    finding_about,
    finding_lines,
    members_words,
    needs_you_title,
    why_lines,
)
from quantscope_views.present.triage_facts import TriageFacts
from quantscope_views.screens.pages import help_text, markdown_lines
from ui_driver import gptq_folder, idle, make_app, notices, press

SAMPLES = Path(__file__).resolve().parents[1] / "sample_checkpoints"


def seen(path: Path) -> tuple[Inspection, Overview]:
    """A judged inspection and the overview that screens show of it."""
    checkpoint = Checkpoint.open(str(path))
    found = inspect(checkpoint, judge=judge)
    overview = grouped_overview(checkpoint, overview_of(checkpoint))
    return found, msgspec.structs.replace(overview, kinds=tally_of(found).kinds)


def facts_of(path: Path, **changes: object) -> TriageFacts:
    """What Triage shows of a checkpoint."""
    found, overview = seen(path)
    facts = TriageFacts(overview=overview, inspection=found, tally=tally_of(found), stage="sample")
    return msgspec.structs.replace(facts, **changes)


@pytest.mark.parametrize(
    "sample",
    ["smol-w4-liar", "smol-ct-nvfp4", "smol-bnb-nf4", "smol-gguf-q4_k_m", "smol-ct-fp8-block",
     "smol-ct-int8", "smol-awq-w4", "smol-mlx-q4"],
)  # fmt: skip
def test_the_headline_and_a_scan_name_the_format_in_the_same_words(
    sample: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, overview = seen(SAMPLES / sample)
    run(["scan", str(SAMPLES / sample)])
    scanned = capsys.readouterr().out.splitlines()[1]
    assert scanned.startswith(format_words(overview)), scanned


def test_rows_of_tensors_name_elements_as_a_scan_does() -> None:
    found, _ = seen(SAMPLES / "smol-ct-nvfp4")
    rows = {(f.format, f.group) for f in map(FactsMaker().facts, found.states)}
    assert rows == {("fp4", "g16")}


def test_who_must_act_is_said_as_a_scan_says_it() -> None:
    facts = facts_of(SAMPLES / "smol-gguf-q4_k_m")
    assert facts.findings[0].who == "nobody"
    assert finding_lines(facts, 80, False)[0].text.rstrip().endswith(" -")


def test_people_read_zero_conventions_in_words_never_as_programs_write_them() -> None:
    facts = facts_of(SAMPLES / "smol-w4-liar")
    finding = facts.findings[0]
    shown = [line.text for line in finding_lines(facts, 100, False)]
    assert "config: zero = stored + 1; codes: stored" in shown[0]
    data = "\n".join(finding_numbers(finding))
    assert "declared: zero = stored + 1" in data
    assert "inferred: zero = stored" in data
    assert "as_is" not in data
    assert "minus_one" not in data


def test_all_facts_of_the_headline_stand_in_its_two_lines_at_80_columns() -> None:
    _, overview = seen(SAMPLES / "smol-ct-nvfp4")
    above, below = headline_rows(overview, "0.4s", 80 - 14, 44)
    assert sum(cells(part) + 2 for part in above) + 12 <= 66
    assert "fp4 g16 sym" in above[0]
    assert below.endswith("bits/weight")
    assert "quantized" in below
    assert len(below) <= 44
    wide, rest = headline_rows(overview, "0.4s", 140, 120)
    assert wide[1:] == ("6/12 quantized", "0.4s")
    assert "quantized" not in rest


def test_a_format_too_long_for_the_line_names_its_commonest_kind() -> None:
    overview = Overview(
        path="m", name="model", size=1, files=1, files_parsed=1, stored=3, grouped=True,
        families=(("gguf", 3),), kinds=tuple((f"kind number {i}", 9 - i) for i in range(5)),
    )  # fmt: skip
    above, _ = headline_rows(overview, "1.0s", 60, 40)
    assert above[0] == "gguf kind number 0 x9, 4 other kinds"


def test_numbers_of_a_finding_have_a_meaning_and_a_unit() -> None:
    finding = next(f for f in facts_of(SAMPLES / "smol-w4-liar").findings if f.code == "QZ002")
    said = list(finding_numbers(finding))
    assert "largest stored zero: 9 .. 11 over 4 tensors" in said
    assert any(s.startswith("mean(code - zero) if zero = stored: ") and "steps" in s for s in said)
    assert "sum" not in " ".join(said)
    assert "{" not in " ".join(finding_about(finding))


def test_counts_add_up_over_tensors_and_extremes_do_not() -> None:
    finding = Finding(
        code="QS004", name="n", kind=None, severity="warning", confidence="proved", message="m", count=4,
        who="producer", subject=Subject(),
        data={"negative": {"min": 2, "max": 5, "sum": 14}, "unknown": {"min": 1, "max": 2, "sum": 3},
              "stored_max": {"min": 9, "max": 11, "sum": 40}, "actual_bytes": 4096},
    )  # fmt: skip
    assert list(finding_numbers(finding)) == [
        "negative values: 14 in all, 2 .. 5 a tensor",
        "largest stored zero: 9 .. 11 over 4 tensors",
        "stored: 4096 B",
    ]


def test_numbers_of_an_evidence_step_are_sentences() -> None:
    step = Evidence(
        field="zero_convention", method="code statistic", supports=("as_is",), strength="strong",
        numbers={"groups": 512, "mean_minus_one": -0.998, "standard_error_as_is": 0.0096,
                 "modules_as_is": 4, "mean_as_is_max": 0.02, "nosuch": 3},
    )  # fmt: skip
    assert list(step_numbers_words(step)) == [
        "groups counted: 512",
        "mean(code - zero) if zero = stored + 1: -0.9980 steps",
        "standard error of that mean if zero = stored: +0.0096 steps",
        "modules whose codes fit zero = stored: 4",
        "highest mean(code - zero) of a module if zero = stored: +0.0200 steps",
    ]


def test_nothing_is_concluded_while_a_scan_runs(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    ended = facts_of(folder)
    assert closing_words(ended) == (
        "Nothing here says the model is good: nothing found, 4 checks not run."
    )
    runs = facts_of(folder, scanning=True)
    assert closing_words(runs) == "The scan still runs; so far nothing found; 4 checks not run."
    assert needs_you_title(runs) == "NEEDS YOU: nothing found (so far)"
    assert "the scan still runs" in " ".join(line.text for line in empty_lines(runs, 200))


def test_a_kernel_check_of_some_tensors_is_not_one_of_all(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    names = [state.tensor.name for state in facts_of(folder).inspection.states]
    some = facts_of(folder, kernel_outcomes={names[0]: "held"})
    text = "\n".join(line.text for line in looked_at_lines(some, 79))
    assert f"kernel check of 1 of {len(names)} tensors: held" in text
    assert f"kernel check of {len(names) - 1} more (R)" in text
    assert "4 checks not run" in text
    every = facts_of(
        folder, kernel_outcomes=dict.fromkeys(names, "held") | {names[0]: "did_not_hold"}
    )
    text = "\n".join(line.text for line in looked_at_lines(every, 79))
    assert f"kernel check of {len(names)} of {len(names)} tensors: did not hold" in text
    assert "3 checks not run" in text


def test_the_app_names_the_checks_and_the_bytes_that_a_scan_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    run(["scan", str(folder)])
    scan = " ".join(capsys.readouterr().out.split())
    shown = "\n".join(line.text for line in looked_at_lines(facts_of(folder), 79))
    size = shown.partition("(of ")[2].partition(")")[0]
    assert f"(of {size} in " in scan
    assert scan.rpartition(", ")[2] == shown.rpartition(", ")[2] == "4 checks not run."


def test_a_message_that_its_row_cuts_stands_whole_under_why(tmp_path: Path) -> None:
    for name in ("gptq-scale-nan", "nvfp4-scale-tiled"):
        facts = facts_of(write_samples(tmp_path / name, [name])[0])
        assert facts.inspection is not None
        finding = facts.findings[0]
        state = facts.inspection.state(str(finding.subject.tensor))
        lines = why_lines(finding, state, facts, 79)
        text = " ".join(" ".join(line.text.split()) for line in lines)
        assert finding.message in text
        first, end = finding.subject.byte_range or (0, 0)
        assert f"bytes 0x{first:X} to 0x{end - 1:X}" in text


def test_findings_that_read_the_same_are_told_apart_by_their_file(tmp_path: Path) -> None:
    facts = facts_of(write_samples(tmp_path / "s", ["gptq-method-awq"])[0])
    rows = [line.text for line in finding_lines(facts, 80, False) if "CONTRADICTS" in line.text]
    assert len(rows) == len(set(rows)) == 2


def test_a_kernel_that_would_never_take_the_tensor_does_not_ask_to_be_installed() -> None:
    found, _ = seen(SAMPLES / "smol-ct-nvfp4")
    choices = read_choices(str(SAMPLES / "smol-ct-nvfp4"), found, found.states[0])
    refused = [choice for choice in choices.kernels if not choice.takes]
    assert "bitsandbytes:gemv_4bit@cpu" in [choice.key for choice in refused]
    assert not any("install" in choice.why_not for choice in refused)
    assert all(choice.takes for choice in choices.kernels[: -len(refused)])


def test_names_of_planes_do_not_run_into_their_equations() -> None:
    found, _ = seen(SAMPLES / "smol-ct-nvfp4")
    for width in (79, 159):
        rows = [line.text for line in equation_lines(found.states[0], width, False)[1:4]]
        assert [text.split()[0] for text in rows] == [
            equation.plane for equation in found.states[0].solved.equations[:3]
        ]
        assert all(text[20] == " " != text[21] for text in rows)
    assert any(text.split()[:2] == ["weight_global_scale", "F32"] for text in rows)


def test_a_claim_is_said_to_be_written_once() -> None:
    found, _ = seen(SAMPLES / "smol-ct-nvfp4")
    told = field_about(found.states[0].contract["symmetric"])
    assert any("(written: True)" in text for text in told)


def test_progress_by_share_is_a_share() -> None:
    assert (
        progress_words(Progress(job="check", stage="tensor", done=50, total=200, unit="%"))
        == "tensor 25 %"
    )


def test_a_list_item_of_a_help_page_keeps_its_margin_over_lines() -> None:
    lines = [line.text for line in markdown_lines("- one two\n  three four\n\nfive\n", 14)]
    assert lines == ["  - one two", "    three", "    four", "", " five"]


def test_every_strength_on_the_screens_is_a_term_that_is_explained() -> None:
    page = help_text("terms")
    assert all(f"- {word}:" in page for word in STRENGTH_WORDS.values())


async def test_going_to_a_name_that_is_not_there_offers_the_closest(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "good", count=1)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        name = app.workspace.inspection.states[0].tensor.name
        app.open_tensor(name.replace("_proj", "_prj"))
        await idle(pilot)
        assert any("closest: " in said and name in said for said in notices(app))


def test_groups_of_a_finding_on_several_tensors_are_counted_a_tensor(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "liar", count=2, checkpoint_format="gptq")
    finding = next(f for f in facts_of(folder).findings if f.code == "QZ002")
    assert finding.count > 1
    counted = next(text for text in finding_numbers(finding) if text.startswith("groups counted"))
    assert counted.endswith(" a tensor")


async def test_a_byte_that_no_element_uses_is_shown_in_its_file(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "s", ["st-overlap"])[0]
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        finding = app.workspace.finding
        assert finding is not None
        assert finding.subject.byte_range is not None
        await press(pilot, "b")
        await idle(pilot)
        place = app.present_place()
        assert (place.screen, place.byte_offset) == ("raw", finding.subject.byte_range[0])
        assert any("no element uses the byte 0x" in said for said in notices(app))


def test_where_nothing_is_quantized_no_sizes_hold(tmp_path: Path) -> None:
    facts = facts_of(write_samples(tmp_path / "s", ["file-missing"])[0])
    text = "\n".join(line.text for line in looked_at_lines(facts, 79))
    assert "no quantized tensor" in text
    assert "0 of 0" not in text


def test_a_key_that_is_a_name_of_a_tensor_is_shown_by_its_last_part() -> None:
    found, _ = seen(SAMPLES / "smol-bnb-nf4")
    rows = "".join(line.text[16:38].strip() for line in contract_lines(found.states[0], 79, False))
    assert "bitsandbytes__nf4 by" in rows
    assert "self_attn" not in rows


async def test_an_empty_reason_accepts_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, _ = gptq_folder(tmp_path / "liar", count=1, checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        app.run_registered("triage.accept")
        await idle(pilot)
        await press(pilot, "enter")
        assert any("a reason" in said for said in notices(app))
    assert not (tmp_path / "quantscope.toml").exists()


def test_notes_are_something_that_was_found() -> None:
    noted = facts_of(SAMPLES / "smol-gguf-q4_k_m")
    assert {finding.severity for finding in noted.findings} == {"note"}
    assert needs_you_title(noted) == "NEEDS YOU: nothing above note"
    assert "nothing above note" in closing_words(noted)
    assert all(
        len(closing_words(facts)) < 79 for facts in (noted, facts_of(SAMPLES / "smol-w4-liar"))
    )


@pytest.mark.parametrize(("width", "count"), [(80, 2), (80, 32), (80, 61), (160, 200), (60, 100)])
def test_every_row_of_the_layer_strip_has_its_legend(width: int, count: int) -> None:
    layers = [LayerFacts(number=i, bits=4.5 + i % 9, error=0.1) for i in range(count)]
    lines = layer_lines(layers, width, False, "-")
    text = "\n".join(line.text for line in lines)
    for words in ("last digit of the layer's number", "bits a weight, rounded; + from 10",
                  "worst above note; · none", "|mean(code-zero)|, full at 1 step"):  # fmt: skip
        assert words in " ".join(text.split())
    assert all(cells(line.text) <= width for line in lines)
    assert "+" in next(line.text for line in lines if line.text.startswith(" bits")) or count < 6


def test_an_empty_tally_is_no_layer() -> None:
    assert layer_lines(ScanTally().layers, 80, False, "-") == []


def test_a_group_without_a_size_and_a_scale_without_a_second_dtype_have_words() -> None:
    assert value_words("group", {"axis": "in", "size": None}) == "along in"
    assert value_words("group", {"axis": "channel", "size": None}) == "per channel"
    scale = {"dtype": "e4m3", "second_level": {"dtype": None, "direction": "divide", "per": None}}
    assert value_words("scale", scale) == "e4m3; a second level divides"
    scale["second_level"] = {"dtype": "f32", "direction": "multiply", "per": "tensor"}
    assert value_words("scale", scale) == "e4m3; f32 per tensor"


def test_a_packing_is_said_in_one_order_whatever_part_of_it_is_stated() -> None:
    whole = {"word": "I32", "axis": "out", "order": "awq"}
    assert value_words("packing", whole) == "I32 along out awq"
    assert value_words("packing", {"axis": "in", "order": "sequential"}) == "along in sequential"
    assert value_words("packing", {"order": "low_first"}) == "low_first"


def test_planes_are_named_as_a_scan_names_them() -> None:
    read = looked_at_lines(facts_of(SAMPLES / "smol-gguf-q4_k_m"), 100)[0].text
    assert "minima 100%" in read
    assert "zeros" not in read
    assert "second-level" not in read


async def test_i_answers_for_the_headline_where_the_line_has_no_number(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        app.screen.query_one("#why").focus()
        await press(pilot, "i")
        said = app.screen.text
        assert "bits a weight: 8 * " in said
        assert "int4 g128 asym: 2 tensors" in said


def test_a_what_if_of_the_order_fits_beside_the_tabs_at_80_columns() -> None:
    found, _ = seen(SAMPLES / "smol-ct-nvfp4")
    choice = choice_of(found.states[0])
    assert choice is not None
    other = choice.other_order()
    assert other is not None
    banner = other.banner()
    assert banner is not None
    assert len(" | ".join(banner)) <= 42


def test_gguf_contracts_name_the_header_and_i_names_the_file() -> None:
    found, _ = seen(SAMPLES / "smol-gguf-q4_k_m")
    lines = contract_lines(found.states[1], 80, False)
    text = " ".join(" ".join(line.text.split()) for line in lines)
    assert "header)" in text
    assert ".gguf" not in text
    assert any(".gguf#" in sentence for line in lines for sentence in line.about)


def test_a_finding_on_a_stored_tensor_is_not_counted_among_the_quantized_ones() -> None:
    def words(subject: Subject, count: int = 1) -> str:
        finding = Finding(
            code="QH004", name="n", kind=None, severity="warning", confidence="proved",
            subject=subject, message="m", count=count,
        )  # fmt: skip
        return members_words(finding, 14)

    assert words(Subject(stored="model.norm.weight", file="a")) == "1 stored"
    assert words(Subject(tensor="q_proj.weight", stored="q_proj.scales")) == "1 of 14"
    assert words(Subject(), count=3) == "3 of 14"
    assert words(Subject(file="a")) == "file"
    assert words(Subject(file="config.json", config_key="k")) == "config"
