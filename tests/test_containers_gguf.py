"""GGUF headers: good files as gguf-py reads them, broken ones by the rules of gguf.cpp."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantscope.containers.ggml_types import GGML_TYPES, type_name
from quantscope.containers.gguf import read_array, read_gguf
from quantscope.containers.gguf_kv import skip_strings
from quantscope.containers.issues import severity_of
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.source import ByteSource

U32, STRING, ARRAY, BOOL, U64 = 4, 8, 9, 7, 10


def _text(value: str | bytes, mark: str = "<") -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(f"{mark}Q", len(data)) + data


def _key(name: str, type_id: int, payload: bytes, mark: str = "<") -> bytes:
    return _text(name, mark) + struct.pack(f"{mark}I", type_id) + payload


def _info(
    name: str | bytes, dims: tuple[int, ...], type_id: int, offset: int, mark: str = "<"
) -> bytes:
    return (
        _text(name, mark)
        + struct.pack(f"{mark}I", len(dims))
        + struct.pack(f"{mark}{len(dims)}q", *dims)
        + struct.pack(f"{mark}iQ", type_id, offset)
    )


def _gguf(
    keys: tuple[bytes, ...] = (),
    infos: tuple[bytes, ...] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
    mark: str = "<",
) -> bytes:
    head = b"GGUF" + struct.pack(
        f"{mark}IQQ",
        version,
        len(infos) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    head += b"".join(keys) + b"".join(infos)
    if infos:
        head += bytes(-len(head) % alignment)
    return head + data


A64 = _info("a", (16,), 0, 0)
"""A tensor of 64 bytes at offset 0."""


def _u32(name: str, value: int) -> bytes:
    return _key(name, U32, struct.pack("<I", value))


def _array(name: str, type_id: int, count: int, payload: bytes = b"") -> bytes:
    return _key(name, ARRAY, struct.pack("<IQ", type_id, count) + payload)


def _two(first: int, second: int, *, sizes: tuple[int, int] = (16, 16)) -> tuple[bytes, ...]:
    return (_info("a", (sizes[0],), 0, first), _info("b", (sizes[1],), 0, second))


BROKEN: dict[str, tuple[bytes, str, str]] = {
    "empty file": (b"", "gg-empty-file", "GG-HDR"),
    "magic": (b"GGUX" + bytes(60), "gg-magic", "GG-HDR"),
    "zeros": (bytes(4096), "gg-blank-header", "GG-HDR"),
    "ggjt": (b"tjgg\x03\0\0\0" + bytes(60), "gg-old-container", "GG-HDR"),
    "ggla": (b"algg\x01\0\0\0" + bytes(60), "gg-old-container", "GG-HDR"),
    "html": (b"<html><head></head></html>", "gg-html-page", "GG-HDR"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\nsize 12\n", "gg-lfs-pointer", "GG-HDR"),
    "magic only": (b"GGUF", "gg-truncated-header", "GG-HDR"),
    "counts cut": (b"GGUF\x03\0\0\0\0\0", "gg-truncated-header", "GG-HDR"),
    "version 0": (_gguf((), (A64,), bytes(64), version=0), "gg-version", "GG-HDR"),
    "version 4": (_gguf((), (A64,), bytes(64), version=4), "gg-version", "GG-HDR"),
    "version 1": (_gguf((), (A64,), bytes(64), version=1), "gg-version", "GG-HDR"),
    "version huge": (_gguf((), (A64,), bytes(64), version=0xFFFF_FFFF), "gg-version", "GG-HDR"),
    "tensors negative": (_gguf(n_tensors=(1 << 64) - 1), "gg-counts", "GG-HDR"),
    "tensors 2^50": (_gguf(n_tensors=1 << 50), "gg-counts", "GG-HDR"),
    "keys 2^50": (_gguf(n_keys=1 << 50), "gg-counts", "GG-HDR"),
    "empty key": (_gguf((_u32("", 1),)), "gg-key-empty", "GG-DIMS"),
    "key twice": (_gguf((_u32("k", 1), _u32("k", 2))), "gg-key-duplicate", "GG-DUP"),
    "value type 13": (_gguf((_key("k", 13, bytes(8)),)), "gg-value-type", "GG-HDR"),
    "value type 2^31": (_gguf((_key("k", 1 << 31, bytes(8)),)), "gg-value-type", "GG-HDR"),
    "element type 13": (_gguf((_array("k", 13, 1, bytes(8)),)), "gg-value-type", "GG-HDR"),
    "string past end": (
        _gguf((_key("k", STRING, struct.pack("<Q", 1 << 40)),)),
        "gg-string-length",
        "GG-DIMS",
    ),
    "key past end": (
        _gguf((struct.pack("<Q", 1 << 62) + bytes(20),)),
        "gg-string-length",
        "GG-DIMS",
    ),
    "array 2^50": (_gguf((_array("k", U32, 1 << 50),)), "gg-array-length", "GG-DIMS"),
    "array 2^64-1": (_gguf((_array("k", U32, (1 << 64) - 1),)), "gg-array-length", "GG-DIMS"),
    "strings 2^50": (_gguf((_array("k", STRING, 1 << 50),)), "gg-array-length", "GG-DIMS"),
    "strings past end": (
        _gguf((_array("k", STRING, 100, b"".join(_text("ab") for _ in range(99)) + bytes(7)),)),
        "gg-truncated-header",
        "GG-HDR",
    ),
    "string in array past end": (
        _gguf(
            (
                _array(
                    "k",
                    STRING,
                    100,
                    b"".join(_text("ab") for _ in range(99)) + b"\xff" * 6 + bytes(99),
                ),
            )
        ),
        "gg-string-length",
        "GG-DIMS",
    ),
    "array of arrays": (
        _gguf((_array("k", ARRAY, 1, struct.pack("<IQI", U32, 1, 5)),)),
        "gg-array-nested",
        "GG-DIMS",
    ),
    "alignment 24": (_gguf((_u32("general.alignment", 24),)), "gg-alignment-value", "GG-ALIGN"),
    "alignment 0": (_gguf((_u32("general.alignment", 0),)), "gg-alignment-value", "GG-ALIGN"),
    "alignment u64": (
        _gguf((_key("general.alignment", U64, struct.pack("<Q", 32)),)),
        "gg-alignment-type",
        "GG-ALIGN",
    ),
    "alignment text": (
        _gguf((_key("general.alignment", STRING, _text("32")),)),
        "gg-alignment-type",
        "GG-ALIGN",
    ),
    "name of 64 bytes": (
        _gguf((), (_info("n" * 64, (16,), 0, 0),), bytes(64)),
        "gg-name-long",
        "GG-DIMS",
    ),
    "name twice": (
        _gguf((), (_info("a", (16,), 0, 0), _info("a", (16,), 0, 64)), bytes(128)),
        "gg-name-duplicate",
        "GG-DUP",
    ),
    "no dims": (_gguf((), (_info("a", (), 0, 0),), bytes(32)), "gg-n-dims", "GG-DIMS"),
    "five dims": (
        _gguf((), (_info("a", (2, 2, 2, 1, 1), 0, 0),), bytes(32)),
        "gg-n-dims",
        "GG-DIMS",
    ),
    "nine dims": (_gguf((), (_info("a", (1,) * 9, 0, 0),), bytes(32)), "gg-n-dims", "GG-DIMS"),
    "million dims": (
        _gguf((), (_text("a") + struct.pack("<I", 1_000_000) + bytes(64),), bytes(64)),
        "gg-n-dims",
        "GG-DIMS",
    ),
    "dim zero": (_gguf((), (_info("a", (0, 4), 0, 0),), b""), "gg-dim-value", "GG-DIMS"),
    "dim negative": (_gguf((), (_info("a", (-4, 4), 0, 0),), bytes(64)), "gg-dim-value", "GG-DIMS"),
    "dims 2^63-1 by 2": (
        _gguf((), (_info("a", ((1 << 63) - 1, 2), 24, 0),), bytes(64)),
        "gg-dims-overflow",
        "GG-DIMS",
    ),
    "dims wrap to 0": (
        _gguf((), (_info("a", (1 << 22, 1 << 22, 1 << 20, 1), 24, 0),), bytes(64)),
        "gg-dims-overflow",
        "GG-DIMS",
    ),
    "row no multiple": (
        _gguf((), (_info("a", (48, 2), 2, 0),), bytes(64)),
        "gg-row-length",
        "GG-DIMS",
    ),
    "past end": (_gguf((), (A64,), bytes(60)), "gg-bounds", "GG-BOUNDS"),
    "no data at all": (_gguf((), (A64,))[:-1], "gg-bounds", "GG-BOUNDS"),
    "offset 2^63": (
        _gguf((), (_info("a", (16,), 0, 1 << 63),), bytes(64)),
        "gg-bounds",
        "GG-BOUNDS",
    ),
    "overlap": (_gguf((), _two(0, 32), bytes(96)), "gg-region-short", "GG-REGION"),
    "alias": (_gguf((), _two(0, 0), bytes(64)), "gg-region-short", "GG-REGION"),
    "gap": (_gguf((), _two(0, 128), bytes(192)), "gg-region-gap", "GG-REGION"),
    "gap at the start": (
        _gguf((), (_info("a", (16,), 0, 32),), bytes(96)),
        "gg-region-gap",
        "GG-REGION",
    ),
    "order": (_gguf((), _two(64, 0), bytes(128)), "gg-offset-order", "GG-REGION"),
    "offset unaligned": (_gguf((), _two(0, 68), bytes(140)), "gg-offset-align", "GG-REGION"),
}


def _parse(data: bytes, folder: Path, name: str = "m.gguf") -> ParsedFile:
    path = folder / name
    path.write_bytes(data)
    with ByteSource(str(path)) as source:
        return read_gguf(source, 0)


def _violations(parsed: ParsedFile) -> set[str]:
    return {issue.name for issue in parsed.issues if severity_of(issue) == "violation"}


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.replace(" ", "-"))
def test_what_gguf_cpp_refuses_is_a_violation_of_its_kind(case: str, tmp_path: Path) -> None:
    data, slug, kind = BROKEN[case]
    parsed = _parse(data, tmp_path)
    assert slug in _violations(parsed), parsed.issues
    (issue, *_) = [one for one in parsed.issues if one.name == slug]
    assert issue.kind == kind
    assert issue.message


@pytest.mark.parametrize("version", [2, 3])
def test_a_plain_file_has_no_issue(version: int, tmp_path: Path) -> None:
    parsed = _parse(_gguf((_u32("k", 7),), _two(0, 64), bytes(128), version=version), tmp_path)
    assert not parsed.issues
    assert parsed.file.version == version
    assert parsed.file.metadata == {"k": 7}
    assert [tensor.byte_offset for tensor in parsed.tensors] == [
        parsed.file.data_offset,
        (parsed.file.data_offset or 0) + 64,
    ]


def test_a_file_without_tensors_has_no_issue(tmp_path: Path) -> None:
    parsed = _parse(_gguf((_u32("k", 7),)), tmp_path)
    assert parsed.file.parsed
    assert not parsed.issues


def test_bytes_of_a_bool_that_are_no_bool_are_a_note(tmp_path: Path) -> None:
    parsed = _parse(_gguf((_key("k", BOOL, b"\x02"),)), tmp_path)
    assert [issue.name for issue in parsed.issues] == ["gg-bool-value"]
    assert parsed.file.metadata == {"k": True}


@pytest.mark.parametrize(
    ("type_id", "slug", "severity"),
    [
        (31, "gg-type-withdrawn", "warning"),
        (4, "gg-type-withdrawn", "warning"),
        (139, "gg-type-fork", "warning"),
        (200, "gg-type-unknown", "disagreement"),
        (210, "gg-type-fork", "warning"),
        (39, "gg-type-recent", "note"),
    ],
)
def test_type_ids_are_told_apart(type_id: int, slug: str, severity: str, tmp_path: Path) -> None:
    kind = GGML_TYPES.get(type_id)
    nbytes = kind.nbytes((256,)) if kind else 64
    padded = -(-(nbytes or 0) // 32) * 32
    parsed = _parse(_gguf((), (_info("a", (256,), type_id, 0),), bytes(padded)), tmp_path)
    (issue,) = parsed.issues
    assert (issue.name, severity_of(issue), issue.kind) == (slug, severity, "GG-TYPE")
    assert parsed.tensors[0].dtype == type_name(type_id)
    assert parsed.tensors[0].type_id == type_id


def test_an_id_that_bitnet_reuses_is_read_by_the_size_of_its_region(tmp_path: Path) -> None:
    k, n = 128, 4
    bitnet = k * n // 4 + 32
    infos = (_info("a", (k, n), 36, 0), _info("b", (16,), 0, bitnet))
    parsed = _parse(_gguf((), infos, bytes(bitnet + 64)), tmp_path)
    assert parsed.tensors[0].dtype == "I2_S"
    assert parsed.tensors[0].nbytes == bitnet
    assert [issue.name for issue in parsed.issues] == ["gg-type-fork"]


def test_per_row_bytes_of_fork_types_count_into_the_region(tmp_path: Path) -> None:
    """ik_llama.cpp IQ4_KS: 4 bytes a row beside 136 a block."""
    need = 2 * (136 + 4)
    padded = -(-need // 32) * 32
    good = (_info("a", (256, 2), 144, 0), _info("b", (16,), 0, padded))
    parsed = _parse(_gguf((), good, bytes(padded + 64)), tmp_path)
    assert parsed.tensors[0].nbytes == need
    assert not _violations(parsed)
    short = (_info("a", (256, 8), 144, 0), _info("b", (16,), 0, 8 * 136))
    parsed = _parse(_gguf((), short, bytes(8 * 136 + 64)), tmp_path)
    (issue,) = [one for one in parsed.issues if one.name == "gg-region-short"]
    assert issue.tensor == "a"
    assert "32 bytes overlap" in issue.message


def test_the_tail_may_be_unpadded_or_longer_and_that_is_a_note(tmp_path: Path) -> None:
    last = (_info("a", (5,), 0, 0),)
    assert not _parse(_gguf((), last, bytes(32)), tmp_path).issues
    for size, key in ((20, "missing_bytes"), (44, "extra_bytes")):
        (issue,) = _parse(_gguf((), last, bytes(size)), tmp_path).issues
        assert (issue.name, severity_of(issue), issue.data[key]) == ("gg-tail-padding", "note", 12)


def test_numbers_of_a_cut_file_are_named(tmp_path: Path) -> None:
    parsed = _parse(_gguf((), _two(0, 64), bytes(100)), tmp_path)
    (issue,) = parsed.issues
    assert (issue.tensor, issue.message) == ("b", "b ends 28 bytes past the end of the file")
    assert [tensor.readable for tensor in parsed.tensors] == [True, False]


def test_a_raw_piece_of_a_file_is_called_one(tmp_path: Path) -> None:
    data = _gguf((), _two(0, 64), bytes(128))
    first = _parse(data[:-64], tmp_path, "m.gguf.part1of2")
    assert {"gg-raw-part", "gg-bounds"} <= _violations(first)
    second = _parse(data[-64:] + b"x", tmp_path, "m.gguf.part2of2")
    assert _violations(second) == {"gg-raw-part"}


def test_a_wrong_version_in_a_sound_file_still_shows_its_tensors(tmp_path: Path) -> None:
    parsed = _parse(BROKEN["version 4"][0], tmp_path)
    assert [tensor.name for tensor in parsed.tensors] == ["a"]
    assert _violations(parsed) == {"gg-version"}


def test_tensors_before_the_fault_are_listed(tmp_path: Path) -> None:
    infos = (_info("a", (16,), 0, 0), struct.pack("<Q", 1 << 50) + bytes(24))
    parsed = _parse(_gguf((), infos, bytes(128)), tmp_path)
    assert [(tensor.name, tensor.readable) for tensor in parsed.tensors] == [("a", False)]
    assert not parsed.file.parsed


def test_names_that_are_no_utf8_are_escaped_and_told(tmp_path: Path) -> None:
    parsed = _parse(_gguf((), (_info(b"a\xff\x1b", (16,), 0, 0),), bytes(64)), tmp_path)
    assert [issue.name for issue in parsed.issues] == ["gg-string-utf8"]
    assert parsed.tensors[0].name == "a\\xff\x1b"
    parsed.tensors[0].name.encode()


# ---- against gguf-py -------------------------------------------------------------------------


def _compare(path: Path, tmp: Callable[[], None] | None = None) -> ParsedFile:
    reader = gguf.GGUFReader(str(path))
    with ByteSource(str(path)) as source:
        parsed = read_gguf(source, 0)
        assert [tensor.name for tensor in parsed.tensors] == [one.name for one in reader.tensors]
        for ours, theirs in zip(parsed.tensors, reader.tensors, strict=True):
            assert ours.dtype == theirs.tensor_type.name
            assert ours.type_id == int(theirs.tensor_type)
            assert list(ours.shape) == [int(extent) for extent in reversed(theirs.shape)]
            assert (ours.byte_offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
            assert ours.readable
        for field in reader.fields.values():
            if field.name.startswith("GGUF."):
                continue
            value = parsed.file.metadata[field.name]
            expected = field.contents()
            if isinstance(value, dict):
                values = read_array(source, value, byte_order=parsed.file.byte_order)
                value = values if isinstance(values, list) else values.tolist()
            assert value == expected, field.name
    return parsed


def _write(path: Path, endian: gguf.GGUFEndian) -> None:
    writer = gguf.GGUFWriter(str(path), "llama", endianess=endian)
    writer.add_uint32("u32", 5)
    writer.add_int8("i8", -5)
    writer.add_float32("f32", 1.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "päth / \x1b[31m")
    writer.add_array("short", [1, 2, 3])
    writer.add_array("long", list(range(1_000)))
    writer.add_array("floats", [0.5] * 100)
    writer.add_array("flags", [True, False] * 50)
    writer.add_token_list(["", "a", "▁the", "x" * 300, *[f"tok{i}" for i in range(5_000)]])
    rng = np.random.default_rng(0)
    swap = endian == gguf.GGUFEndian.BIG
    for name, array in (
        ("blk.0.a", rng.standard_normal((4, 64)).astype(np.float32)),
        ("blk.0.b", rng.standard_normal((3, 5)).astype(np.float16)),
        ("c", rng.integers(0, 9, 7).astype(np.int32)),
    ):
        writer.add_tensor(name, array.copy())
    del swap
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("endian", list(gguf.GGUFEndian))
def test_written_files_read_as_gguf_py_reads_them(endian: gguf.GGUFEndian, tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    _write(path, endian)
    parsed = _compare(path)
    big = endian == gguf.GGUFEndian.BIG
    assert parsed.file.byte_order == ("big" if big else "little")
    assert [issue.name for issue in parsed.issues] == (["gg-big-endian"] if big else [])
    assert parsed.file.metadata["tokenizer.ggml.tokens"]["count"] == 5_004
    with ByteSource(str(path)) as source:
        some = read_array(
            source,
            parsed.file.metadata["tokenizer.ggml.tokens"],
            byte_order=parsed.file.byte_order,
            start=2,
            stop=5,
        )
    assert some == ["▁the", "x" * 300, "tok0"]


def test_the_type_table_is_that_of_gguf_py() -> None:
    """Q8_1 apart: gguf-py before 0.20 counts 40 bytes, ggml-common.h has 36."""
    for kind in gguf.GGMLQuantizationType:
        ours = GGML_TYPES[int(kind)]
        assert ours.name == kind.name
        if kind.name != "Q8_1":
            assert (ours.block_size, ours.type_bytes) == gguf.GGML_QUANT_SIZES[kind]


@pytest.mark.real
def test_real_files_read_as_gguf_py_reads_them(real_set: Path) -> None:
    files = sorted(real_set.glob("*/*.gguf"))
    assert len(files) > 15
    for path in files:
        parsed = _compare(path)
        assert not [i for i in parsed.issues if severity_of(i) != "note"], path
    big = [path for path in files if "bigendian" in path.parent.name]
    assert [_compare(path).file.byte_order for path in big] == ["big"]


# ---- strings ------------------------------------------------------------------------------


def _walk(data: bytes, count: int, mark: str) -> tuple[int, int]:
    """Strings passed one by one, as the format says."""
    done = at = 0
    while done < count and at + 8 <= len(data):
        end = at + 8 + int(struct.unpack_from(f"{mark}Q", data, at)[0])
        if end > len(data):
            break
        at, done = end, done + 1
    return done, at


STRINGS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.just(b""),
        st.just(bytes(20)),
        st.integers(250, 520).map(lambda n: b"a" * n),
        st.text(max_size=6).map(str.encode),
    ),
    max_size=120,
)


@settings(max_examples=500, deadline=None)
@given(strings=STRINGS, count=st.integers(0, 130), cut=st.integers(0, 30), big=st.booleans())
def test_skipping_strings_at_once_ends_where_one_by_one_ends(
    strings: list[bytes], count: int, cut: int, big: bool
) -> None:
    mark = ">" if big else "<"
    data = b"".join(_text(string, mark) for string in strings)
    data = data[: len(data) - cut] if cut < len(data) else data
    assert skip_strings(data, count, "big" if big else "little") == _walk(data, count, mark)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=400), count=st.integers(0, 60), big=st.booleans())
def test_skipping_strings_in_noise_ends_where_one_by_one_ends(
    data: bytes, count: int, big: bool
) -> None:
    mark = ">" if big else "<"
    assert skip_strings(data, count, "big" if big else "little") == _walk(data, count, mark)


def test_a_vocabulary_across_many_chunks_is_passed_exactly(tmp_path: Path) -> None:
    rng = random.Random(3)
    strings = [rng.randbytes(rng.randrange(40)) for _ in range(120_000)]
    strings[50_000] = b"z" * (3 << 20)
    payload = b"".join(map(_text, strings))
    keys: tuple[Any, ...] = (_array("v", STRING, len(strings), payload), _u32("after", 9))
    parsed = _parse(_gguf(keys), tmp_path)
    assert parsed.file.metadata["after"] == 9
    assert not parsed.issues
