"""`list`, `show`, `decode` and `bytes`: every value against the planes that the test packed itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from checkpoint_builder import read_safetensors_values
from quantscope.cli import main
from report_checkpoints import HOSTILE, Planes, write_gptq, write_liar

MODULE = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def planes(tmp_path: Path) -> Planes:
    return write_gptq(tmp_path, (MODULE,), extra={"model.norm.weight": np.ones(64, np.float32)})[
        MODULE
    ]


def out(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main.run(list(words)) == code
    return capsys.readouterr().out


def test_list_has_every_stored_tensor_once(
    planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(out(capsys, "list", str(tmp_path), "--json", "-"))["tensors"]
    stored = [row["name"] for row in rows if row["what"] != "quantized"]
    assert sorted(stored) == sorted(read_safetensors_values(tmp_path / "model.safetensors"))
    logical = next(row for row in rows if row["what"] == "quantized")
    assert (logical["name"], logical["dtype"], logical["shape"]) == (
        f"{MODULE}.weight",
        "u4",
        [64, 256],
    )
    text = out(capsys, "list", str(tmp_path), "--tsv")
    lines = [line.split("\t") for line in text.splitlines()]
    assert {len(line) for line in lines} == {9}
    assert len(lines) == len(rows) + 1


@pytest.mark.parametrize("name", [f"{MODULE}.weight", MODULE, f"{MODULE}.qzeros"])
def test_a_tensor_is_found_by_name_module_or_plane(
    name: str, planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = out(capsys, "show", str(tmp_path), "--tensor", name)
    assert text.startswith(f"{MODULE}.weight")
    assert "holds" in text


def test_an_unknown_tensor_names_the_closest(
    planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["show", str(tmp_path), "--tensor", "model.layers.0.self_attn.qproj"]) == 4
    assert MODULE in capsys.readouterr().err


def test_show_gives_the_contract_with_sources(
    planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(out(capsys, "show", str(tmp_path), "--tensor", MODULE, "--json", "-"))
    contract = document["tensor"]["contract"]
    assert contract["element"]["inferred"] == {"value": "u4", "strength": "proved"}
    sources = [claim["source"] for claim in contract["element"]["declared"]]
    assert sources == ["config.json#/quantization_config/bits"]
    assert contract["zero_convention"]["inferred"]["value"] == "as_is"


def test_show_zero_puts_both_readings_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planes = write_liar(tmp_path, (MODULE,))[MODULE]
    text = out(capsys, "show", str(tmp_path), "--tensor", MODULE, "--tab", "zero")
    first = [str(value) for value in planes.zeros[0, :8]]
    stored = next(line for line in text.splitlines() if line.strip().startswith("stored, out"))
    assert re.findall(r"\d+", stored.partition("7")[2])[:8] == first
    assert "config.json (declared)" in text
    says = next(line for line in text.splitlines() if line.strip().startswith("who says so"))
    assert says.rstrip().endswith("bytes (strong)"), "the reading that the bytes support has a name"
    assert "CONTRADICTS" in text


def test_decode_is_code_minus_zero_times_scale(
    planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "w.npy"
    assert main.run(["decode", str(tmp_path), "--tensor", MODULE, "--out", str(target)]) == 0
    decoded = np.load(target)
    assert decoded.dtype == np.float32
    assert np.array_equal(decoded, planes.weights())


def test_decode_codes_windows_and_groups(
    planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.npy"
    words = ["decode", str(tmp_path), "--tensor", MODULE, "--out", str(target)]
    assert main.run([*words, "--codes", "--rows", "3:9", "--cols", "100:"]) == 0
    assert np.array_equal(np.load(target), planes.codes.T[3:9, 100:])
    assert main.run([*words, "--group", "5,2"]) == 0
    assert np.array_equal(np.load(target), planes.weights()[5:6, 128:192])


def test_decode_under_another_reading_is_one_step_off(planes: Planes, tmp_path: Path) -> None:
    target = tmp_path / "w.npy"
    words = ["decode", str(tmp_path), "--tensor", MODULE, "--out", str(target)]
    assert main.run([*words, "--reading", "zero_convention=minus_one"]) == 0
    assert np.array_equal(np.load(target), planes.weights(shift=1))


@pytest.mark.parametrize(
    "words",
    [
        ["--reading", "packing=awq"],
        ["--reading", "nonsense=1"],
        ["--reading", "zero_convention=sideways"],
        ["--rows", "0:65"],
        ["--cols", "300:310"],
        ["--group", "0,4"],
        ["--group", "64,0"],
    ],
)
def test_what_does_not_exist_gives_4_with_a_hint(
    words: list[str], planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["decode", str(tmp_path), "--tensor", MODULE, *words]) == 4
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "try:" in streams.err


def test_decode_says_when_the_files_claim_another_reading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planes = write_liar(tmp_path, (MODULE,))[MODULE]
    target = tmp_path / "w.npy"
    assert main.run(["decode", str(tmp_path), "--tensor", MODULE, "--out", str(target)]) == 0
    assert "claim zero = stored + 1" in capsys.readouterr().err
    assert np.array_equal(np.load(target), planes.weights())


def test_plain_tensors_decode_too(
    planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "n.npy"
    words = ["decode", str(tmp_path), "--tensor", "model.norm.weight", "--out", str(target)]
    assert main.run(words) == 0
    assert np.array_equal(np.load(target), np.ones((1, 64), np.float32))


def _offset(path: Path, name: str) -> int:
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    begin: int = json.loads(blob[8 : 8 + size])[name]["data_offsets"][0]
    return 8 + size + begin


@pytest.mark.parametrize(("row", "col"), [(17, 131), (0, 0), (63, 255)])
def test_bytes_finds_the_nibble_of_a_code(
    row: int, col: int, planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = out(capsys, "bytes", str(tmp_path), "--tensor", MODULE, "--at", f"{row},{col}")
    word = _offset(tmp_path / "model.safetensors", f"{MODULE}.qweight") + 4 * (col // 8 * 64 + row)
    place = col % 8
    code = int(planes.codes[col, row])
    assert f"byte 0x{word + place // 2:X}, word " in text
    assert f"@0x{word:X}, bits {4 * place + 3}..{4 * place}" in text
    assert f"nibble {place} of 0..7 = {code} (0x{code:x})" in text
    zero, scale = int(planes.zeros[col // 64, row]), float(planes.scales[col // 64, row])
    assert f"({code} - {zero}) * {scale:.6g}" in text


def test_bytes_finds_zero_and_scale(
    planes: Planes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bytes", str(tmp_path), "--tensor", MODULE, "--at", "17,131", "--plane"]
    zero = int(planes.zeros[2, 17])
    assert f"nibble 1 of 0..7 = {zero} (0x{zero:x})" in out(capsys, *words, "qzeros")
    scale = f"= {float(planes.scales[2, 17]):.7g}"
    assert scale in out(capsys, *words, "scale")


def test_bytes_says_whose_reading_each_value_is(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).resolve().parents[1] / "sample_checkpoints" / "smol-w4-liar"
    words = ["bytes", str(folder), "--tensor", "model.layers.0.self_attn.k_proj", "--at", "0,0"]
    text = out(capsys, *words)
    assert "value, as the bytes say, (7 - 8) * 0.202637" in text
    assert "as the file claims (7 - 9) * 0.202637" in text


def test_the_zero_table_of_show_keeps_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).resolve().parents[1] / "sample_checkpoints" / "smol-w4-liar"
    words = ["show", str(folder), "--tensor", "model.layers.0.self_attn.k_proj", "--tab", "zero"]
    stored, used = out(capsys, *words).splitlines()[3:5]
    assert stored.rindex("6  6") == used.rindex("6  6")
    assert stored.startswith("  stored, out 0..7 ")


def test_bytes_outside_the_tensor_gives_4(planes: Planes, tmp_path: Path) -> None:
    words = ["bytes", str(tmp_path), "--tensor", MODULE, "--at"]
    assert main.run([*words, "64,0"]) == 4
    assert main.run([*words, "0,0", "--plane", "nope"]) == 4


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert_in_tensor_commands(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"model.layers.0.{name}"
    write_gptq(tmp_path, (module,))
    for words in (
        ["list", str(tmp_path)],
        ["list", str(tmp_path), "--tsv"],
        ["show", str(tmp_path), "--tensor", module],
        ["bytes", str(tmp_path), "--tensor", module, "--at", "1,1"],
    ):
        assert main.run(words) == 0
        text = capsys.readouterr().out
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), words
        if "--tsv" not in words:
            assert "\t" not in text


@pytest.mark.real
def test_decode_equals_the_producers_own_dequantizer(real_set: Path, tmp_path: Path) -> None:
    folder = real_set / "gptqmodel-w4g128-asym-v1"
    for name, expected in read_safetensors_values(folder / "oracle.safetensors").items():
        target = tmp_path / "w.npy"
        assert main.run(["decode", str(folder), "--tensor", name, "--out", str(target)]) == 0
        assert np.array_equal(np.load(target), expected.astype(np.float32)), name
