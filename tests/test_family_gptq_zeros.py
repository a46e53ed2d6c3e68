"""Stored zeros of GPTQModel: whole words minus one, padding fields, and orders that say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.session.pipeline import inspect
from test_family_gptq import config, gptq_tensors, pack_rows

META = {"quantizer": ["gptqmodel:7.7.0"]}


def zeros_of(folder: Path, n: int) -> list[list[int]]:
    """True zeros of the first rows, [rows, groups]."""
    checkpoint = Checkpoint.open(str(folder))
    state = inspect(checkpoint).state("m.weight")
    assert state.reading is not None
    parts = checkpoint.family(state.tensor).parts(
        state.tensor, state.reading, Window(range(n), range(32)), checkpoint.reader()
    )
    return np.asarray(parts.zero)[:n].tolist()


@pytest.mark.parametrize(
    ("meta", "zeros"),
    [(META, [9, 5, 7, 7, 5, 0, 8, 6]), ({}, [9, 5, 7, 7, 5, 0, 7, 6])],
    ids=["gptqmodel", "others"],
)
def test_a_zero_of_0_borrows_from_its_neighbour_where_gptqmodel_wrote(
    tmp_path: Path, meta: dict[str, Any], zeros: list[int]
) -> None:
    """The word is that of group 18, rows 96 to 103 of a down_proj by gptqmodel 7.7.0 (4 bits, groups of 16).

    It subtracts 0x11111111 from the word, so that the true zero 0 of row 101 leaves one less in row 102.
    GPTQModel's own weights there are (code - 8) * scale: code 13 gives 0.02294922 under a scale of 0.00458.
    """
    tensors = gptq_tensors(8, 32, 32)
    tensors["m.qzeros"] = np.array([[0x56F46648]], dtype="u4").view("i4")
    write_checkpoint(tmp_path, tensors, config(checkpoint_format="gptq", meta=meta))
    assert zeros_of(tmp_path, 8) == [[zero] for zero in zeros]


def test_padding_of_the_last_word_is_no_zero_point(tmp_path: Path) -> None:
    """Six channels of 8 bits in two words; GPTQModel's word-wise minus one makes 0xFEFF of the padding."""
    codes = np.random.default_rng(3).integers(0, 256, (64, 6))
    tensors = {
        "m.qweight": pack_rows(codes, 8, "i4"),
        "m.qzeros": np.array([[0x7F7F7F7F, 0xFEFF7F7F]] * 2, dtype="u4").view("i4"),
        "m.scales": np.full((2, 6), 0.5, dtype=np.float16),
    }
    section = config(bits=8, sym=True, checkpoint_format="gptq", meta=META)
    write_checkpoint(tmp_path, tensors, section)
    inspection = inspect(Checkpoint.open(str(tmp_path)))
    zeros = inspection.state("m.weight").exam.zeros
    assert zeros is not None
    assert (zeros.fields, zeros.all_ones) == (12, 0)
    assert not {f.code for f in inspection.findings} & {"QZ003", "QZ005"}
    assert zeros_of(tmp_path, 6) == [[128]] * 6


def test_static_groups_of_gptqmodel_stand_in_meta(tmp_path: Path) -> None:
    """gptqmodel 7.7.0 writes `static_groups` there; g_idx stays natural under `desc_act`."""
    tensors = gptq_tensors(16, 64, 32)
    for static, match in ((True, "agree"), (False, "disagree")):
        section = config(desc_act=True, meta=META | {"static_groups": static})
        write_checkpoint(tmp_path, tensors, section)
        state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
        assert state.contract["order"].match == match


def test_one_group_a_row_has_no_order_to_declare(tmp_path: Path) -> None:
    """gptqmodel 7.7.0 with group_size -1 and desc_act: every g_idx is 0."""
    tensors = gptq_tensors(16, 64, 64) | {"m.g_idx": np.zeros(64, dtype="i4")}
    write_checkpoint(tmp_path, tensors, config(group_size=-1, desc_act=True))
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert not state.contract["order"].declared_values
    assert (state.contract.value("order") or "natural") == "natural"
