"""Planes past the end of their file: counted to the byte, and never among what holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantscope.cli import main
from quantscope.infer.cut_planes import missing_bytes
from quantscope.model import Plane, Span
from report_checkpoints import write_gptq

NAMES = ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj")


@pytest.mark.parametrize("seed", range(200))
def test_missing_bytes_are_those_that_no_read_can_give(seed: int) -> None:
    generator = np.random.default_rng(seed)
    count, nbytes = (int(n) for n in generator.integers(1, 6, 2))
    stride = nbytes + int(generator.integers(0, 4)) if generator.random() < 0.7 else 0
    count = count if stride else 1
    offset, size = (int(n) for n in generator.integers(0, 40, 2))
    span = Span(file_id=0, byte_offset=offset, nbytes=nbytes, count=count, stride_bytes=stride)
    plane = Plane(
        role="codes",
        suffix="w",
        stored_name="w",
        spans=(span,),
        dtype="U8",
        shape=(count * nbytes,),
    )
    positions = [offset + run * stride + byte for run in range(count) for byte in range(nbytes)]
    assert missing_bytes(plane, lambda _: size) == sum(at >= size for at in positions)


def cut_scales(folder: Path) -> int:
    """Cuts the file before its last plane of scales; gives that plane's bytes."""
    write_gptq(folder, NAMES)
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8 : 8 + size])
    entries.pop("__metadata__", None)
    name = max(entries, key=lambda key: entries[key]["data_offsets"][1])
    start, end = entries[name]["data_offsets"]
    file.write_bytes(raw[: 8 + size + start])
    return int(end - start)


@pytest.mark.parametrize("mode", ["--headers-only", "--deep"])
def test_equations_over_absent_bytes_do_not_count_as_held(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = cut_scales(tmp_path)
    assert main.run(["scan", str(tmp_path), mode]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "5 of 6 size equations" in text
    assert "no contradiction in 1 of 2 tensors (1 cut off by the end of a file)" in text
    main.run(["scan", str(tmp_path), mode, "--json", "-"])
    document = json.loads(capsys.readouterr().out)
    (cut,) = [entry for entry in document["tensors"] if False in _holds(entry)]
    assert cut["count"] == 1
    (equation,) = [e for e in cut["equations"] if e["holds"] is False]
    assert equation["actual_bytes"] == equation["expected_bytes"] - absent == 0
    assert "past the end of the file" in equation["note"]
    assert [plane["missing_bytes"] for plane in cut["planes"] if plane["missing_bytes"]] == [absent]
    scales = document["scope"]["planes"]["scale"]
    assert scales["bytes_read"] <= scales["bytes_total"] - absent
    unread = {entry["what"]: entry["why"] for entry in document["not_checked"]}
    assert (
        unread[f"{absent} bytes of planes of 1 quantized tensor"]
        == "they lie past the end of the file"
    )
    codes = [why for what, why in unread.items() if what.startswith("codes of")]
    assert codes == (
        ["headers only"] if mode == "--headers-only" else ["1 tensor could not be unpacked"]
    )
    findings = {finding["code"] for finding in document["findings"]}
    assert "QC002" in findings
    assert "QP001" not in findings


def _holds(entry: Any) -> list[bool | None]:
    return [equation["holds"] for equation in entry["equations"]]


def test_show_names_the_absent_bytes_and_no_wrong_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = cut_scales(tmp_path)
    shown = []
    for name in NAMES:
        main.run(["show", str(tmp_path), "--tensor", name])
        text = " ".join(capsys.readouterr().out.split())
        shown += [part for part in text.split("holds") if "BROKEN" in part]
    (part,) = shown
    assert f"BROKEN ({absent} of {absent} bytes lie past the end of the file)" in part
    assert "stored [" not in part.partition("BROKEN")[0].rpartition("scales ")[2]


def test_a_cut_sharded_checkpoint_says_what_lies_past_the_end(
    real_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (real_set / "llmcompressor-w4a16-sharded").iterdir():
        data = file.read_bytes()
        size = 300_000 if file.name == "model-00002-of-00003.safetensors" else len(data)
        (tmp_path / file.name).write_bytes(data[:size])
    assert main.run(["scan", str(tmp_path)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "24 of 42 size equations; no contradiction in 1 of 14 tensors" in text
