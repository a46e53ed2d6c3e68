"""The editors of samples write back what they read, byte for byte where nothing was changed."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from quantscope.samples.gguf_edit import GgufFile
from quantscope.samples.st_edit import StFile


@pytest.mark.real
def test_gguf_is_written_back_byte_for_byte(real_set: Path, tmp_path: Path) -> None:
    for path in sorted(real_set.glob("gguf-q*/*.gguf")):
        copy = tmp_path / "copy.gguf"
        GgufFile.read(path).write(copy)
        assert copy.read_bytes() == path.read_bytes(), path.name


@pytest.mark.real
def test_safetensors_keep_every_tensor_and_the_metadata(real_set: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    path = real_set / "autogptq-w4g128-asym" / "gptq_model-4bit-128g.safetensors"
    copy = tmp_path / "copy.safetensors"
    StFile.read(path).write(copy)
    with (
        safetensors.safe_open(path, framework="np") as one,
        safetensors.safe_open(copy, framework="np") as two,
    ):
        assert one.metadata() == two.metadata()
        assert sorted(one.keys()) == sorted(two.keys())
        assert all((one.get_tensor(k) == two.get_tensor(k)).all() for k in one.keys())  # noqa: SIM118
    (length,) = struct.unpack("<Q", copy.read_bytes()[:8])
    assert length % 8 == 0
    assert json.loads(copy.read_bytes()[8 : 8 + length])
