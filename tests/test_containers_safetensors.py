"""safetensors headers: what the official reader refuses is an issue, what it accepts is none."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantscope.containers.dtypes import DTYPE_BITS
from quantscope.containers.issues import ISSUES, severity_of
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.safetensors import read_safetensors
from quantscope.containers.source import ByteSource
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

E = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


def _raw(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def _entry(
    dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4), **more: object
) -> bytes:
    tree = {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}
    return json.dumps({"a": tree}).encode()


def _two(first: tuple[int, int], second: tuple[int, int]) -> bytes:
    tree = {
        name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for name, (begin, end) in (("a", first), ("b", second))
    }
    return json.dumps(tree).encode()


def _deep(levels: int) -> bytes:
    inner = b"[" * (levels - 2) + b"]" * (levels - 2)
    return b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":' + inner + b"}}"


CASES: dict[str, tuple[bytes, str | None]] = {
    "good": (_raw(b'{"a":' + E + b"}", b"1234"), None),
    "no tensors": (_raw(b"{}"), None),
    "padded with spaces": (_raw(b'{"a":' + E + b"}   ", b"1234"), None),
    "new line after": (_raw(b'{"a":' + E + b"}\n\t\r ", b"1234"), None),
    "zero byte after": (_raw(b'{"a":' + E + b"}\0", b"1234"), "st-header-json"),
    "space before": (_raw(b' {"a":' + E + b"}", b"1234"), "st-header-space"),
    "empty header": (_raw(b""), "st-header-start"),
    "empty file": (b"", "st-empty-file"),
    "seven bytes": (b"1234567", "st-too-short"),
    "length past end": (_raw(b'{"a":' + E + b"}", b"1234", length=4000), "st-header-past-end"),
    "length 2^60": (_raw(b"{}", length=1 << 60), "st-header-too-large"),
    "length 2^64-1": (_raw(b"{}", length=(1 << 64) - 1), "st-header-too-large"),
    "bom": (_raw(b"\xef\xbb\xbf{}"), "st-header-start"),
    "array": (_raw(b"[]"), "st-header-start"),
    "number": (_raw(b"123"), "st-header-start"),
    "cut json": (_raw(b'{"a":{"dtype"'), "st-header-json"),
    "trailing comma": (_raw(b'{"a":' + E + b",}", b"1234"), "st-header-json"),
    "bad utf-8": (_raw(b'{"a\xff":' + E + b"}", b"1234"), "st-header-utf8"),
    "NaN": (_raw(b'{"a":NaN}'), "st-header-json"),
    "depth 127": (_raw(_deep(127), b"1234"), None),
    "depth 128": (_raw(_deep(128), b"1234"), "st-header-depth"),
    "depth 100000": (_raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "st-header-depth"),
    "metadata": (_raw(b'{"__metadata__":{"k":"v"},"a":' + E + b"}", b"1234"), None),
    "metadata null": (_raw(b'{"__metadata__":null,"a":' + E + b"}", b"1234"), None),
    "metadata number": (_raw(b'{"__metadata__":{"k":1},"a":' + E + b"}", b"1234"), "st-metadata"),
    "metadata list": (_raw(b'{"__metadata__":[],"a":' + E + b"}", b"1234"), "st-metadata"),
    "metadata key twice": (
        _raw(b'{"__metadata__":{"k":"1","k":"2"},"a":' + E + b"}", b"1234"),
        "st-duplicate-key",
    ),
    "metadata twice": (
        _raw(b'{"__metadata__":{},"__metadata__":{},"a":' + E + b"}", b"1234"),
        "st-duplicate-field",
    ),
    "name twice": (_raw(b'{"a":' + E + b',"a":' + E + b"}", b"1234"), "st-duplicate-key"),
    "name twice, first bad": (_raw(b'{"a":5,"a":' + E + b"}", b"1234"), "st-entry-malformed"),
    "name twice, first dtype bad": (
        _raw(b'{"a":{"dtype":"F3","shape":[],"data_offsets":[0,4]},"a":' + E + b"}", b"1234"),
        "st-entry-malformed",
    ),
    "name twice, escaped": (
        _raw(b'{"\\u003a":' + E + b',":":' + E + b"}", b"1234"),
        "st-duplicate-key",
    ),
    "dtype twice": (
        _raw(b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
        "st-duplicate-field",
    ),
    "extra key": (_raw(_entry(extra={"q": [1, None]}), b"1234"), "st-entry-extra"),
    "extra key twice": (
        _raw(b'{"a":{"dtype":"F32","x":1,"x":2,"shape":[1],"data_offsets":[0,4]}}', b"1234"),
        "st-entry-extra",
    ),
    "extra key with 1e999": (
        _raw(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1e999}}', b"1234"),
        "st-entry-malformed",
    ),
    "extra key with 24 digits": (
        _raw(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":%s}}' % (b"9" * 24), b"1234"
        ),
        "st-entry-extra",
    ),
    "lone surrogate": (_raw(b'{"\\ud83d":' + E + b"}", b"1234"), "st-header-json"),
    "surrogate pair": (_raw(b'{"\\ud83d\\ude00":' + E + b"}", b"1234"), None),
    "entry as list": (_raw(b'{"a":["F32",[1],[0,4]]}', b"1234"), "st-entry-list"),
    "dtype as object": (
        _raw(b'{"a":{"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]}}', b"1234"),
        None,
    ),
    "entry is null": (_raw(b'{"a":null}'), "st-entry-malformed"),
    "no dtype": (_raw(b'{"a":{"shape":[1],"data_offsets":[0,4]}}', b"1234"), "st-entry-malformed"),
    "dtype unknown": (_raw(_entry("F31"), b"1234"), "st-dtype-unknown"),
    "dtype lower case": (_raw(_entry("f32"), b"1234"), "st-dtype-unknown"),
    "dtype with colon": (_raw(_entry("F:3"), b"1234"), "st-dtype-unknown"),
    "dtype number": (_raw(_entry(11), b"1234"), "st-entry-malformed"),  # type: ignore[arg-type]
    "shape float": (_raw(_entry(shape=[1.0]), b"1234"), "st-entry-malformed"),
    "shape minus zero": (
        _raw(b'{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}'),
        "st-entry-malformed",
    ),
    "shape negative": (_raw(_entry(shape=[-1]), b"1234"), "st-negative"),
    "shape text": (_raw(_entry(shape=["1"]), b"1234"), "st-entry-malformed"),
    "offset negative": (_raw(_entry(offsets=[-4, 0]), b"1234"), "st-negative"),
    "offsets of three": (_raw(_entry(offsets=[0, 4, 4]), b"1234"), "st-entry-malformed"),
    "offsets reversed": (_raw(_entry(offsets=[4, 0]), b"1234"), "st-offsets-reversed"),
    "offset 2^64": (_raw(_entry(offsets=[0, 1 << 64]), b"1234"), "st-entry-malformed"),
    "offset 2^63": (_raw(_entry(offsets=[0, 1 << 63]), b"1234"), "st-past-end"),
    "offset of 4000 digits": (_raw(_entry(offsets=[0, 10**4000]), b"1234"), "st-entry-malformed"),
    "scalar": (_raw(_entry(shape=[]), b"1234"), None),
    "zero extent": (_raw(_entry(shape=[0], offsets=[0, 0])), None),
    "zero bytes for one element": (_raw(_entry(shape=[1], offsets=[0, 0])), "st-size-mismatch"),
    "zero extent first": (_raw(_entry(shape=[0, 1 << 63, 4], offsets=[0, 0])), None),
    "zero extent last": (_raw(_entry(shape=[1 << 63, 4, 0], offsets=[0, 0])), "st-shape-overflow"),
    "bits overflow": (_raw(_entry(shape=[1 << 62], offsets=[0, 0])), "st-shape-overflow"),
    "4 MB by shape": (_raw(_entry(shape=[1000, 1000]), b"1234"), "st-size-mismatch"),
    "F4 pairs": (_raw(_entry("F4", [2, 3], [0, 3]), b"123"), None),
    "F4 odd": (_raw(_entry("F4", [3], [0, 2]), b"12"), "st-sub-byte"),
    "F6 of four": (_raw(_entry("F6_E2M3", [4], [0, 3]), b"123"), None),
    "F6 of two": (_raw(_entry("F6_E3M2", [2], [0, 2]), b"12"), "st-sub-byte"),
    "one byte short": (_raw(b'{"a":' + E + b"}", b"123"), "st-past-end"),
    "no data": (_raw(b'{"a":' + E + b"}"), "st-past-end"),
    "one byte more": (_raw(b'{"a":' + E + b"}", b"12345"), "st-trailing-bytes"),
    "bytes and no tensor": (_raw(b"{}", b"x"), "st-trailing-bytes"),
    "overlap": (_raw(_two((0, 4), (2, 6)), b"123456"), "st-overlap"),
    "alias": (_raw(_two((0, 4), (0, 4)), b"1234"), "st-alias"),
    "hole": (_raw(_two((0, 2), (4, 6)), b"123456"), "st-hole"),
    "hole at the start": (_raw(_entry("U8", [2], [2, 4]), b"1234"), "st-hole"),
    "empty inside": (_raw(_two((0, 4), (2, 2)), b"1234"), "st-overlap"),
    "empty at the end": (_raw(_two((0, 4), (4, 4)), b"1234"), None),
    "empty name": (_raw(b'{"":' + E + b"}", b"1234"), None),
    "lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 123456\n",
        "st-lfs-pointer",
    ),
    "html": (b"<!DOCTYPE html><html><body>Not found</body></html>", "st-html-page"),
    "pickle": (b"\x80\x02}q\x00." + bytes(50), "st-other-container"),
    "zip": (b"PK\x03\x04" + bytes(60), "st-other-container"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(60), "st-other-container"),
    "zeros": (bytes(64), "st-header-start"),
}


def _official(path: Path) -> list[str] | None:
    """Names that the official reader gives, None where it refuses."""
    try:
        with safe_open(str(path), "np") as file:
            return sorted(file.keys())
    except (SafetensorError, ValueError, OSError):
        return None


def _ours(path: Path) -> ParsedFile:
    with ByteSource(str(path)) as source:
        return read_safetensors(source, 3)


def _violations(parsed: ParsedFile) -> list[str]:
    return [issue.name for issue in parsed.issues if severity_of(issue) == "violation"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_refused_by_the_official_reader_means_a_violation_and_accepted_means_none(
    case: str, tmp_path: Path
) -> None:
    data, slug = CASES[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    parsed = _ours(path)
    names = {issue.name for issue in parsed.issues}
    assert slug is None or slug in names
    assert (_official(path) is None) == bool(_violations(parsed)), parsed.issues
    if not names:
        assert parsed.file.parsed
        assert [tensor.name for tensor in parsed.tensors] == _official(path)


def test_every_sound_entry_of_a_broken_header_is_still_listed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tree = {
        "good.0": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        "bad": {"dtype": "U8", "shape": [-1], "data_offsets": [4, 8]},
        "good.1": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]},
    }
    path.write_bytes(_raw(json.dumps(tree).encode(), bytes(12)))
    parsed = _ours(path)
    assert [tensor.name for tensor in parsed.tensors] == ["good.0", "good.1"]
    assert [issue.name for issue in parsed.issues] == ["st-negative"]
    assert parsed.file.parsed
    path.write_bytes(_raw(json.dumps(tree).encode()[:-3], bytes(12)))
    broken = _ours(path)
    assert [tensor.name for tensor in broken.tensors] == ["good.0"]
    assert _violations(broken)[0] == "st-header-json"


def test_a_file_cut_in_its_header_still_names_its_tensors_as_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({f"layer.{i}.weight": np.zeros(8, np.float32) for i in range(50)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:1_500])
    parsed = _ours(path)
    assert _violations(parsed) == ["st-header-past-end"]
    assert len(parsed.tensors) > 5
    assert not any(tensor.readable for tensor in parsed.tensors)
    assert not parsed.file.parsed


def test_numbers_of_a_truncated_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(8, np.float32), "b": np.zeros(8, np.float32)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-33])
    parsed = _ours(path)
    (issue,) = parsed.issues
    assert issue.kind == "ST-TRUNC"
    assert "33 bytes shorter" in issue.message
    assert issue.byte_range == (len(whole) - 33, len(whole))
    assert issue.data["tensors"] == ["a", "b"]
    assert [tensor.readable for tensor in parsed.tensors] == [False, False]


def test_a_shared_range_names_both_tensors_and_absolute_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = _two((0, 8), (0, 8))
    path.write_bytes(_raw(header, bytes(8)))
    (issue,) = _ours(path).issues
    assert (issue.name, issue.tensor, issue.data["other"]) == ("st-alias", "b", "a")
    assert issue.byte_range == (8 + len(header), 16 + len(header))


def test_offsets_lead_to_the_values_that_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    rng = np.random.default_rng(1)
    arrays = {
        f"t.{i}": rng.integers(0, 100, size=(i + 1, 3)).astype(dtype)
        for i, dtype in enumerate(
            (np.float64, np.float32, np.float16, np.int8, np.uint8, np.int64, np.uint16, np.bool_)
        )
    }
    save_file(arrays, path, metadata={"format": "np", "k": "v:w"})
    parsed = _ours(path)
    assert not parsed.issues
    assert parsed.file.metadata == {"format": "np", "k": "v:w"}
    assert parsed.file.bytes_read <= parsed.file.header_bytes + 512
    with ByteSource(str(path)) as source:
        for tensor in parsed.tensors:
            array = arrays[tensor.name]
            assert tensor.shape == array.shape
            assert source.read_at(tensor.byte_offset, tensor.nbytes) == array.tobytes()


def test_the_dtype_table_is_the_official_one(tmp_path: Path) -> None:
    """Every word with its width is accepted, and with one byte more or less refused."""
    for dtype, bits in DTYPE_BITS.items():
        path = tmp_path / "one.safetensors"
        for more, accepted in ((0, True), (1, False)):
            header = _entry(dtype, [8], [0, bits + more])
            path.write_bytes(_raw(header, bytes(bits + more)))
            assert (_official(path) is not None) == accepted, dtype


def test_lfs_pointer_gives_the_size_of_the_real_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CASES["lfs pointer"][0])
    (issue,) = _ours(path).issues
    assert issue.data == {"oid": "a" * 64, "size": 123456}


@st.composite
def _trees(draw: st.DrawFn) -> tuple[bytes, int]:
    """Headers of up to five entries, mostly sound, with now and then one wrong number."""
    count = draw(st.integers(0, 5))
    parts = []
    at = 0
    for i in range(count):
        dtype = draw(st.sampled_from([*DTYPE_BITS, "U8", "F16", "F4", "X"]))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        bits = DTYPE_BITS.get(dtype, 8)
        size = int(np.prod(shape, dtype=np.int64)) * bits // 8
        shift = draw(st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, -1]))
        end = at + size + shift
        name = draw(st.sampled_from(["a", "b", "c.d", "é", "x:y", ""])) + (
            str(i) if draw(st.booleans()) else ""
        )
        entry = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        parts.append(f"{json.dumps(name, ensure_ascii=draw(st.booleans()))}:{json.dumps(entry)}")
        at = max(end, 0) + draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1]))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), '"__metadata__":{"k":"v"}')
    return ("{" + ",".join(parts) + "}").encode(), at


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(tree=_trees(), cut=st.sampled_from([0, 0, 0, 0, 1, -1]))
def test_generated_headers_agree_with_the_official_reader(
    tree: tuple[bytes, int], cut: int, tmp_path: Path
) -> None:
    header, size = tree
    path = tmp_path / "model.safetensors"
    path.write_bytes(_raw(header, bytes(max(0, size + cut))))
    parsed = _ours(path)
    official = _official(path)
    assert (official is None) == bool(_violations(parsed)), (header, parsed.issues)
    if official is not None:
        assert sorted(tensor.name for tensor in parsed.tensors) == official


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1 << 30), flips=st.integers(1, 4))
def test_bytes_flipped_in_a_good_file_agree_with_the_official_reader(
    seed: int, flips: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    save_file(
        {"model.layers.0.weight": np.zeros((2, 3), np.float32), "b": np.zeros(5, np.int8)},
        path,
        metadata={"format": "pt"},
    )
    data = bytearray(path.read_bytes())
    random_bytes = random.Random(seed)
    header_end = 8 + int.from_bytes(data[:8], "little")
    for _ in range(flips):
        at = random_bytes.randrange(0, header_end)
        data[at] = random_bytes.choice(
            (*b'0123456789"{}[]:,-.eE \\ntu', random_bytes.randrange(256))
        )
    path.write_bytes(data)
    parsed = _ours(path)
    assert (_official(path) is None) == bool(_violations(parsed)), (bytes(data), parsed.issues)


def test_every_case_names_a_slug_of_the_table() -> None:
    assert all(slug is None or slug in ISSUES for _, slug in CASES.values())


@pytest.mark.real
def test_real_files_have_no_issue_and_the_official_names_and_shapes(real_set: Path) -> None:
    files = sorted(real_set.glob("*/*.safetensors"))
    assert len(files) > 40
    for path in files:
        parsed = _ours(path)
        assert not parsed.issues, path
        with safe_open(str(path), "np") as file:
            assert {tensor.name for tensor in parsed.tensors} == set(file.keys())
            for tensor in parsed.tensors:
                piece = file.get_slice(tensor.name)
                assert list(tensor.shape) == piece.get_shape()
                assert tensor.dtype == piece.get_dtype()
