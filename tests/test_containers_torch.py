"""Torch zips: tensors by a data-only walk, written by Python's own pickler and by torch itself."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantscope.containers.detect import open_path
from quantscope.containers.issues import severity_of
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.pickle_walk import walk_pickle
from quantscope.containers.source import ByteSource
from quantscope.containers.torch_zip import read_torch

TORCH_PYTHON = os.environ.get("QUANTSCOPE_TORCH_PYTHON", sys.executable)
"""An interpreter with torch, where the test environment itself has none."""


class FakeStorage:
    """Pickled as the persistent id that torch writes for a storage."""

    def __init__(self, kind: type, key: str, data: bytes, item: int) -> None:
        self.kind, self.key, self.data, self.item = kind, key, data, item


class FakeTensor:
    """Pickled as a call of torch._utils._rebuild_tensor_v2."""

    def __init__(
        self, storage: FakeStorage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.parts = (storage, offset, shape, strides, False, OrderedDict())

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.parts


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, FakeStorage):
            return ("storage", obj.kind, obj.key, "cpu", len(obj.data) // obj.item)
        return None


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Modules with torch's names, so that Python's pickler writes them; nothing of torch is needed."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "HalfStorage", "ByteStorage", "Size"):
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    def rebuild(*_: Any) -> None:
        raise AssertionError("a walk must not call anything")

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return torch


def _dump(value: Any, protocol: int = 2) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol).dump(value)
    return buffer.getvalue()


def _zip(
    path: Path, data: bytes, *storages: FakeStorage, order: str = "little", compress: bool = False
) -> Path:
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", order)
        for storage in storages:
            archive.writestr(f"archive/data/{storage.key}", storage.data)
    return path


def _read(path: Path) -> ParsedFile:
    with ByteSource(str(path)) as source:
        return read_torch(source, 0)


def _bytes(path: Path, parsed: ParsedFile, name: str) -> bytes:
    (tensor,) = [one for one in parsed.tensors if one.name == name]
    with ByteSource(str(path)) as source:
        return source.read_at(tensor.byte_offset, tensor.nbytes)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_tensors_and_plain_values_come_out_of_every_protocol(
    protocol: int, fake_torch: types.ModuleType, tmp_path: Path
) -> None:
    storage = FakeStorage(fake_torch.HalfStorage, "0", bytes(range(24)), 2)
    if protocol == 0:
        # protocol 0 writes persistent ids as text, which torch does not use
        with pytest.raises(AssertionError):
            _tree_of(_dump({"t": FakeTensor(storage, 0, (1,), (1,))}, 0))
        assert _tree_of(_dump({"a": [1, 2.5, None, True, "x"]}, 0)) == {
            "a": [1, 2.5, None, True, "x"]
        }
        return
    tree = OrderedDict(
        module=OrderedDict(W_q=FakeTensor(storage, 2, (2, 3), (3, 1)), nbits=4, axis=None),
        flags=(True, 1.5, "text", b"ab", {"k": [1, 2]}),
        big=1 << 70,
    )
    path = _zip(tmp_path / "m.pt", _dump(tree, protocol), storage)
    parsed = _read(path)
    assert not parsed.issues
    (tensor,) = parsed.tensors
    assert (tensor.name, tensor.dtype, tensor.shape) == ("module.W_q", "F16", (2, 3))
    assert tensor.strides is None
    assert _bytes(path, parsed, "module.W_q") == bytes(range(4, 16))
    assert parsed.file.metadata["module"] == {"nbits": 4, "axis": None}
    assert parsed.file.metadata["flags"][:3] == [True, 1.5, "text"]
    assert parsed.file.metadata["flags"][4] == {"k": [1, 2]}
    assert parsed.file.metadata["big"] == hex(1 << 70)
    json.dumps(parsed.file.metadata)


def _tree_of(data: bytes) -> Any:
    walk = walk_pickle(data)
    assert walk.error is None, walk.error
    return walk.value


def test_strided_and_shared_tensors_keep_their_places(
    fake_torch: types.ModuleType, tmp_path: Path
) -> None:
    storage = FakeStorage(fake_torch.FloatStorage, "0", bytes(48), 4)
    tree = {
        "plain": FakeTensor(storage, 0, (3, 4), (4, 1)),
        "turned": FakeTensor(storage, 0, (4, 3), (1, 4)),
        "tail": FakeTensor(storage, 8, (4,), (1,)),
        "scalar": FakeTensor(storage, 11, (), ()),
        "empty": FakeTensor(storage, 0, (0, 4), (4, 1)),
    }
    path = _zip(tmp_path / "m.pt", _dump(tree), storage)
    tensors = {tensor.name: tensor for tensor in _read(path).tensors}
    base = tensors["plain"].byte_offset
    assert tensors["turned"].strides == (1, 4)
    assert (tensors["turned"].byte_offset, tensors["turned"].nbytes) == (base, 48)
    assert (tensors["tail"].byte_offset, tensors["tail"].nbytes) == (base + 32, 16)
    assert (tensors["scalar"].byte_offset, tensors["scalar"].nbytes) == (base + 44, 4)
    assert tensors["empty"].nbytes == 0
    assert all(tensor.readable for tensor in tensors.values())


def test_a_tensor_beyond_its_storage_is_told(fake_torch: types.ModuleType, tmp_path: Path) -> None:
    storage = FakeStorage(fake_torch.FloatStorage, "0", bytes(16), 4)
    gone = FakeStorage(fake_torch.FloatStorage, "7", bytes(16), 4)
    tree = {"long": FakeTensor(storage, 2, (4,), (1,)), "gone": FakeTensor(gone, 0, (4,), (1,))}
    parsed = _read(_zip(tmp_path / "m.pt", _dump(tree), storage))
    assert {issue.name for issue in parsed.issues} == {"pt-storage-size", "pt-storage-missing"}
    assert not any(tensor.readable for tensor in parsed.tensors)


def test_compressed_storages_and_big_endian_are_told(
    fake_torch: types.ModuleType, tmp_path: Path
) -> None:
    storage = FakeStorage(fake_torch.FloatStorage, "0", bytes(16), 4)
    data = _dump({"t": FakeTensor(storage, 0, (4,), (1,))})
    parsed = _read(_zip(tmp_path / "m.pt", data, storage, order="big", compress=True))
    assert {issue.name for issue in parsed.issues} == {"pt-compressed", "pt-byteorder"}
    assert parsed.file.byte_order == "big"
    assert [tensor.readable for tensor in parsed.tensors] == [False]


class Evil:
    """Would run a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_nothing_is_run_and_the_global_is_named(
    fake_torch: types.ModuleType, tmp_path: Path
) -> None:
    storage = FakeStorage(fake_torch.ByteStorage, "0", b"abcd", 1)
    witness = tmp_path / "ran"
    tree = {
        "before": FakeTensor(storage, 0, (2,), (1,)),
        "evil": Evil(witness),
        "after": FakeTensor(storage, 2, (2,), (1,)),
    }
    path = _zip(tmp_path / "m.pt", _dump(tree), storage)
    parsed = _read(path)
    assert not witness.exists()
    (issue,) = parsed.issues
    assert (issue.name, issue.data["label"]) == ("pt-global", f"{os.system.__module__}.system")
    assert [tensor.name for tensor in parsed.tensors] == ["before", "after"]
    assert _bytes(path, parsed, "after") == b"cd"
    assert parsed.file.metadata["evil"]["opaque"].endswith(".system")
    # the pickle itself is live: unpickling it would have run the command
    pickle.loads(pickle.dumps({"evil": Evil(witness)}))
    assert witness.exists()


class Module:
    """An instance with a state, as torch.save(model) writes it."""


def test_tensors_inside_an_unknown_object_are_still_listed(
    fake_torch: types.ModuleType, tmp_path: Path
) -> None:
    storage = FakeStorage(fake_torch.ByteStorage, "0", b"abcd", 1)
    module = Module()
    module.__dict__.update(_parameters={"weight": FakeTensor(storage, 0, (4,), (1,))}, bits=4)
    parsed = _read(_zip(tmp_path / "m.pt", _dump({"layer": module}), storage))
    assert [tensor.name for tensor in parsed.tensors] == ["layer._parameters.weight"]
    assert parsed.file.metadata["layer"]["state"] == {"bits": 4}
    assert [issue.name for issue in parsed.issues] == ["pt-global"]


def test_a_pickle_that_breaks_off_keeps_what_came_before(
    fake_torch: types.ModuleType, tmp_path: Path
) -> None:
    storage = FakeStorage(fake_torch.ByteStorage, "0", b"abcd", 1)
    data = _dump({f"t{i}": FakeTensor(storage, 0, (4,), (1,)) for i in range(5)})
    parsed = _read(_zip(tmp_path / "m.pt", data[:-20], storage))
    assert [issue.name for issue in parsed.issues] == ["pt-pickle-broken"]
    assert [tensor.name for tensor in parsed.tensors][:3] == ["t0", "t1", "t2"]
    assert not parsed.file.parsed


@pytest.mark.parametrize(
    ("data", "slug"),
    [
        (b"", "pt-empty-file"),
        (b"\x80\x02}q\x00.", "pt-legacy-pickle"),
        (b"PK\x03\x04" + bytes(100), "pt-zip"),
        (b"hello world", "pt-unknown"),
        (b"<html></html>", "pt-html-page"),
    ],
    ids=["empty", "legacy", "zip", "text", "html"],
)
def test_files_that_are_no_torch_zip_are_named(data: bytes, slug: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(data)
    parsed = _read(path)
    assert [issue.name for issue in parsed.issues] == [slug]
    assert not parsed.file.parsed


def test_a_zip_without_a_pickle_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("a.txt", "x")
    assert [issue.name for issue in _read(tmp_path / "m.pt").issues] == ["pt-no-pickle"]


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(value=PLAIN, protocol=st.integers(0, 5))
def test_plain_values_are_what_pickle_wrote(value: Any, protocol: int) -> None:
    assert _tree_of(pickle.dumps(value, protocol)) == value


@settings(max_examples=500, deadline=None)
@given(data=st.binary(max_size=200))
def test_noise_never_raises(data: bytes) -> None:
    walk_pickle(data)
    walk_pickle(b"\x80\x04" + data + b".")


@settings(max_examples=300, deadline=None)
@given(value=PLAIN, protocol=st.integers(0, 5), seed=st.integers(0, 1 << 30))
def test_flipped_bytes_never_raise(value: Any, protocol: int, seed: int) -> None:
    data = bytearray(pickle.dumps(value, protocol))
    data[seed % len(data)] ^= 1 << (seed // 7919 % 8)
    walk_pickle(bytes(data))


@pytest.mark.parametrize(
    "name",
    [
        "pop",
        "list of nothing",
        "reduce",
        "memo",
        "setitem",
        "build",
        "binpersid",
        "stack global",
        "long4",
    ],
)
def test_opcodes_over_an_empty_stack_are_an_error(name: str) -> None:
    opcodes = {
        "pop": b"0", "list of nothing": b"l", "reduce": b"R", "memo": b"h\x05", "setitem": b"s",
        "build": b"b", "binpersid": b"Q", "stack global": b"\x93",
        "long4": b"\x8b" + struct.pack("<i", -5),
    }  # fmt: skip
    walk = walk_pickle(b"\x80\x04" + opcodes[name] + b".")
    assert walk.error


_ORACLE = """
import hashlib, json, sys, torch
def walk(value, path, out):
    if isinstance(value, torch.Tensor):
        data = bytes(value.detach().contiguous().flatten().view(torch.uint8).tolist())
        out[".".join(path)] = [str(value.dtype), list(value.shape), hashlib.sha256(data).hexdigest()]
    elif isinstance(value, dict):
        for key, inner in value.items():
            walk(inner, [*path, str(key)], out)
out = {}
walk(torch.load(sys.argv[1], map_location="cpu", weights_only=True), [], out)
print(json.dumps(out))
"""

_WRITER = """
import sys, torch
base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
torch.save({
    "f32": base, "view": base[1:3], "bf16": base.to(torch.bfloat16), "f16": base.half(),
    "i64": torch.arange(5), "u8": torch.arange(7, dtype=torch.uint8), "bool": torch.tensor([True, False]),
    "fp8": base.to(torch.float8_e4m3fn), "u16": torch.arange(3).to(torch.uint16),
    "param": torch.nn.Parameter(base[:1].clone()), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3),
    "nested": {"inner": base.double(), "dtype": torch.float16, "size": base.shape, "n": 3},
}, sys.argv[1])
"""


def _torch(script: str, path: Path) -> str:
    result = subprocess.run(
        [TORCH_PYTHON, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    if "No module named 'torch'" in result.stderr:
        pytest.skip("no interpreter with torch (QUANTSCOPE_TORCH_PYTHON)")
    assert result.returncode == 0, result.stderr
    return result.stdout


WORDS = {
    "torch.float32": "F32", "torch.float64": "F64", "torch.float16": "F16", "torch.bfloat16": "BF16",
    "torch.int64": "I64", "torch.uint8": "U8", "torch.bool": "BOOL", "torch.int32": "I32",
    "torch.float8_e4m3fn": "F8_E4M3", "torch.uint16": "U16",
}  # fmt: skip


def _same_as_torch(path: Path) -> ParsedFile:
    expected = json.loads(_torch(_ORACLE, path))
    parsed = _read(path)
    assert not parsed.issues
    assert {tensor.name for tensor in parsed.tensors} == set(expected)
    for tensor in parsed.tensors:
        dtype, shape, digest = expected[tensor.name]
        assert (tensor.dtype, list(tensor.shape)) == (WORDS[dtype], shape)
        assert tensor.strides is None
        assert hashlib.sha256(_bytes(path, parsed, tensor.name)).hexdigest() == digest, tensor.name
    return parsed


@pytest.mark.torch
def test_tensors_are_those_that_torch_saved(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    _torch(_WRITER, path)
    parsed = _same_as_torch(path)
    assert parsed.file.metadata["nested"] == {"dtype": "torch.float16", "size": [4, 6], "n": 3}


@pytest.mark.torch
@pytest.mark.real
def test_the_real_hqq_file_holds_the_tensors_that_torch_loads(real_set: Path) -> None:
    _same_as_torch(real_set / "hqq-native-w4g64-axis1" / "qmodel.pt")


@pytest.mark.real
def test_the_real_hqq_file_lists_tensors_and_settings_of_each_module(real_set: Path) -> None:
    opened, sources = open_path(str(real_set / "hqq-native-w4g64-axis1"))
    sources.close()
    assert not opened.issues
    by_name = {tensor.name: tensor for tensor in opened.tensors}
    quantized = [name for name in by_name if name.endswith(".W_q")]
    assert len(quantized) == 14
    settings_of = opened.files[0].metadata
    for name in quantized:
        module = name.removesuffix(".W_q")
        meta = settings_of[module]
        assert (meta["nbits"], meta["group_size"], meta["axis"]) == (4, 64, 1)
        rows, columns = meta["shape"]
        assert by_name[name].nbytes == rows * columns // 2
        assert by_name[f"{module}.scale"].dtype == "F16"
        assert by_name[f"{module}.zero"].nbytes == rows * columns // 64 * 2


def test_a_torch_folder_opens_by_its_index(fake_torch: types.ModuleType, tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for name, key in zip(names, ("a", "b"), strict=True):
        storage = FakeStorage(fake_torch.ByteStorage, "0", b"abcd", 1)
        _zip(tmp_path / name, _dump({key: FakeTensor(storage, 0, (4,), (1,))}), storage)
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        json.dumps({"weight_map": {"a": names[0], "b": names[1]}})
    )
    opened, sources = open_path(str(tmp_path))
    sources.close()
    assert [file.name for file in opened.files] == names
    assert [tensor.name for tensor in opened.tensors] == ["a", "b"]
    assert not [issue for issue in opened.issues if severity_of(issue) != "note"]
