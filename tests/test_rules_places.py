"""A finding about a value names the bytes of that value, so that a jump lands on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quantscope.samples import write_samples
from rules_support import scan


def bytes_of(folder: Path, code: str) -> bytes:
    """The bytes that the finding of a rule names."""
    (finding,) = [f for f in scan(folder).findings if f.code == code and f.severity != "note"]
    assert finding.subject.byte_range is not None
    assert finding.subject.file is not None
    first, last = finding.subject.byte_range
    return (folder / finding.subject.file).read_bytes()[first:last]


def test_a_nan_code_is_pointed_at(tmp_path: Path) -> None:
    (folder,) = write_samples(tmp_path, ["fp8-nan-codes"])
    assert bytes_of(folder, "QS015") in (b"\x7f", b"\xff")


def test_a_nan_of_a_plain_tensor_is_pointed_at(tmp_path: Path) -> None:
    (folder,) = write_samples(tmp_path, ["plain-nan"])
    found = bytes_of(folder, "QV006")
    wide = {2: lambda b: b"\x00\x00" + b, 4: bytes}[len(found)](found)
    halves = np.frombuffer(found, "<f2") if len(found) == 2 else np.zeros(1)
    assert not np.isfinite(np.frombuffer(wide, "<f4")).all() or not np.isfinite(halves).all()


@pytest.mark.parametrize("name", ["gptq-scale-nan", "ct-sharded-scale-nan"])
def test_a_nan_scale_is_pointed_at(tmp_path: Path, name: str) -> None:
    (folder,) = write_samples(tmp_path, [name])
    findings = [f for f in scan(folder).findings if f.severity == "violation"]
    places = {(f.subject.file, f.subject.byte_range) for f in findings if f.subject.byte_range}
    assert len(places) == 1
    file, (first, last) = places.pop()
    raw = (folder / str(file)).read_bytes()[first:last]
    assert len(raw) == 2
    assert not np.isfinite(np.frombuffer(raw, "<f2")[0])
