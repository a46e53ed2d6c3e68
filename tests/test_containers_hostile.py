"""Any byte sequence gives a result or one clear error, in bounded time and memory."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import quantscope.containers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantscope.containers.detect import open_path
from quantscope.containers.issues import ISSUES, MAX_ISSUES_PER_SLUG, IssueLog
from quantscope.containers.safetensors import read_safetensors
from quantscope.containers.source import ByteSource
from quantscope.errors import QuantscopeError
from safetensors.numpy import save_file

MB = 1_000_000
MAX_GROWTH_MB = 256
MAX_CPU_SECONDS = 12.0
"""Six times what is promised: the machine that runs this may be busy."""

_CHILD = """
import sys, time, json, pickletools, zipfile, yaml, numpy
from quantscope.containers.detect import open_path
from quantscope.errors import QuantscopeError
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
before, start = peak(), time.process_time()
try:
    opened, sources = open_path(sys.argv[1])
    slugs, error = [issue.name for issue in opened.issues], None
except QuantscopeError as caught:
    slugs, error = [], caught.message
print(json.dumps([time.process_time() - start, peak() - before, slugs, error]))
"""


def _st(path: Path, header: bytes, *, length: int | None = None, size: int | None = None) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header) if length is None else length) + header)
        if size is not None:
            file.truncate(size)


def _gg(
    path: Path, body: bytes, *, keys: int = 0, tensors: int = 0, size: int | None = None
) -> None:
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body)
        if size is not None:
            file.truncate(size)


def _array(element: int, count: int) -> bytes:
    return struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, element, count)


def _pt(path: Path, data: bytes, *, kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("a/data.pkl", data)


def _laughs() -> bytes:
    data = b"\x80\x02]q\x00(" + b"K\x01" * 100 + b"e"
    for level in range(1, 60):
        data += b"]q" + bytes([level]) + b"(" + (b"h" + bytes([level - 1])) * 50 + b"e"
    return data + b"."


ENTRY = b'{"dtype":"F32","shape":[],"data_offsets":[0,4]}'
SET_OF_BIG_LIST = b"\x80\x02(" + b"K\x01" * 400_000 + b"lq\x000cbuiltins\nset\nq\x010("

CASES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "header length 2^60": ("a.safetensors", lambda p: _st(p, b"{}", length=1 << 60), "st-header-too-large"),
    "header of 300 MB": (
        "a.safetensors",
        lambda p: _st(p, b"{", length=300 * MB, size=301 * MB),
        "st-header-too-large",
    ),
    "99 MB of zeros": (
        "a.safetensors",
        lambda p: _st(p, b"{", length=99 * MB, size=99 * MB + 8),
        "st-header-json",
    ),
    "99 MB of brackets": ("a.safetensors", lambda p: _st(p, b'{"a":' + b"[" * (99 * MB)), "st-header-depth"),
    "99 MB of empty lists": (
        "a.safetensors",
        lambda p: _st(p, b'{"a":[' + b"[]," * (33 * MB) + b"1]}"),
        "st-header-over-limit",
    ),
    "49 million zeros in a shape": (
        "a.safetensors",
        lambda p: _st(
            p, b'{"a":{"dtype":"U8","shape":[' + b"0," * (49 * MB) + b'0],"data_offsets":[0,0]}}'
        ),
        "st-header-over-limit",
    ),
    "2 million keys": (
        "a.safetensors",
        lambda p: _st(p, b"{" + b",".join(b'"%x":0' % i for i in range(2 * MB)) + b"}"),
        "st-header-over-limit",
    ),
    "99 MB of metadata": (
        "a.safetensors",
        lambda p: _st(p, b'{"__metadata__":{"a":"' + b"x" * (99 * MB) + b'"},"b":0}'),
        "st-entry-malformed",
    ),
    "99 MB of quotes": ("a.safetensors", lambda p: _st(p, b'"' * (99 * MB)), "st-header-start"),
    "a million half entries": (
        "a.safetensors",
        lambda p: _st(p, b"{x" + b'"a":{"dtype"' * MB),
        "st-header-json",
    ),
    "90 million digits": (
        "a.safetensors",
        lambda p: _st(p, b'{"a":{"shape":[' + b"9" * (90 * MB) + b"]}}"),
        "st-header-over-limit",
    ),
    "one name 200 000 times": (
        "a.safetensors",
        lambda p: _st(p, b"{" + b",".join([b'"a":' + ENTRY] * 200_000) + b"}"),
        "st-duplicate-key",
    ),
    "array of 2^50": ("a.gguf", lambda p: _gg(p, _array(4, 1 << 50), keys=1), "gg-array-length"),
    "strings of 2^50": ("a.gguf", lambda p: _gg(p, _array(8, 1 << 50), keys=1), "gg-array-length"),
    "3 GB of empty strings": (
        "a.gguf",
        lambda p: _gg(p, _array(8, 1 << 28), keys=1, size=3 << 30),
        "gg-header-over-limit",
    ),
    "3 GB of nested arrays": (
        "a.gguf",
        lambda p: _gg(p, _array(9, 1 << 26), keys=1, size=3 << 30),
        "gg-header-over-limit",
    ),
    "40 million tensors": ("a.gguf", lambda p: _gg(p, b"", tensors=40 * MB, size=1 << 30), "gg-header-over-limit"),
    "90 000 blank tensors": ("a.gguf", lambda p: _gg(p, b"", tensors=90_000, size=1 << 30), "gg-n-dims"),
    "190 000 blank keys": ("a.gguf", lambda p: _gg(p, b"", keys=190_000, size=1 << 30), "gg-key-empty"),
    "100 names of 1 MB": (
        "a.gguf",
        lambda p: _gg(
            p,
            (struct.pack("<Q", 1 << 20) + b"n" * (1 << 20) + struct.pack("<IqIQ", 1, 1, 0, 0)) * 100,
            tensors=100,
        ),
        "gg-name-long",
    ),
    "30 million opcodes": ("a.pt", lambda p: _pt(p, b"\x80\x02" + b"N" * (30 * MB) + b"."), "pt-pickle-limit"),
    "zip bomb": (
        "a.pt",
        lambda p: _pt(p, b"\x80\x02" + b"N0" * (15 * MB) + b"N.", kind=zipfile.ZIP_DEFLATED),
        "pt-pickle-limit",
    ),
    "billion laughs in a pickle": ("a.pt", lambda p: _pt(p, _laughs()), "pt-pickle-limit"),
    "a list that holds itself": ("a.pt", lambda p: _pt(p, b"\x80\x02]q\x00h\x00a."), "pt-pickle-limit"),
    "900 000 nested tuples": (
        "a.pt",
        lambda p: _pt(p, b"\x80\x02N" + b"\x85" * 900_000 + b"."),
        "pt-pickle-limit",
    ),
    "a large list copied 100 000 times": (
        "a.pt",
        lambda p: _pt(p, SET_OF_BIG_LIST + b"h\x01h\x00\x85R" * 100_000 + b"t."),
        "pt-pickle-broken",
    ),
    "20 million digits in a pickle": (
        "a.pt",
        lambda p: _pt(p, b"\x80\x02I" + b"9" * (20 * MB) + b"\n."),
        "pt-pickle-broken",
    ),
    "index of 60 MB of brackets": (
        "model.safetensors.index.json",
        lambda p: p.write_bytes(b"[" * (60 * MB)) and None,
        "",
    ),
}  # fmt: skip


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_hostile_files_cost_little_and_are_named(case: str, tmp_path: Path) -> None:
    name, write, slug = CASES[case]
    path = tmp_path / name
    write(path)
    result = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    seconds, growth_mb, slugs, error = json.loads(result.stdout)
    path.unlink()
    assert slug in slugs if slug else error
    assert growth_mb < MAX_GROWTH_MB
    assert seconds < MAX_CPU_SECONDS


def test_a_header_of_100_000_tensors_is_read_within_seconds(tmp_path: Path) -> None:
    import time

    entries = (
        b'"model.layers.%d.mlp.experts.%d.w":{"dtype":"F16","shape":[2,2],"data_offsets":[%d,%d]}'
        % (i // 1000, i % 1000, 8 * i, 8 * i + 8)
        for i in range(100_000)
    )
    path = tmp_path / "big.safetensors"
    header = b"{" + b",".join(entries) + b"}"
    _st(path, header, size=8 + len(header) + 800_000)
    start = time.process_time()
    with ByteSource(str(path)) as source:
        parsed = read_safetensors(source, 0)
    assert time.process_time() - start < 6
    assert len(parsed.tensors) == 100_000
    assert not parsed.issues


# ---- mutation --------------------------------------------------------------------------------


def _seed_files(folder: Path) -> list[bytes]:
    save_file(
        {"model.layers.0.weight": np.zeros((2, 3), np.float32), "b": np.zeros(5, np.int8)},
        folder / "seed.safetensors",
        metadata={"format": "pt"},
    )
    writer = gguf.GGUFWriter(str(folder / "seed.gguf"), "llama")
    writer.add_uint32("general.alignment", 32)
    writer.add_array("some", ["a", "bc"])
    writer.add_token_list([f"t{i}" for i in range(100)])
    writer.add_tensor("blk.0.w", np.zeros((2, 32), np.float32))
    writer.add_tensor("c", np.zeros(7, np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _pt(folder / "seed.pt", _laughs()[:300] + b".")
    return [(folder / f"seed.{kind}").read_bytes() for kind in ("safetensors", "gguf", "pt")]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    folder = tmp_path_factory.mktemp("seeds")
    return folder, _seed_files(folder)


@settings(
    max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    which=st.integers(0, 2),
    named=st.sampled_from(["safetensors", "gguf", "pt", "bin"]),
    seed=st.integers(0, 1 << 30),
    flips=st.integers(0, 8),
    cut=st.sampled_from([0, 0, 0, 1, 7, 40, 200]),
)
def test_mutated_files_give_a_result_or_a_quantscope_error(
    which: int, named: str, seed: int, flips: int, cut: int, seeds: tuple[Path, list[bytes]]
) -> None:
    folder, files = seeds
    rng = random.Random(seed)
    data = bytearray(files[which])
    for _ in range(flips):
        at = rng.randrange(len(data))
        data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if cut:
        del data[-cut:]
    path = folder / f"mutated.{named}"
    path.write_bytes(data)
    try:
        opened, sources = open_path(str(path))
    except QuantscopeError:
        return
    sources.close()
    for issue in opened.issues:
        assert issue.name in ISSUES
        assert issue.message
    for tensor in opened.tensors:
        assert tensor.nbytes >= 0
        if tensor.readable:
            assert tensor.byte_offset >= 0
            assert tensor.byte_offset + tensor.nbytes <= len(data)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=300), name=st.sampled_from(["a.safetensors", "a.gguf", "a.pt", "x"]))
def test_noise_gives_a_result_or_a_quantscope_error(data: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    try:
        opened, sources = open_path(str(path))
    except QuantscopeError:
        return
    sources.close()
    assert opened.issues or opened.tensors or opened.files[0].parsed


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["weight_map", "metadata", "total_size", "a", "b"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(tree=JSONISH)
def test_any_json_as_index_gives_a_result_or_a_quantscope_error(
    tree: object, tmp_path: Path
) -> None:
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(tree))
    opened, sources = open_path(str(tmp_path))
    sources.close()
    assert [tensor.name for tensor in opened.tensors] == ["a"]


# ---- the table of slugs ------------------------------------------------------------------------


def test_every_slug_in_the_readers_is_in_the_table_and_every_row_is_used() -> None:
    folder = Path(quantscope.containers.__file__).parent
    used: set[str] = set()
    for path in folder.glob("*.py"):
        if path.name != "issues.py":
            used |= set(re.findall(r'"([a-z]+(?:-[a-z0-9]+)+)"', path.read_text()))
    prefixes = {slug.split("-")[0] for slug in ISSUES}
    emitted = {word for word in used if word.split("-")[0] in prefixes}
    emitted -= {"utf-8", "utf-8-sig", "latin-1"}
    assert emitted - set(ISSUES) == set()
    assert set(ISSUES) - emitted == {"issues-left-out"}


def test_kinds_are_those_of_the_fault_catalogue_and_texts_are_short() -> None:
    kinds = {
        "ST-HDR", "ST-TRUNC", "ST-SIZE", "ST-OVERLAP", "IDX-SHARD", "IDX-MAP", "IDX-OMIT", "GG-HDR",
        "GG-BOUNDS", "GG-REGION", "GG-DIMS", "GG-ALIGN", "GG-DUP", "GG-TYPE", "GG-SPLIT",
    }  # fmt: skip
    assert {row.kind for row in ISSUES.values()} - {None} == kinds
    assert all(row.slug == slug and len(row.what) < 80 for slug, row in ISSUES.items())


def test_a_flood_of_issues_is_counted_not_kept() -> None:
    log = IssueLog("f")
    for number in range(MAX_ISSUES_PER_SLUG + 500):
        log.add("st-hole", f"hole {number}", tensor=str(number))
    issues = log.done()
    assert len(issues) == MAX_ISSUES_PER_SLUG + 1
    assert issues[-1].data == {
        "slug": "st-hole",
        "omitted": 500,
        "count": MAX_ISSUES_PER_SLUG + 500,
    }
