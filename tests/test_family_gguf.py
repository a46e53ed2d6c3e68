"""GGUF family: statements of the real set, decode against ggml and gguf-py, bits, experts, byte orders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_builder import DECODED_BY_GGUF, by_gguf, weight, write_blocks, write_gguf
from quantscope.checkpoint import Checkpoint
from quantscope.decode.ggml import BLOCK_TYPES
from quantscope.decode.parts import Window
from quantscope.decode.plain import decode_plain
from quantscope.decode.window import decode_window, window_parts
from quantscope.errors import UndecodableError
from quantscope.session.pipeline import Scope, inspect
from real_oracle import (
    RealCheckpoint,
    check_declarations,
    check_decode,
    check_equations,
    check_statements,
    flip,
)

FOLDERS = (
    "gguf-iq1_s-imat", "gguf-iq2_xxs-imat", "gguf-iq4_nl", "gguf-mxfp4", "gguf-nvfp4", "gguf-q2_k",
    "gguf-q4_0", "gguf-q4_1", "gguf-q4_k_m", "gguf-q5_0", "gguf-q5_k_m", "gguf-q6_k", "gguf-q8_0",
    "gguf-split-q4_k_m", "gguf-tq1_0",
)  # fmt: skip

NOT_SHARED = tuple(
    name
    for name, block in BLOCK_TYPES.items()
    if block.code_kind != "grid" and name not in ("Q4_2", "Q4_3", "TQ1_0")
)
"""Types in files whose code of an element shares no bit with another element's."""


def whole(checkpoint: Checkpoint, name: str, **options: Any) -> Any:
    """Decode of a whole logical tensor."""
    tensor = checkpoint.find(name)
    family = checkpoint.family(tensor)
    reading = next(iter(family.candidates(tensor)))
    rows, cols = options.get("window", (range(reading.shape[0]), range(reading.shape[1])))
    return decode_window(family, tensor, reading, Window(rows, cols), checkpoint.reader())


@pytest.mark.real
@pytest.mark.parametrize("folder", FOLDERS)
def test_real_file_says_and_decodes_what_its_producer_does(real_set: Path, folder: str) -> None:
    real = RealCheckpoint(real_set / folder)
    check_statements(real)
    check_equations(real)
    check_declarations(real)
    check_decode(real)


@pytest.mark.real
def test_big_endian_plain_tensors_have_the_values_of_the_base_weights(real_set: Path) -> None:
    path = next((real_set / "gguf-f16-bigendian").glob("*.gguf"))
    reader = gguf.GGUFReader(path)
    with Checkpoint.open(str(path)) as checkpoint:
        assert not checkpoint.grouping.tensors
        assert len(checkpoint.grouping.plain) == len(reader.tensors) == 20
        for item in reader.tensors:
            stored = checkpoint.find_plain(item.name)
            assert stored is not None
            rows, cols = item.data.reshape(-1, item.data.shape[-1]).shape
            window = Window(range(rows), range(cols))
            found = decode_plain(checkpoint.index, stored, window, checkpoint.reader())
            assert np.array_equal(found, item.data.astype(np.float32).reshape(rows, cols))


@pytest.mark.parametrize("type_name", DECODED_BY_GGUF)
def test_every_type_decodes_as_the_gguf_package(tmp_path: Path, type_name: str) -> None:
    data = weight(type_name, 5, 3)
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": (type_name, data)})
    with Checkpoint.open(str(path)) as checkpoint:
        found = whole(checkpoint, "blk.0.ffn_up.weight")
    assert np.array_equal(found, by_gguf(type_name, data), equal_nan=True)


@pytest.mark.parametrize("type_name", sorted(set(BLOCK_TYPES) - {"Q4_2", "Q4_3"}))
def test_any_window_is_a_cut_of_the_whole_and_parts_make_the_same_bits(
    tmp_path: Path, type_name: str
) -> None:
    size = BLOCK_TYPES[type_name].block_size
    path = write_blocks(tmp_path / "m.gguf", "a.weight", type_name, weight(type_name, 7, 9))
    with Checkpoint.open(str(path)) as checkpoint:
        complete = whole(checkpoint, "a.weight")
        tensor = checkpoint.find("a.weight")
        family, reader = checkpoint.family(tensor), checkpoint.reader()
        reading = next(iter(family.candidates(tensor)))
        for rows, cols in (
            (range(7), range(9 * size)),
            (range(2, 5), range(size - 3, size + 5)),
            (range(6, 7), range(8 * size + 1, 9 * size)),
            (range(0, 7), range(5, 6)),
            (range(3, 3), range(0, 4)),
        ):
            wanted = complete[rows.start : rows.stop, cols.start : cols.stop]
            window = Window(rows, cols)
            found = whole(checkpoint, "a.weight", window=(rows, cols))
            assert np.array_equal(found, wanted, equal_nan=True)
            parts = window_parts(family, tensor, reading, window, reader)
            with np.errstate(all="ignore"):
                made = family.combine(parts, reading, False)
            assert made.tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.parametrize("type_name", NOT_SHARED)
def test_flipping_located_code_bits_changes_that_code_only(tmp_path: Path, type_name: str) -> None:
    size = BLOCK_TYPES[type_name].block_size
    path = write_blocks(tmp_path / "m.gguf", "a.weight", type_name, weight(type_name, 3, 2))
    for row, col in ((0, 0), (1, size // 2), (2, size + 17), (1, 2 * size - 1)):
        before, cell = _codes_and_cell(path, row, col)
        for span in cell.bits:
            flip(path, span)
        after, _ = _codes_and_cell(path, row, col)
        for span in cell.bits:
            flip(path, span)
        assert np.argwhere(before != after).tolist() == [[row, col]]


@pytest.mark.parametrize(
    "type_name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M"]
)
def test_flipping_the_bits_of_a_grid_element_changes_it_and_only_its_sharers(
    tmp_path: Path, type_name: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": (type_name, weight(type_name, 2, 2))})
    for row, col in ((0, 0), (1, 300), (1, 511)):
        before, cell = _codes_and_cell(path, row, col)
        for span in cell.bits:
            flip(path, span)
        after, _ = _codes_and_cell(path, row, col)
        for span in cell.bits:
            flip(path, span)
        changed = np.argwhere(before != after)
        assert [row, col] in changed.tolist()
        assert set(changed[:, 0]) == {row}
        run = 32 if type_name == "IQ1_S" else 8  # the sign of the shift is shared by 32
        assert set(changed[:, 1] // run) == {col // run}


def _codes_and_cell(path: Path, row: int, col: int) -> tuple[Any, Any]:
    with Checkpoint.open(str(path)) as checkpoint:
        tensor = checkpoint.find("a.weight")
        family = checkpoint.family(tensor)
        reading = next(iter(family.candidates(tensor)))
        window = Window(range(reading.shape[0]), range(reading.shape[1]))
        parts = window_parts(family, tensor, reading, window, checkpoint.reader())
        return parts.codes.copy(), family.locate(tensor, reading, row, col)


@pytest.mark.parametrize(
    "type_name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ3_S", "NVFP4"]
)
@pytest.mark.parametrize("role", ["scale", "scale2", "minimum", "minimum2"])
def test_flipping_located_scale_bits_moves_the_weights_of_their_sub_block_only(
    tmp_path: Path, type_name: str, role: str
) -> None:
    block = BLOCK_TYPES[type_name]
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": (type_name, weight(type_name, 2, 2))})
    row, col = 1, block.block_size + block.sub_block + 3
    _, cell = _codes_and_cell(path, row, col)
    if role not in cell.per_plane:
        pytest.skip(f"{type_name} stores no {role}")
    with Checkpoint.open(str(path)) as checkpoint:
        before = whole(checkpoint, "a.weight").copy()
    flip(path, cell.per_plane[role][0])
    with Checkpoint.open(str(path)) as checkpoint:
        after = whole(checkpoint, "a.weight")
    moved = np.argwhere(before != after)
    run = block.sub_block if role in ("scale", "minimum") else block.block_size
    first = col // run * run
    assert len(moved)
    assert set(moved[:, 0]) == {row}
    assert first <= moved[:, 1].min()
    assert moved[:, 1].max() < first + run


def test_an_expert_stack_becomes_one_tensor_an_expert(tmp_path: Path) -> None:
    data = weight("Q4_K", 3 * 4, 2).reshape(3, 4, -1)
    scale = np.array([1.0, 0.5, 4.0], np.float32)
    path = write_gguf(
        tmp_path / "m.gguf",
        {
            "blk.0.ffn_down_exps.weight": ("Q4_K", data),
            "blk.0.ffn_up_exps.weight": ("NVFP4", weight("NVFP4", 12, 2).reshape(3, 4, -1)),
            "blk.0.ffn_up_exps.scale": ("F32", scale),
            "blk.0.ffn_up_exps.input_scale": ("F32", scale),
        },
    )
    with Checkpoint.open(str(path)) as checkpoint:
        names = [t.name for t in checkpoint.grouping.tensors]
        assert names[:3] == [f"blk.0.ffn_down_exps.weight[{i}]" for i in range(3)]
        assert len(names) == 6
        for expert in range(3):
            found = whole(checkpoint, f"blk.0.ffn_down_exps.weight[{expert}]")
            assert np.array_equal(found, by_gguf("Q4_K", data[expert]))
            up = whole(checkpoint, f"blk.0.ffn_up_exps.weight[{expert}]")
            plain = by_gguf("NVFP4", weight("NVFP4", 12, 2).reshape(3, 4, -1)[expert])
            assert np.array_equal(up, plain * scale[expert])
        part = checkpoint.find("blk.0.ffn_down_exps.weight[2]").part
        assert part is not None
        assert (part.kind, part.index, part.count) == ("expert", 2, 3)
        assert [c.stored_name for c in checkpoint.grouping.companions] == [
            "blk.0.ffn_up_exps.input_scale"
        ]
        state = inspect(checkpoint).state("blk.0.ffn_up_exps.weight[1]")
        assert state.contract.value("scale")["second_level"]["dtype"] == "f32"


def test_a_convolution_kernel_of_three_axes_is_one_tensor(tmp_path: Path) -> None:
    data = weight("Q8_0", 6, 1).reshape(2, 3, -1)
    path = write_gguf(tmp_path / "m.gguf", {"a.conv.weight": ("Q8_0", data)})
    with Checkpoint.open(str(path)) as checkpoint:
        (tensor,) = checkpoint.grouping.tensors
        assert tensor.shape == (6, 32)
        assert np.array_equal(
            whole(checkpoint, "a.conv.weight"), by_gguf("Q8_0", data.reshape(6, -1))
        )


def test_an_integer_table_is_a_companion_and_not_unrecognised(tmp_path: Path) -> None:
    table = np.arange(256, dtype=np.int32).reshape(16, 16)
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.ffn_gate_tid2eid.weight": ("I32", table)})
    with Checkpoint.open(str(path)) as checkpoint:
        assert not checkpoint.grouping.unrecognised
        assert checkpoint.grouping.companions[0].what == "integer table"


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "TQ2_0", "MXFP4", "NVFP4"])
def test_big_endian_blocks_decode_to_the_same_weights(tmp_path: Path, type_name: str) -> None:
    # the numbers that the gguf package's own endian converter swaps (gguf-py, scripts/gguf_convert_endian.py)
    halves = {"Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,), "TQ2_0": (64,)}
    data = weight(type_name, 4, 3)
    swapped = data.reshape(-1, BLOCK_TYPES[type_name].type_bytes).copy()
    for at in halves.get(type_name, ()):
        swapped[:, [at, at + 1]] = swapped[:, [at + 1, at]]
    # the writer turns round nothing of a uint8 array
    path = write_gguf(
        tmp_path / "m.gguf", {"a.weight": (type_name, swapped.reshape(4, -1))}, big_endian=True
    )
    with Checkpoint.open(str(path)) as checkpoint:
        assert checkpoint.opened.files[0].byte_order == "big"
        assert np.array_equal(
            whole(checkpoint, "a.weight"), by_gguf(type_name, data), equal_nan=True
        )
        cell = checkpoint.family(checkpoint.find("a.weight")).locate(
            checkpoint.find("a.weight"),
            next(
                iter(
                    checkpoint.family(checkpoint.find("a.weight")).candidates(
                        checkpoint.find("a.weight")
                    )
                )
            ),
            0,
            0,
        )
        if type_name == "Q6_K":
            low, high = cell.per_plane["scale2"]
            assert low.byte_offset == high.byte_offset + 1


@pytest.mark.parametrize(
    ("architecture", "name", "permuted"),
    [
        ("llama", "blk.0.attn_q.weight", True),
        ("llama", "blk.0.attn_k.weight", True),
        ("llama", "blk.0.attn_v.weight", False),
        ("qwen2", "blk.0.attn_q.weight", False),
        ("llama4", "blk.0.attn_q.weight", False),
    ],
)
def test_row_permutation_is_stated_with_its_declared_source(
    tmp_path: Path, architecture: str, name: str, permuted: bool
) -> None:
    data = weight("Q8_0", 4, 1)
    path = write_gguf(tmp_path / "m.gguf", {name: ("Q8_0", data)}, architecture=architecture)
    with Checkpoint.open(str(path)) as checkpoint:
        state = inspect(checkpoint).states[0]
        claims = [c for c in state.claims if c.field == "basis"]
        assert (state.contract.value("basis") != "plain") is permuted
        assert [str(c.source) for c in claims] == (
            ["m.gguf#general.architecture"] if permuted else []
        )
        types = {str(c.source) for c in state.claims if c.field == "element"}
        assert types == {f"m.gguf#{name}:type"}


def test_rows_of_no_whole_number_of_blocks_break_an_equation_and_do_not_raise(
    tmp_path: Path,
) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": ("Q4_K", weight("Q4_K", 4, 1))})
    blob = bytearray(path.read_bytes())
    at = blob.index(b"a.weight") + 8 + 4
    assert int.from_bytes(blob[at : at + 8], "little") == 256
    blob[at : at + 8] = (250).to_bytes(8, "little")
    path.write_bytes(blob)
    with Checkpoint.open(str(path)) as checkpoint:
        state = inspect(checkpoint).states[0]
        assert not state.solved.solutions
        assert any(e.plane == "row" and e.holds is False for e in state.solved.equations)
        assert state.undecodable is not None
        with pytest.raises(UndecodableError):
            decode_window(
                checkpoint.family(state.tensor),
                state.tensor,
                state.solved.chosen,  # type: ignore[arg-type]
                Window(range(1), range(8)),
                checkpoint.reader(),
            )


@pytest.mark.parametrize("type_id", [4, 31, 36, 37, 38, 133, 144, 151])
def test_fork_and_withdrawn_types_are_named_and_inexpressible(tmp_path: Path, type_id: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": ("Q8_0", weight("Q8_0", 4, 16))})
    blob = bytearray(path.read_bytes())
    at = blob.index(b"a.weight") + 8 + 4 + 16
    assert int.from_bytes(blob[at : at + 4], "little") == 8
    blob[at : at + 4] = type_id.to_bytes(4, "little")
    path.write_bytes(blob)
    with Checkpoint.open(str(path)) as checkpoint:
        state = inspect(checkpoint).states[0]
        assert state.tensor.family == "gguf"
        assert state.undecodable is not None
        assert state.tensor.fact("type") in state.undecodable
        assert state.contract["arithmetic"].match == "inexpressible"


def test_scales_of_blocks_are_looked_at_where_codes_are_sampled(tmp_path: Path) -> None:
    data = weight("Q4_0", 4, 2)
    data.reshape(-1, 18)[5, :2] = np.array([np.nan], "<f2").view(np.uint8)
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": ("Q4_0", data)})
    with Checkpoint.open(str(path)) as checkpoint:
        exam = inspect(checkpoint, Scope(mode="deep")).states[0].exam
    (plane,) = exam.planes
    assert plane.suffix == "d"
    assert plane.nan == 1
    assert plane.examined == 8
    assert exam.codes is not None
    assert sum(exam.codes.histogram) == 4 * 64


def test_int8_codes_are_counted_with_their_sign(tmp_path: Path) -> None:
    data = weight("Q8_0", 4, 2)
    data.reshape(-1, 34)[:, 2:] = 0x80
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": ("Q8_0", data)})
    with Checkpoint.open(str(path)) as checkpoint:
        codes = inspect(checkpoint).states[0].exam.codes
    assert codes is not None
    assert codes.lowest_code == -128
    assert codes.histogram[0] == 4 * 64


def test_opening_a_copy_reads_headers_only(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": ("Q8_0", weight("Q8_0", 256, 64))})
    shutil.copy(path, tmp_path / "n.gguf")
    with Checkpoint.open(str(tmp_path / "n.gguf")) as checkpoint:
        assert checkpoint.grouping.tensors
        assert checkpoint.opened.files[0].bytes_read < path.stat().st_size // 4


def _downloaded(name: str) -> Path:
    path = Path(os.environ.get("QUANTSCOPE_GGUF_DIR", "")) / name
    if not os.environ.get("QUANTSCOPE_GGUF_DIR") or not path.is_file():
        pytest.skip("QUANTSCOPE_GGUF_DIR holds no such file")
    return path


@pytest.mark.parametrize(
    ("name", "parameters", "types"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", 134_515_008, {"Q4_1": 210, "Q8_0": 1}),
        ("gemma-3-270m-q4_k_m.gguf", 268_098_176, {"Q5_0": 81, "Q4_K": 27, "Q8_0": 10, "Q6_K": 9}),
    ],
)
def test_published_files_have_their_parameters_and_decode_as_the_gguf_package(
    name: str, parameters: int, types: dict[str, int]
) -> None:
    path = _downloaded(name)
    reader = gguf.GGUFReader(path)
    with Checkpoint.open(str(path)) as checkpoint:
        inspection = inspect(checkpoint)
        found: dict[str, int] = {}
        for state in inspection.states:
            word = state.tensor.fact("type")
            found[word] = found.get(word, 0) + 1
        assert found == types
        plain = sum(int(np.prod(t.shape)) for t in checkpoint.grouping.plain)
        quantized = sum(int(np.prod(s.tensor.shape)) for s in inspection.states)
        assert plain + quantized == parameters == sum(int(t.n_elements) for t in reader.tensors)
        names = {state.tensor.name for state in inspection.states}
        for item in reader.tensors:
            if item.name in names and item.n_elements < 4_000_000:
                assert np.array_equal(
                    whole(checkpoint, item.name), gguf.dequantize(item.data, item.tensor_type)
                ), item.name
