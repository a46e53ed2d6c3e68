"""Damaged files and odd strings give an answer or one typed error, never a traceback or a wrong word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint, write_safetensors
from gguf_builder import by_gguf, weight, write_blocks, write_gguf
from quantscope.checkpoint import Checkpoint
from quantscope.cli.main import run
from quantscope.decode.parts import Window
from quantscope.decode.plane_reader import to_float32
from quantscope.decode.window import decode_window
from quantscope.rules import names
from quantscope.rules.catalogue import judge
from quantscope.session.pipeline import Scope, inspect
from report_checkpoints import config, write_gptq

Q = "model.layers.0.self_attn.q_proj"


def report_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    run(["scan", str(folder), "--json", "-"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def rechecked(folder: Path, *options: str) -> int:
    target = folder.parent / "report.json"
    run(["scan", str(folder), "--json", str(target), *options, "--quiet"])
    return run(["recheck", str(target), str(folder)])


@pytest.mark.parametrize("type_name", ["NVFP4", "MXFP4", "Q8_0", "Q4_K"])
def test_one_block_of_several_rows_decodes_as_gguf_does(type_name: str, tmp_path: Path) -> None:
    """A row of at most four blocks is read whole, and one block of it is no contiguous run."""
    data = weight(type_name, 5, 4)
    path = write_gguf(tmp_path / "a.gguf", {"blk.0.ffn_up.weight": (type_name, data)})
    wanted = by_gguf(type_name, data)
    with Checkpoint.open(str(path)) as checkpoint:
        state = inspect(checkpoint).states[0]
        assert state.reading is not None
        block = state.reading.shape[-1] // 4
        window = Window(range(1, 4), range(block, block + 8))
        family = checkpoint.family(state.tensor)
        reader = checkpoint.reader()
        found = decode_window(family, state.tensor, state.reading, window, reader)
        parts = family.parts(state.tensor, state.reading, window, reader)
        combined = family.combine(parts, state.reading, False)
    assert np.array_equal(found, wanted[1:4, block : block + 8])
    assert np.array_equal(combined, found)


def test_a_scale_that_is_not_finite_is_shown_beside_its_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planes = write_gptq(tmp_path / "m", (Q,))[Q]
    planes.scales[0, 0] = np.inf
    write_safetensors(tmp_path / "m" / "model.safetensors", planes.tensors(Q, minus_one=False))
    assert run(["bytes", str(tmp_path / "m"), "--tensor", Q, "--at", "0,0"]) == 0
    assert ") * inf (0x7ff0000000000000) = " in capsys.readouterr().out


def test_bytes_of_a_withdrawn_type_say_why_there_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_blocks(tmp_path / "a.gguf", "blk.0.ffn_up.weight", "Q4_0", weight("Q4_0", 8, 8))
    blob = bytearray(path.read_bytes())
    at = blob.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    blob[at] = 31
    path.write_bytes(blob)
    code = run(["bytes", str(path), "--tensor", "blk.0.ffn_up.weight", "--at", "0,0"])
    assert code == 4
    message = capsys.readouterr().err
    assert "no element can be located" in message
    assert "KeyError" not in message


def test_half_a_surrogate_pair_does_not_reach_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "m"
    write_gptq(folder, (Q,), declared=config(desc_act="\ud800"))
    raw = json.dumps(report_of(folder, capsys))
    assert "\\ud800" not in raw
    assert rechecked(folder) == 0


def test_two_findings_of_one_code_and_subject_are_both_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    other = "model.layers.1.self_attn.q_proj"
    planes = write_gptq(folder, (Q, other))
    tensors = {n: t for m in planes for n, t in planes[m].tensors(m, minus_one=False).items()}
    del tensors[f"{other}.scales"], tensors[f"{other}.qzeros"]
    write_safetensors(folder / "model.safetensors", tensors)
    with Checkpoint.open(str(folder)) as checkpoint:
        ids = [finding.id for finding in judge(inspect(checkpoint)).findings]
    assert len(ids) != len(set(ids)), "the case needs two findings of one id"
    assert rechecked(folder) == 0


def test_counts_of_any_size_cost_nothing(tmp_path: Path) -> None:
    """A set of 4 294 967 295 block numbers would need more memory than a machine has."""
    assert names.absent({0, 1}, 2**63, limit=3) == ([2, 3, 4], 2**63 - 2)
    assert names.absent({0, 1}, 2) == ([], 0)
    rows = weight("Q8_0", 8, 8)
    tensors = {"token_embd.weight": ("Q8_0", rows), "blk.0.ffn_up.weight": ("Q8_0", rows)}
    path = write_gguf(tmp_path / "a.gguf", tensors, keys={"llama.block_count": 2**32 - 1})
    with Checkpoint.open(str(path)) as checkpoint:
        found = [f.message for f in judge(inspect(checkpoint)).findings if f.code == "QV010"]
    assert any("4294967295" in message for message in found)


@pytest.mark.parametrize("dims", [(256, 1, 2**40), (256, 0, 2**40), (0, 2**40, 2**20)])
def test_a_stack_of_a_trillion_experts_is_one_tensor(dims: tuple[int, ...], tmp_path: Path) -> None:
    name = "blk.0.ffn_up_exps.weight"
    path = write_gguf(
        tmp_path / "a.gguf", {name: ("Q8_0", weight("Q8_0", 24, 8).reshape(2, 12, -1))}
    )
    blob = bytearray(path.read_bytes())
    at = blob.index(name.encode()) + len(name) + 4
    blob[at : at + 24] = b"".join(extent.to_bytes(8, "little") for extent in dims)
    path.write_bytes(blob)
    with Checkpoint.open(str(path)) as checkpoint:
        assert len(checkpoint.grouping.tensors) <= 1
        assert judge(inspect(checkpoint)).findings[0].severity == "violation"


@pytest.mark.parametrize("rows", [2**34, 2**50, 2**61])
def test_a_deep_scan_of_rows_that_are_not_there_ends(rows: int, tmp_path: Path) -> None:
    """Lists of all windows or byte runs of such a tensor would need more memory than a machine has."""
    name = "blk.0.ffn_up.weight"
    path = write_gguf(tmp_path / "a.gguf", {name: ("Q8_0", weight("Q8_0", 24, 8))})
    blob = bytearray(path.read_bytes())
    at = blob.index(name.encode()) + len(name) + 4 + 8
    blob[at : at + 8] = rows.to_bytes(8, "little")
    path.write_bytes(blob)
    with Checkpoint.open(str(path)) as checkpoint:
        found = judge(inspect(checkpoint, Scope(mode="deep"))).findings
    assert found[0].severity == "violation"


@pytest.mark.parametrize("key", ["split.count", "split.no", "split.tensors.count"])
def test_a_split_key_that_is_an_array_or_text_is_a_finding(key: str, tmp_path: Path) -> None:
    for number in (1, 2):
        path = tmp_path / f"m-{number:05d}-of-00002.gguf"
        name = f"blk.{number}.ffn_up.weight"
        keys: dict[str, int | str] = {
            "split.no": number - 1,
            "split.count": 2,
            "split.tensors.count": 2,
        }
        write_gguf(path, {name: ("Q8_0", weight("Q8_0", 8, 8))}, keys=keys)
    blob = path.read_bytes()
    at = blob.index(key.encode()) + len(key)
    array = (9).to_bytes(4, "little") + (4).to_bytes(4, "little") + (0).to_bytes(8, "little")
    changed = blob[:at] + array + blob[at + 8 :]
    start = changed.index(b"blk.2") + len("blk.2.ffn_up.weight") + 4 + 16 + 4 + 8
    base = -(-start // 32) * 32
    old = blob.index(b"blk.2") + len("blk.2.ffn_up.weight") + 4 + 16 + 4 + 8
    path.write_bytes(changed[:start].ljust(base, b"\0") + blob[-(-old // 32) * 32 :])
    with Checkpoint.open(str(tmp_path)) as checkpoint:
        findings = judge(inspect(checkpoint)).findings
    assert any(f.kind == "GG-SPLIT" and f.severity == "violation" for f in findings)


@pytest.mark.filterwarnings("error")
def test_a_double_beyond_float32_is_infinite_without_a_word() -> None:
    assert np.isposinf(to_float32(np.array([1e300]), "F64")).all()


def test_a_zero_plane_with_fewer_groups_than_the_scales_ends_no_scan(tmp_path: Path) -> None:
    """Scales turned round make more groups than the zero plane has; no reading fits, and the scan says so."""
    rng = np.random.default_rng(0)
    module = "model.layers.0.self_attn.k_proj"
    tensors = {
        f"{module}.weight_packed": rng.integers(0, 2**31, (64, 32), dtype=np.int32),
        f"{module}.weight_scale": rng.random((2, 64)).astype(np.float16),
        f"{module}.weight_zero_point": rng.integers(0, 2**31, (8, 2), dtype=np.int32),
        f"{module}.weight_shape": np.array([64, 256], np.int64),
    }
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": False,
        "strategy": "group",
        "group_size": 128,
    }
    section = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
    }
    write_checkpoint(tmp_path, tensors, {"quantization_config": section})
    assert run(["scan", str(tmp_path), "--quiet"]) == 1
