"""What the bytes of real checkpoints say when every declaration is taken away or falsified."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.session.inspection import Inspection
from quantscope.session.pipeline import inspect

STORED_ZEROS: dict[str, tuple[str, int]] = {
    "auto-round-w2g32-asym-autoround": ("as_is", 2),
    "auto-round-w4g128-asym-autogptq": ("minus_one", 4),
    "autoawq-gemm-g128": ("as_is", 4),
    "autoawq-gemv-g128": ("as_is", 4),
    "autogptq-w4g128-asym": ("minus_one", 4),
    "gptqmodel-awq-gemm-g128-asym": ("as_is", 4),
    "gptqmodel-w3g128-sym": ("minus_one", 3),
    "gptqmodel-w4g128-asym-v1": ("minus_one", 4),
    "gptqmodel-w4g128-asym-v2": ("as_is", 4),
    "gptqmodel-w4g128-sym": ("minus_one", 4),
    "gptqmodel-w4g128-sym-descact": ("minus_one", 4),
    "gptqmodel-w5g128-sym": ("as_is", 5),
    "llmcompressor-w3a16-g128-asym": ("as_is", 3),
    "llmcompressor-w4a16-asym-g128": ("as_is", 4),
}
"""Folder -> true convention and bits of its integer zeros."""


def without_metadata(source: Path, target: Path) -> None:
    """Copy a safetensors file with `__metadata__` taken out of its header."""
    data = source.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def stripped(folder: Path, target: Path) -> Path:
    """The folder's tensors alone: no config, no metadata."""
    target.mkdir()
    for file in folder.glob("*.safetensors"):
        if file.name != "oracle.safetensors":
            without_metadata(file, target / file.name)
    return target


def falsified(folder: Path, target: Path, change: Callable[[dict], None]) -> Path:
    """A copy of the folder whose every quantization declaration went through `change`."""
    target.mkdir()
    for file in folder.iterdir():
        if file.name == "config.json":
            config = json.loads(file.read_text())
            change(config["quantization_config"])
            (target / file.name).write_text(json.dumps(config))
        elif file.name in ("quantize_config.json", "quantization_config.json"):
            config = json.loads(file.read_text())
            change(config)
            (target / file.name).write_text(json.dumps(config))
        elif file.suffix == ".safetensors" and file.name != "oracle.safetensors":
            shutil.copy(file, target / file.name)
    return target


def inspected(folder: Path) -> Inspection:
    with Checkpoint.open(str(folder)) as checkpoint:
        return inspect(checkpoint)


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(STORED_ZEROS))
def test_convention_is_decisive_without_any_declaration(
    real_set: Path, tmp_path: Path, name: str
) -> None:
    convention, _ = STORED_ZEROS[name]
    found = inspected(stripped(real_set / name, tmp_path / "bare"))
    assert len(found.states) == 14
    for state in found.states:
        field = state.contract["zero_convention"]
        assert field.declared == ()
        assert field.inferred is not None, state.tensor.name
        assert (field.inferred.value, field.inferred.strength) == (convention, "decisive")
        assert field.match == "inferred_only"


@pytest.mark.real
def test_eight_bit_modules_beside_four_bit_ones_are_not_decided_wrongly(
    real_set: Path, tmp_path: Path
) -> None:
    found = inspected(stripped(real_set / "gptqmodel-w4g128-dynamic-mixed", tmp_path / "bare"))
    widths = {state.tensor.name: state.reading.bit_width for state in found.states if state.reading}
    assert sorted(set(widths.values())) == [4, 8]
    for state in found.states:
        inferred = state.contract["zero_convention"].inferred
        assert inferred is None or inferred.value == "minus_one", state.tensor.name


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "written"),
    [("gptqmodel-w4g128-asym-v1", "gptq_v2"), ("gptqmodel-w4g128-asym-v2", "gptq")],
)
def test_a_falsified_format_is_a_disagreement_and_the_reading_stays_that_of_the_bytes(
    real_set: Path, tmp_path: Path, name: str, written: str
) -> None:
    def change(declared: dict) -> None:
        declared["checkpoint_format"] = declared["format"] = written

    found = inspected(falsified(real_set / name, tmp_path / "liar", change))
    for state in found.states:
        field = state.contract["zero_convention"]
        assert field.match == "disagree"
        assert field.inferred is not None
        assert field.inferred.value == STORED_ZEROS[name][0]
        assert state.reading is not None
        assert state.reading.zero_convention == STORED_ZEROS[name][0]
        assert state.declared_reading is not None
        assert state.declared_reading.zero_convention != STORED_ZEROS[name][0]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "said", "family"),
    [
        ("gptqmodel-w4g128-asym-v1", "awq", "gptq"),
        ("autoawq-gemm-g128", "gptq", "awq"),
    ],
)
def test_shapes_keep_the_family_that_a_falsified_method_denies(
    real_set: Path, tmp_path: Path, name: str, said: str, family: str
) -> None:
    def change(declared: dict) -> None:
        for key in ("checkpoint_format", "format", "version", "method", "meta"):
            declared.pop(key, None)
        declared["quant_method"] = said

    found = inspected(falsified(real_set / name, tmp_path / "liar", change))
    assert len(found.states) == 14
    for state in found.states:
        assert state.tensor.family.startswith(family)
        assert any(field.match == "disagree" for field in state.contract.fields.values())


@pytest.mark.real
def test_one_layer_in_the_other_convention_is_the_odd_one_out(
    real_set: Path, tmp_path: Path
) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    folder = stripped(real_set / "autogptq-w4g128-asym", tmp_path / "odd")
    (file,) = folder.glob("*.safetensors")
    with safe_open(file, framework="np") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    odd = "model.layers.1.self_attn.q_proj"
    words = tensors[f"{odd}.qzeros"].view("uint32")
    tensors[f"{odd}.qzeros"] = (words + 0x11111111).view("int32")
    save_file(tensors, file)
    found = inspected(folder)
    by_name = {state.tensor.name: state.contract["zero_convention"] for state in found.states}
    assert by_name.pop(f"{odd}.weight").inferred.value == "as_is"  # type: ignore[union-attr]
    assert {field.inferred.value for field in by_name.values() if field.inferred} == {"minus_one"}


@pytest.mark.real
def test_symmetric_twins_that_differ_only_in_their_constant_word_are_told_apart(
    real_set: Path, tmp_path: Path
) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    results = []
    for number, word in enumerate((0x77777777, 0x88888888)):
        folder = stripped(real_set / "gptqmodel-w4g128-sym", tmp_path / f"twin{number}")
        (file,) = folder.glob("*.safetensors")
        names_kept = {}
        with safe_open(file, framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118
                if ".layers." in name and "norm" not in name:
                    names_kept[name] = opened.get_tensor(name)
        for name, tensor in names_kept.items():
            if name.endswith("qzeros"):
                tensor.view("uint32")[:] = word
        save_file(names_kept, file)
        found = inspected(folder)
        results.append({s.contract["zero_convention"].inferred for s in found.states})
    (first,), (second,) = results
    # The codes are those of a minus-one file: with 0x88888888 in its place they contradict the constant.
    assert first is not None
    assert first.value == "minus_one"
    assert second != first


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "direction"), [("llmcompressor-nvfp4", "divide"), ("modelopt-nvfp4", "multiply")]
)
def test_the_decode_rule_follows_from_the_direction_of_the_global_scale(
    real_set: Path, tmp_path: Path, name: str, direction: str
) -> None:
    with Checkpoint.open(str(stripped(real_set / name, tmp_path / "bare"))) as checkpoint:
        states = inspect(checkpoint).states
    for state in states:
        rule = state.contract["arithmetic"]
        assert rule.match == "inferred_only"
        assert ("/" in json.dumps(rule.inferred.value)) == (direction == "divide")
