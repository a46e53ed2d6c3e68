"""Every sample gives the finding that it was made for, with its severity and subject, and nothing louder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from quantscope.model import SEVERITIES
from quantscope.samples import Sample, faults, list_samples, make_sample, manifest, write_samples
from quantscope.samples.library import SHIPPED_FAULTS, shipped_folder
from rules_support import lines, loud, scan, words

GOOD = [sample for sample in list_samples() if sample.make is None]


def mode_of(sample: Sample) -> str:
    return "deep" if "deep" in sample.what else "sample"


@pytest.mark.parametrize("sample", faults(), ids=lambda sample: sample.name)
def test_a_faulty_sample_gives_what_it_was_made_for(sample: Sample, tmp_path: Path) -> None:
    inspection = scan(make_sample(sample, tmp_path / sample.name), mode_of(sample))
    assert not [entry for entry in inspection.rules_skipped if "failed" in entry[1]]
    for expected in sample.expected:
        assert any(
            f.code == expected.code
            and f.severity == expected.severity
            and expected.subject in words(f.subject)
            for f in inspection.findings
        ), (expected, lines(list(inspection.findings)))
    known = {expected.code for expected in sample.expected} | set(sample.follows)
    assert not lines([f for f in loud(inspection) if f.code not in known])
    worst = min(SEVERITIES.index(expected.severity) for expected in sample.expected)
    if not sample.follows:
        assert SEVERITIES.index(inspection.findings[0].severity) == worst


@pytest.mark.parametrize("sample", GOOD, ids=lambda sample: sample.name)
def test_a_good_sample_gives_nothing_above_note_but_what_its_producer_caused(
    sample: Sample,
) -> None:
    inspection = scan(shipped_folder() / sample.name)
    allowed = {expected.code for expected in sample.expected}
    assert not lines([f for f in loud(inspection) if f.code not in allowed])
    assert allowed <= {f.code for f in inspection.findings}
    assert len(inspection.findings) <= 10


def test_samples_are_made_byte_for_byte_the_same_each_time(tmp_path: Path) -> None:
    for sample in faults():
        digests = []
        for run in ("one", "two"):
            folder = make_sample(sample, tmp_path / run / sample.name)
            digests.append(
                [
                    (path.name, hashlib.sha256(path.read_bytes()).hexdigest())
                    for path in sorted(folder.iterdir())
                    if path.exists()
                ]
            )
        assert digests[0] == digests[1], sample.name


def test_shipped_faulty_samples_and_the_manifest_are_current(tmp_path: Path) -> None:
    stored = json.loads((shipped_folder() / "MANIFEST.json").read_text())
    assert stored == json.loads(json.dumps(manifest()))
    for sample in faults():
        if sample.name in SHIPPED_FAULTS:
            made = make_sample(sample, tmp_path / sample.name)
            for path in made.iterdir():
                shipped = shipped_folder() / sample.name / path.name
                assert shipped.read_bytes() == path.read_bytes(), path


def test_the_shipped_samples_are_small() -> None:
    total = sum(p.stat().st_size for p in shipped_folder().rglob("*") if p.is_file())
    assert total < 2_500_000


def test_write_samples_writes_those_asked_for_and_a_manifest(tmp_path: Path) -> None:
    written = write_samples(tmp_path / "out", ["smol-w4-liar", "gptq-scale-nan"])
    assert sorted(path.name for path in written) == ["gptq-scale-nan", "smol-w4-liar"]
    names = json.loads((tmp_path / "out" / "MANIFEST.json").read_text())
    assert names["samples"]["smol-w4-liar"]["expected"][0]["severity"] == "disagreement"


def test_names_are_unique() -> None:
    names = [sample.name for sample in list_samples()]
    assert len(names) == len(set(names))
