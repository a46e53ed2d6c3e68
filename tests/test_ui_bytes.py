"""The Bytes page for every format: bytes lead to elements, elements to bytes, codes are those stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.decode.window import decode_window, window_parts
from quantscope.session.inspection import TensorState
from quantscope.session.pipeline import Scope, inspect
from quantscope_views.lines import Span
from quantscope_views.present.bytes_layout import learn, pieces_of
from quantscope_views.present.bytes_lines import (
    code_spans,
    fit_page,
    hex_spans,
    margin_of,
    page_lines,
    page_margin,
)
from quantscope_views.present.bytes_model import CURSOR, LIT, BytesPage, CodeCell, PageRequest
from quantscope_views.present.bytes_moves import next_code, next_group, next_line
from quantscope_views.present.bytes_page import PageReader
from quantscope_views.present.bytes_search import element_of_byte, find_next
from quantscope_views.present.bytes_strips import field_value
from quantscope_views.present.histogram import bin_labels, count_text
from quantscope_views.present.reading_choice import choice_of
from quantscope_views.present.zero_facts import read_zero_facts
from ui_driver import gptq_folder, sharded_folder

SAMPLES = Path(__file__).resolve().parents[1] / "sample_checkpoints"


def sample_names() -> list[str]:
    """Folders of the bundled samples."""
    return sorted(path.name for path in SAMPLES.iterdir() if (path / "config.json").is_file())


def one_of_each(checkpoint: Checkpoint) -> list[TensorState]:
    """One decodable tensor of every element and packing."""
    found: dict[Any, TensorState] = {}
    for state in inspect(checkpoint, Scope(mode="headers")).states:
        reading = state.reading
        if reading is not None and state.undecodable is None and state.declared_reading is not None:
            key = (state.tensor.word, reading.element, reading.packing, reading.group)
            found.setdefault(key, state)
    return list(found.values())


def check_tensor(checkpoint: Checkpoint, state: TensorState) -> None:
    """Pages at scattered elements agree with the family and with the bytes of the file."""
    choice = choice_of(state)
    assert choice is not None
    family, reading = checkpoint.family(state.tensor), choice.shown
    n_rows, n_cols = reading.shape[-2:]
    generator = np.random.default_rng(5)
    pages = PageReader(checkpoint, state, choice)
    reader = checkpoint.reader()
    for _ in range(4):
        row, col = int(generator.integers(n_rows)), int(generator.integers(n_cols))
        page = pages.read(PageRequest(row=row, col=col, height=6, line_bytes=16))
        assert page.error == ""
        assert page.shown is not None
        one = Window(range(row, row + 1), range(col, col + 1))
        value = float(decode_window(family, state.tensor, reading, one, reader)[0, 0])
        assert page.shown.value == value or (np.isnan(value) and np.isnan(page.shown.value))
        marked = [line for line in page.lines if line.has_cursor]
        assert marked, state.tensor.name
        cell = family.locate(state.tensor, reading, row, col)
        assert any(
            line.byte_offset <= cell.bits[0].byte_offset < line.byte_offset + len(line.data)
            or cell.bits[0].byte_offset
            <= line.byte_offset
            < cell.bits[0].byte_offset + cell.bits[0].nbytes
            for line in marked
        )
        assert len(page_lines(page, 80, 20, ascii_only=False)) >= 8
        stored = window_parts(family, state.tensor, reading, one, reader).codes[0, 0]
        if reading.element[0] == "u" and reading.element[1:].isdigit():
            assert stored_bits(checkpoint, cell) == int(stored), state.tensor.name


def stored_bits(checkpoint: Checkpoint, cell: Any) -> int:
    """The code as the file's bits hold it."""
    low = min(span.byte_offset for span in cell.bits)
    high = max(span.byte_offset + span.nbytes for span in cell.bits)
    data = checkpoint.reader().read_bytes("view", cell.bits[0].file_id, low, high - low)
    return field_value(cell.bits, low, data, False)


@pytest.mark.parametrize("name", sample_names())
def test_pages_of_every_sample_agree_with_its_bytes(name: str) -> None:
    path = SAMPLES / name
    with Checkpoint.open(str(path)) as checkpoint:
        for state in one_of_each(checkpoint):
            check_tensor(checkpoint, state)


@pytest.mark.real
def test_pages_of_the_real_set_agree_with_its_bytes(real_set: Path) -> None:
    seen = 0
    for folder in sorted(real_set.iterdir()):
        if not folder.is_dir():
            continue
        parts = sorted(folder.glob("*.gguf"))
        with Checkpoint.open(str(parts[0] if parts else folder)) as checkpoint:
            for state in one_of_each(checkpoint):
                check_tensor(checkpoint, state)
                seen += 1
    assert seen > 40


@pytest.mark.parametrize("name", sample_names())
def test_a_learnt_layout_agrees_with_locate_at_every_element_of_a_corner(name: str) -> None:
    with Checkpoint.open(str(SAMPLES / name)) as checkpoint:
        for state in one_of_each(checkpoint):
            family, reading = checkpoint.family(state.tensor), state.reading
            assert reading is not None
            n_rows, n_cols = reading.shape[-2:]
            big = state.tensor.planes[0].byte_order == "big"

            def locate(row: int, col: int, family: Any = family, state: Any = state) -> Any:
                return family.locate(state.tensor, state.reading, row, col)

            layout = learn(locate, n_rows, n_cols, big_endian=big)
            assert layout is not None, f"{state.tensor.name} {reading.packing}"
            for row in (0, n_rows // 2, n_rows - 1):
                for col in range(0, n_cols, max(1, n_cols // 40)):
                    assert layout.pieces(row, col) == pieces_of(locate(row, col).bits, big)


def test_a_byte_leads_to_exactly_the_codes_in_it(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    with Checkpoint.open(str(folder)) as checkpoint:
        state = one_of_each(checkpoint)[0]
        family, reading = checkpoint.family(state.tensor), state.reading
        assert reading is not None
        layout = learn(lambda r, c: family.locate(state.tensor, reading, r, c), 64, 256)
        assert layout is not None
        plane = state.tensor.plane("codes")
        assert plane is not None
        byte = plane.byte_offset + (2 * 64 + 7) * 4 + 1
        assert [(h.row, h.col) for h in layout.hits(byte, 1)] == [(7, 18), (7, 19)]


def test_moving_right_through_a_plane_visits_every_code_once(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    with Checkpoint.open(str(folder)) as checkpoint:
        state = one_of_each(checkpoint)[0]
        choice = choice_of(state)
        assert choice is not None
        pages = PageReader(checkpoint, state, choice)
        page = pages.read(PageRequest(row=0, col=0, height=4, line_bytes=16))
        seen = [(0, 0)]
        for _ in range(100):
            row, col = next_code(page, 1)
            import msgspec

            page = msgspec.structs.replace(page, row=row, col=col)
            seen.append((row, col))
        assert len(set(seen)) == 101
        assert seen[:9] == [(0, col) for col in range(8)] + [(1, 0)]
        assert next_code(page, -1) == seen[-2]
        assert next_line(page, 1) == (seen[-1][0], seen[-1][1] + 8)


def test_the_next_bad_scale_is_found_once_a_group(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path / "s", bad_scale=(0, 1, 9))
    with Checkpoint.open(str(folder)) as checkpoint:
        state = inspect(checkpoint, Scope(mode="headers")).states[0]
        choice = choice_of(state)
        assert choice is not None
        found = find_next(checkpoint, state, choice, "bad_scale", 0, 0)
        assert found == (9, 128)
        assert find_next(checkpoint, state, choice, "bad_scale", 9, 128) is None


def test_the_next_difference_of_the_two_readings_is_the_next_element(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    with Checkpoint.open(str(folder)) as checkpoint:
        state = one_of_each(checkpoint)[0]
        choice = choice_of(state)
        assert choice is not None
        other = choice.other_zero()
        assert other is not None
        assert find_next(checkpoint, state, other, "difference", 0, 0) == (0, 1)
        assert find_next(checkpoint, state, choice, "difference", 0, 0) is None


def test_end_codes_are_those_of_the_codes(tmp_path: Path) -> None:
    folder, modules = gptq_folder(tmp_path / "f", count=1)
    codes = next(iter(modules.values())).codes
    where = np.argwhere((codes == 0) | (codes == 15))
    with Checkpoint.open(str(folder)) as checkpoint:
        state = one_of_each(checkpoint)[0]
        choice = choice_of(state)
        assert choice is not None
        at = (0, -1)
        for row, col in where[:5].tolist():
            found = find_next(checkpoint, state, choice, "end_code", at[0], at[1])
            assert found == (row, col)
            at = found


def test_a_byte_of_every_plane_leads_to_an_element_that_uses_it(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    with Checkpoint.open(str(folder)) as checkpoint:
        state = one_of_each(checkpoint)[0]
        choice = choice_of(state)
        assert choice is not None
        family = checkpoint.family(state.tensor)
        for plane in state.tensor.planes:
            byte = plane.byte_offset + plane.nbytes // 2
            found = element_of_byte(checkpoint, state, choice, plane.file_id, byte)
            assert found is not None, plane.suffix
            (row, col), role = found
            cell = family.locate(state.tensor, choice.shown, row, col)
            spans = cell.bits if role == "codes" else cell.per_plane[role]
            assert any(s.byte_offset <= byte < s.byte_offset + s.nbytes for s in spans)


def text_of(spans: list[Span]) -> str:
    """Spans as text."""
    return "".join(span.text for span in spans)


@pytest.mark.parametrize(
    ("cursor", "shown"),
    [
        ((0,), "[1]234 56 "),
        ((1,), "1[2]34 56 "),
        ((2,), " 12[3]456 "),
        ((4, 5), " 12 34[56]"),
        ((2, 3), " 12[34]56 "),
        ((), " 12 34 56 "),
    ],
)
def test_brackets_stand_around_the_nibbles_of_the_cursor(
    cursor: tuple[int, ...], shown: str
) -> None:
    marks = bytes(CURSOR if i in cursor else LIT for i in range(6))
    assert text_of(hex_spans(bytes.fromhex("123456"), marks)) == shown


def test_codes_that_do_not_fit_are_cut_around_the_cursor() -> None:
    codes = [
        CodeCell(row=0, col=i, text=str(100 + i), mark=CURSOR if i == 20 else 0) for i in range(40)
    ]
    shown = text_of(code_spans(codes, 30))
    assert "[120]" in shown
    assert len(shown) <= 30


def stored_plane(folder: Path, name: str, dtype: str) -> tuple[int, np.ndarray[Any, Any]]:
    """Byte offset in the file and values of a stored tensor, read by its safetensors header alone."""
    data = (folder / "model.safetensors").read_bytes()
    head = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + head])[name]
    first, last = (8 + head + offset for offset in entry["data_offsets"])
    return first, np.frombuffer(data[first:last], dtype=dtype).reshape(entry["shape"])


def act_order_tensor(folder: Path) -> tuple[Checkpoint, TensorState, str]:
    """The first tensor whose g_idx is not natural, and its module."""
    checkpoint = Checkpoint.open(str(folder))
    for state in inspect(checkpoint, Scope(mode="headers")).states:
        module = state.tensor.name.removesuffix(".weight")
        _, index = stored_plane(folder, f"{module}.g_idx", "<i4")
        if (np.diff(index) < 0).any():
            return checkpoint, state, module
    raise AssertionError("every g_idx is natural")


def check_act_order(folder: Path) -> None:
    """Bytes of scales lead to columns of the group that g_idx names, and columns to the bytes of that group."""
    checkpoint, state, module = act_order_tensor(folder)
    choice = choice_of(state)
    assert choice is not None
    _, index = stored_plane(folder, f"{module}.g_idx", "<i4")
    first, scales = stored_plane(folder, f"{module}.scales", "<f2")
    n_groups, n_out = scales.shape
    for group, row in ((0, 0), (n_groups - 1, 3), (0, n_out - 1)):
        byte = first + 2 * (group * n_out + row)
        found = element_of_byte(checkpoint, state, choice, 0, byte)
        assert found is not None
        (at_row, at_col), role = found
        assert (role, at_row) == ("scale", row)
        assert at_col == int(np.flatnonzero(index == group)[0])
    pages = PageReader(checkpoint, state, choice)
    for col in (0, 1, 5, len(index) - 1):
        page = pages.read(PageRequest(row=2, col=col, height=6, line_bytes=16))
        strip = next(strip for strip in page.strips if strip.role == "scale")
        assert strip.byte_offset == first + 2 * (int(index[col]) * n_out + 2)
        assert page.group.scattered == frozenset(np.flatnonzero(index == index[col]).tolist())
        following = next_group(page, choice.shown, 1)
        wanted = (int(index[col]) + 1) % n_groups
        assert following == (
            2 + (int(index[col]) + 1) // n_groups,
            int(np.flatnonzero(index == wanted)[0]),
        )


def test_bytes_of_an_act_order_tensor_belong_to_the_groups_of_its_g_idx() -> None:
    check_act_order(SAMPLES / "smol-gptq-act-order")


@pytest.mark.real
def test_a_real_act_order_checkpoint_is_read_by_its_g_idx(real_set: Path) -> None:
    check_act_order(real_set / "gptqmodel-w4g128-sym-descact")


def test_the_zero_tab_reads_the_zeros_of_the_group_that_g_idx_names() -> None:
    folder = SAMPLES / "smol-gptq-act-order"
    checkpoint, state, module = act_order_tensor(folder)
    _, index = stored_plane(folder, f"{module}.g_idx", "<i4")
    first, words = stored_plane(folder, f"{module}.qzeros", "<u4")
    facts = read_zero_facts(checkpoint, state, (0, 0))
    assert facts is not None
    group = int(index[0])
    assert facts.word == f"0x{int(words[group, 0]):08x}"
    assert facts.where == f"@0x{first + 4 * group * words.shape[1]:X}"
    assert facts.stored == tuple(int(words[group, 0]) >> 4 * i & 15 for i in range(8))
    assert facts.plane == ("qzeros[0,0]" if group == 0 else f"qzeros, group {group}")


def real_page(folder: Path, name: str, at: tuple[int, int], size: tuple[int, int]) -> BytesPage:
    """The page of an element of a tensor whose name ends as given, for a pane of `size` cells."""
    with Checkpoint.open(str(folder)) as checkpoint:
        states = inspect(checkpoint, Scope(mode="headers")).states
        state = next(s for s in states if s.tensor.name.removesuffix(".weight").endswith(name))
        choice = choice_of(state)
        assert choice is not None
        margin = margin_of("flat", (256, 256), 1 << 20)
        fitting = fit_page(*size, choice.shown, False, margin)
        wanted = PageRequest(
            row=at[0], col=at[1], height=fitting.lines, line_bytes=fitting.line_bytes
        )
        return PageReader(checkpoint, state, choice).read(wanted)


def test_exponents_and_floats_stored_as_plain_bytes_are_shown_as_the_numbers_they_are() -> None:
    page = real_page(SAMPLES / "smol-ct-mxfp4", "0.self_attn.k_proj", (45, 40), (80, 20))
    first, stored = stored_plane(
        SAMPLES / "smol-ct-mxfp4", "model.layers.0.self_attn.k_proj.weight_scale", "u1"
    )
    strip = next(strip for strip in page.strips if strip.role == "scale")
    assert strip.byte_offset == first + 45 * stored.shape[1] + 1
    assert strip.value == f"{2.0 ** (int(stored[45, 1]) - 127):.6f}"
    assert strip.note == "e8m0"


@pytest.mark.real
def test_float8_scales_stored_as_plain_bytes_are_decoded_in_place(real_set: Path) -> None:
    folder = real_set / "mlx-nvfp4"
    page = real_page(folder, "0.self_attn.q_proj", (45, 40), (80, 20))
    _, stored = stored_plane(folder, "model.layers.0.self_attn.q_proj.scales", "u1")
    byte = int(stored[45, 2])
    value = (1 + (byte & 7) / 8) * 2.0 ** ((byte >> 3 & 15) - 7)
    strip = next(strip for strip in page.strips if strip.role == "scale")
    assert (strip.value, strip.note) == (f"{value:.6f}", "e4m3")


def test_counts_that_do_not_fit_their_bin_are_rounded_and_never_cut() -> None:
    assert [count_text(n, 4) for n in (7, 999, 1000, 8533, 22833)] == [
        "7",
        "999",
        "1k",
        "9k",
        "23k",
    ]
    for number in (12, 123, 1234, 12_345, 123_456, 1_048_576):
        for cell in range(3, 9):
            text = count_text(number, cell)
            assert len(text) <= cell
            if text.isdigit():
                assert int(text) == number


def test_names_of_bins_stand_apart_at_the_bins_they_name() -> None:
    labels = [str(value) for value in range(-128, 128, 16)]
    shown = bin_labels(labels, 4)
    assert shown.split() == labels[::2]
    assert [shown.index(label) for label in ("-128", "-64", " 64")] == [0, 16, 47]


@pytest.mark.real
def test_a_formula_that_does_not_give_the_value_names_the_rule_that_does(real_set: Path) -> None:
    folder = real_set / "bitsandbytes-int8"
    page = real_page(folder, "0.self_attn.q_proj", (45, 11), (80, 20))
    name = "model.layers.0.self_attn.q_proj"
    _, codes = stored_plane(folder, f"{name}.weight", "i1")
    _, scales = stored_plane(folder, f"{name}.SCB", "<f4")
    assert page.shown is not None
    code, scale = int(codes[45, 11]), float(scales.ravel()[45])
    assert page.shown.value == pytest.approx(code * scale / 127, rel=1e-6)
    assert page.shown.formula.startswith(f"code {code} * {scale:.6f}, by code * SCB * ")


@pytest.mark.real
@pytest.mark.parametrize("size", [(80, 20), (60, 12), (160, 41)])
def test_every_line_of_a_bytes_pane_fits_it_and_a_straddling_code_keeps_both_words(
    real_set: Path, size: tuple[int, int]
) -> None:
    width, height = size
    for name in ("gptqmodel-w3g128-sym", "gptqmodel-qqq-g128", "llmcompressor-fp8-block"):
        page = real_page(real_set / name, "0.self_attn.q_proj", (45, 10), size)
        lines = page_lines(page, width, height, ascii_only=False)
        text = "\n".join(line.text for line in lines)
        assert all(len(line.text) <= width for line in lines), text
        assert "…" not in text
        assert "as the file claims" in text
        assert sum(line.text.startswith("=") for line in lines) == len(page.bits)
    assert len(lines) <= height
    page = real_page(real_set / "gptqmodel-w3g128-sym", "0.self_attn.q_proj", (45, 10), size)
    text = " ".join(line.text for line in page_lines(page, width, height, ascii_only=False))
    for span in page.bits:
        assert f"byte 0x{span.byte_offset + span.low_bit // 8:X}" in text
    assert "of 0..15" not in text


def test_codes_that_do_not_fit_stand_under_the_columns_that_the_heading_names() -> None:
    page = real_page(SAMPLES / "smol-ct-fp8-block", "0.self_attn.k_proj", (45, 60), (80, 20))
    lines = page_lines(page, 80, 20, ascii_only=False)
    first, last = map(int, lines[0].text.rstrip().rpartition(" in ")[2].split(".."))
    at = next(i for i, line in enumerate(lines) if line.text.startswith("="))
    cursor = lines[at].text
    codes = cursor[page_margin(page).total + 3 * page.request.line_bytes + 1 :]
    assert len(codes.replace("[", " ").replace("]", " ").split()) == last - first + 1
    assert first <= 60 <= last
    ends = {len(line.text.rstrip().rstrip("]")) for line in lines[1 : at + 1]}
    assert len(ends) == 1


def test_rows_of_three_digits_leave_a_gap_before_the_offset() -> None:
    margin = margin_of("flat", (256, 256), 0x140918)
    assert margin.label - 1 > len("255,255")


def test_end_codes_of_a_table_are_those_of_its_lowest_and_highest_value() -> None:
    page = real_page(SAMPLES / "smol-ct-mxfp4", "0.self_attn.k_proj", (45, 40), (80, 20))
    _, stored = stored_plane(
        SAMPLES / "smol-ct-mxfp4", "model.layers.0.self_attn.k_proj.weight_packed", "u1"
    )
    group = np.stack([stored[45] & 15, stored[45] >> 4], axis=-1).ravel()[32:64]
    assert page.histogram == tuple(np.bincount(group, minlength=16).tolist())
    assert page.end_codes == int(((group == 7) | (group == 15)).sum())


def test_a_nan_scale_is_no_difference_between_readings(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path / "f", bad_scale=(5, 1, 9))
    with Checkpoint.open(str(folder)) as checkpoint:
        state = inspect(checkpoint, Scope(mode="headers")).states[5]
        choice = choice_of(state)
        assert choice is not None
        other = choice.other_zero()
        assert other is not None
        found = find_next(checkpoint, state, other, "difference", 9, 127)
    assert found == (10, 0)
