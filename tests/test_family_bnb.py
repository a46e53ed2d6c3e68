"""bitsandbytes: quant_state tells the shape and the blocks, config keys that do not apply stay silent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.small_floats import float_table
from quantscope.decode.window import Window, decode_window
from quantscope.errors import UndecodableError
from quantscope.session.pipeline import inspect

DATA = Path(__file__).parent / "data"


def state_bytes(**keys: Any) -> np.ndarray:
    content = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [4, 32]} | keys
    return np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)


def nf4(**keys: Any) -> dict[str, Any]:
    """Element i of the flat weight has code i mod 16; the high nibble comes first."""
    codes = np.arange(128, dtype=np.uint8) % 16
    return {
        "m.weight": (codes[0::2] << 4 | codes[1::2]).reshape(-1, 1),
        "m.weight.absmax": np.array([2.0, 4.0], dtype=np.float32),
        "m.weight.quant_map": np.array(float_table("nf4")),
        "m.weight.quant_state.bitsandbytes__nf4": state_bytes(**keys),
    }


def decoded(folder: Path, name: str) -> np.ndarray:
    checkpoint = Checkpoint.open(str(folder))
    state = inspect(checkpoint).state(name)
    reading = state.reading
    assert reading is not None
    window = Window(range(reading.shape[0]), range(reading.shape[1]))
    family = checkpoint.family(state.tensor)
    return decode_window(family, state.tensor, reading, window, checkpoint.reader())


def test_the_high_nibble_is_the_even_element(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, nf4())
    wanted = float_table("nf4")[np.arange(128) % 16].reshape(4, 32)
    wanted = wanted * np.array([2.0, 2.0, 4.0, 4.0], dtype=np.float32)[:, None]
    assert np.array_equal(decoded(tmp_path, "m.weight"), wanted)


def test_the_keys_of_quant_state_are_claims_with_their_place(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, nf4())
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    place = "model.safetensors#m.weight.quant_state.bitsandbytes__nf4"
    assert [str(c.source) for c in state.contract["shape"].declared] == [f"{place}#/shape"]
    assert [str(c.source) for c in state.contract["group"].declared] == [f"{place}#/blocksize"]
    assert {str(c.source) for c in state.contract["element"].declared} == {
        place,
        f"{place}#/quant_type",
    }
    assert state.contract.value("element") == "nf4"


def test_a_map_of_another_kind_contradicts_the_name(tmp_path: Path) -> None:
    tensors = nf4()
    tensors["m.weight.quant_map"] = np.array(float_table("bnb_fp4"))
    write_checkpoint(tmp_path, tensors)
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert state.contract["element"].match == "disagree"


@pytest.mark.parametrize("content", [b"", b"{", b'{"shape": "x"}', b'{"shape": [-1, 3]}'])
def test_a_broken_quant_state_leaves_a_broken_equation(tmp_path: Path, content: bytes) -> None:
    tensors = nf4()
    tensors["m.weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(content, dtype=np.uint8)
    write_checkpoint(tmp_path, tensors)
    inspection = inspect(Checkpoint.open(str(tmp_path)))
    assert len(inspection.states) == 1
    assert not inspection.checkpoint.grouping.failures


def test_a_wrong_block_size_contradicts_the_count_of_scales(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, nf4(blocksize=128))
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert state.contract["group"].match == "disagree"
    assert state.contract.value("group") == {"axis": "flat", "size": 64}


def test_scales_without_quant_state_are_orphans(tmp_path: Path) -> None:
    tensors = nf4()
    del tensors["m.weight.quant_state.bitsandbytes__nf4"]
    write_checkpoint(tmp_path, tensors)
    orphans = Checkpoint.open(str(tmp_path)).grouping.orphans
    assert {o.stored_name for o in orphans} == set(tensors)


def test_four_bit_keys_say_nothing_of_eight_bit_weights(tmp_path: Path) -> None:
    tensors = {
        "m.weight": np.full((4, 32), 127, dtype=np.int8),
        "m.SCB": np.ones(4, dtype=np.float32),
        "m.weight_format": np.array(0, dtype=np.uint8),
    }
    section = {
        "quant_method": "bitsandbytes",
        "load_in_8bit": True,
        "load_in_4bit": False,
        "bnb_4bit_quant_type": "fp4",
    }
    write_checkpoint(tmp_path, tensors, {"quantization_config": section})
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert state.contract["element"].declared_values == ("s8",)
    assert state.contract["element"].match != "disagree"
    first = np.float32(127) * np.float32(7.874015718698502e-3)
    assert np.array_equal(decoded(tmp_path, "m.weight"), np.full((4, 32), first))


def test_kernel_tiles_of_old_int8_are_named_and_not_decoded(tmp_path: Path) -> None:
    tensors = {
        "m.weight": np.zeros((32, 32), dtype=np.int8),
        "m.SCB": np.ones(32, dtype=np.float32),
        "m.weight_format": np.array(2, dtype=np.uint8),
    }
    write_checkpoint(tmp_path, tensors)
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert state.contract["arithmetic"].match == "inexpressible"
    with pytest.raises(UndecodableError, match="col_turing"):
        decoded(tmp_path, "m.weight")


def test_the_storage_dtype_is_compared_with_the_config(tmp_path: Path) -> None:
    shutil.copy(DATA / "bitsandbytes-variants" / "model.safetensors", tmp_path)
    section = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_quant_storage": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": section}))
    inspection = inspect(Checkpoint.open(str(tmp_path)))
    assert inspection.state("nf4_in_bf16.weight").contract["packing"].match != "disagree"
    words = [c.value for c in inspection.state("fp4.weight").contract["element"].declared]
    assert words[-1] == "nf4"
    assert inspection.state("fp4.weight").contract["element"].match == "disagree"
