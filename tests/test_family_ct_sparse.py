"""Legacy sparse formats of compressed-tensors 0.10.2, against weights that the package itself decompressed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoint_builder import read_safetensors_values
from quantscope.checkpoint import Checkpoint
from quantscope.cli import main
from quantscope.decode.parts import Window
from quantscope.decode.window import decode_window
from quantscope.errors import UndecodableError
from quantscope.session.pipeline import inspect
from safetensors import safe_open
from variant_oracle import DATA, Variant, check_accounted

SPARSE = ("compressed-tensors-sparse-24-bitmask", "compressed-tensors-sparse-bitmask")


@pytest.mark.parametrize("folder", SPARSE)
def test_bitmask_weights_are_the_packages_own(folder: str) -> None:
    variant = Variant(folder)
    check_accounted(variant, 3, f"compressed_tensors:{folder.removeprefix('compressed-tensors-')}")
    assert len(variant.oracle) == 3
    for name in variant.oracle:
        wanted = variant.wanted(name)
        found = variant.decode(name)
        np.testing.assert_array_equal(found.view(np.uint32) << 1, wanted.view(np.uint32) << 1)
        part = variant.decode(name, Window(range(3, 11), range(5, 31)))
        np.testing.assert_array_equal(part, wanted[3:11, 5:31])


@pytest.mark.parametrize("folder", SPARSE)
def test_a_kept_element_is_located_at_its_bytes(folder: str) -> None:
    variant = Variant(folder)
    name = "model.layers.0.mlp.up_proj.weight"
    state = variant.state(name)
    family, reader = variant.checkpoint.family(state.tensor), variant.checkpoint.reader()
    assert state.reading is not None
    wanted = variant.wanted(name)
    for row, col in ((0, 0), (7, 13), (23, 39), (11, 8)):
        cell = family.locate(state.tensor, state.reading, row, col, reader)
        (bit,) = cell.per_plane["meta"]
        stored = variant.checkpoint.sources[bit.file_id].read_at(bit.byte_offset, 1)[0]
        assert bool(stored >> bit.low_bit & 1) == (wanted[row, col] != 0)
        if wanted[row, col]:
            (span,) = cell.bits
            data = variant.checkpoint.sources[span.file_id].read_at(span.byte_offset, 2)
            value = np.array([int.from_bytes(data, "little") << 16], np.uint32).view(np.float32)
            assert value[0] == wanted[row, col]
        else:
            assert cell.bits == (bit,)


def test_the_structure_is_declared_and_an_fp8_scale_multiplies() -> None:
    state = Variant(SPARSE[0]).state("model.layers.0.mlp.gate_proj.weight")
    fields = {claim.field: claim.value for claim in state.claims}
    assert fields["sparsity"] == "2:4"
    assert state.reading is not None
    assert state.reading.element == "e4m3fn"
    assert state.reading.contract_values()["group"] == {"axis": "channel", "size": None}


@pytest.mark.parametrize("folder", SPARSE)
def test_a_mask_that_keeps_more_than_is_stored_is_refused(folder: str, tmp_path: Path) -> None:
    copy = shutil.copytree(DATA / folder, tmp_path / "c")
    file = copy / "model.safetensors"
    with Checkpoint.open(str(copy)) as checkpoint:
        plane = checkpoint.find("model.layers.0.mlp.up_proj").plane_named("bitmask")
        assert plane is not None
    data = bytearray(file.read_bytes())
    data[plane.byte_offset] = 0xFF
    file.write_bytes(bytes(data))
    with Checkpoint.open(str(copy)) as checkpoint:
        tensor = checkpoint.find("model.layers.0.mlp.up_proj")
        family = checkpoint.family(tensor)
        (reading,) = family.candidates(tensor)
        window = Window(range(24), range(40))
        with pytest.raises(UndecodableError, match="bitmask"):
            decode_window(family, tensor, reading, window, checkpoint.reader())
        assert not inspect(checkpoint).failures


def test_marlin_24_is_sized_and_says_why_it_is_not_decoded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    variant = Variant("compressed-tensors-marlin-24")
    assert not variant.checkpoint.grouping.orphans
    assert not variant.checkpoint.grouping.unrecognised
    widths = {}
    for state in variant.inspection.states:
        assert state.tensor.word == "compressed_tensors:marlin-24"
        assert len(state.solved.solutions) == 1
        assert all(equation.holds for equation in state.solved.equations)
        assert state.reading is not None
        widths[state.tensor.module.rpartition(".")[2]] = (
            state.reading.bit_width,
            state.reading.shape,
            state.reading.contract_values()["group"],
        )
        assert "no decompressor" in str(state.undecodable)
    assert widths == {
        "up_proj": (4, (256, 256), {"axis": "in", "size": 128}),
        "down_proj": (8, (256, 128), {"axis": "channel", "size": None}),
    }
    path = str(variant.folder)
    assert main.run(["decode", path, "--tensor", "model.layers.0.mlp.up_proj"]) == 4
    assert "no decompressor" in capsys.readouterr().err


@pytest.mark.parametrize("folder", [*SPARSE, "compressed-tensors-marlin-24"])
def test_good_files_stay_quiet(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["scan", str(DATA / folder)]) == 0, capsys.readouterr().out


def test_the_stored_dtypes_are_those_of_the_package() -> None:
    with safe_open(DATA / SPARSE[0] / "model.safetensors", "np") as file:
        assert file.get_slice("model.layers.0.mlp.up_proj.bitmask").get_dtype() == "U8"
        assert file.get_slice("model.layers.0.mlp.up_proj.shape").get_shape() == [2, 1]
    values = read_safetensors_values(DATA / SPARSE[1] / "oracle.safetensors")
    assert all((np.asarray(value) == 0).mean() > 0.3 for value in values.values())
