"""Positioned reads: bounded, safe from threads, and plain about what is no file."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from quantscope.containers import source as source_module
from quantscope.containers.source import ByteSource, SourceSet
from quantscope.errors import FileChangedError, UnreadableError


def _file(folder: Path, data: bytes, name: str = "a.bin") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_reads_what_plain_file_io_reads(tmp_path: Path) -> None:
    data = os.urandom(10_000)
    path = _file(tmp_path, data)
    with ByteSource(str(path)) as source:
        buffer = bytearray(100)
        source.read_into(9_900, buffer)
        assert source.read_at(5, 0) == b""
        assert source.read_at(123, 4_567) == data[123 : 123 + 4_567]
        assert bytes(buffer) == data[9_900:]
        assert source.bytes_read == 4_567 + 100
        assert (source.name, source.size) == ("a.bin", 10_000)


def test_runs_at_a_stride_are_what_plain_file_io_reads(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    path = tmp_path / "f.bin"
    path.write_bytes(data)
    with ByteSource(str(path)) as source:
        buffer = bytearray(5 * 7)
        source.read_runs(11, 7, 1000, buffer)
        assert bytes(buffer) == b"".join(data[11 + i * 1000 : 18 + i * 1000] for i in range(5))
        assert source.bytes_read == 35
        with pytest.raises(UnreadableError):
            source.read_runs(11, 7, 2600, bytearray(5 * 7))
        os.truncate(path, 3000)
        with pytest.raises(FileChangedError):
            source.read_runs(11, 7, 1000, buffer)


def test_many_threads_read_their_own_ranges(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    path = _file(tmp_path, data)
    with ByteSource(str(path)) as source, ThreadPoolExecutor(8) as pool:
        offsets = [(i * 7919) % (len(data) - 512) for i in range(2_000)]
        parts = list(pool.map(lambda at: source.read_at(at, 512), offsets))
        assert all(part == data[at : at + 512] for part, at in zip(parts, offsets, strict=True))
        assert source.bytes_read == 512 * 2_000


def test_reads_are_right_where_pread_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(source_module.os, "pread")
    monkeypatch.delattr(source_module.os, "preadv", raising=False)
    data = os.urandom(1 << 16)
    path = _file(tmp_path, data)
    with ByteSource(str(path)) as source, ThreadPoolExecutor(8) as pool:
        offsets = [(i * 331) % (len(data) - 64) for i in range(500)]
        parts = list(pool.map(lambda at: source.read_at(at, 64), offsets))
        buffer = bytearray(1_000)
        source.read_into(77, buffer)
    assert all(part == data[at : at + 64] for part, at in zip(parts, offsets, strict=True))
    assert bytes(buffer) == data[77:1_077]


@pytest.mark.parametrize(("offset", "count"), [(-1, 4), (0, 11), (11, 0), (0, 1 << 60)])
def test_a_range_outside_of_the_file_is_refused(tmp_path: Path, offset: int, count: int) -> None:
    with (
        ByteSource(str(_file(tmp_path, b"0123456789"))) as source,
        pytest.raises(UnreadableError, match="outside"),
    ):
        source.read_at(offset, count)


def test_a_file_that_shrinks_gives_an_error_not_a_crash(tmp_path: Path) -> None:
    path = _file(tmp_path, bytes(10_000))
    with ByteSource(str(path)) as source:
        source.read_at(0, 10)
        os.truncate(path, 5_000)
        with pytest.raises(FileChangedError, match="shrank"):
            source.read_at(4_000, 2_000)
        with pytest.raises(FileChangedError, match="shrank"):
            source.read_into(6_000, bytearray(10))
        with pytest.raises(FileChangedError, match="10000 bytes then, 5000 bytes now"):
            source.check_unchanged()


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    path = _file(tmp_path, b"one")
    other = _file(tmp_path, b"two", "b.bin")
    with ByteSource(str(path)) as source:
        source.check_unchanged()
        os.replace(other, path)
        with pytest.raises(FileChangedError):
            source.check_unchanged()
        with pytest.raises(FileChangedError):
            source.read_at(0, 3)


def test_a_removed_file_is_noticed(tmp_path: Path) -> None:
    path = _file(tmp_path, b"one")
    with ByteSource(str(path)) as source:
        path.unlink()
        with pytest.raises(FileChangedError, match="gone"):
            source.check_unchanged()


def test_pipes_sockets_devices_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "sock"))
    done = threading.Event()
    errors: list[str] = []

    def attempt() -> None:
        for path in (pipe, tmp_path / "sock", Path("/dev/zero"), tmp_path):
            with pytest.raises(UnreadableError) as caught:
                ByteSource(str(path))
            errors.append(caught.value.message)
        done.set()

    threading.Thread(target=attempt, daemon=True).start()
    assert done.wait(10), "opening something that is no regular file waited"
    server.close()
    assert "named pipe" in errors[0]
    assert "socket" in errors[1]
    assert "device" in errors[2]
    assert "folder" in errors[3]


def test_a_loop_of_links_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UnreadableError, match="loop of symbolic links"):
        ByteSource(str(tmp_path / "a"))
    with pytest.raises(UnreadableError, match="does not exist"):
        ByteSource(str(tmp_path / "c"))
    with pytest.raises(UnreadableError):
        ByteSource("a\0b")


def test_a_link_is_followed_to_its_real_path(tmp_path: Path) -> None:
    path = _file(tmp_path, b"abc", "blob")
    (tmp_path / "link").symlink_to(path)
    with ByteSource(str(tmp_path / "link")) as source:
        assert source.path == str(path)
        assert source.name == "link"
        assert source.read_at(0, 3) == b"abc"


def test_a_pool_keeps_few_files_open_and_still_reads_all(tmp_path: Path) -> None:
    specs = []
    for number in range(20):
        path = _file(tmp_path, f"file {number:03d}".encode(), f"{number}.bin")
        with ByteSource(str(path)) as source:
            specs.append(source.spec(number))
    with SourceSet(specs, max_open=4) as pool:
        assert pool.open_files == 0
        held = [pool[number] for number in range(20)]
        for _ in range(3):
            for number in range(20):
                assert held[number].read_at(0, 8) == f"file {number:03d}".encode()
                assert pool.open_files <= 4
        with ThreadPoolExecutor(8) as threads:
            texts = list(
                threads.map(lambda i: pool.read_at(i % 20, 0, 8), [i * 7 for i in range(2_000)])
            )
        assert texts == [f"file {(i * 7) % 20:03d}".encode() for i in range(2_000)]
        assert pool.bytes_read == 8 * (60 + 2_000)
        assert len(pool) == 20
        assert 19 in pool
        with pytest.raises(UnreadableError, match="id 99"):
            pool[99]
    assert pool.open_files == 0
    with pytest.raises(UnreadableError, match="closed"):
        held[0].read_at(0, 1)


def test_a_pool_notices_a_file_that_changed_while_it_was_closed(tmp_path: Path) -> None:
    path = _file(tmp_path, b"first text")
    with ByteSource(str(path)) as source:
        spec = source.spec(0)
    path.write_bytes(b"other")
    with SourceSet([spec]) as pool:
        with pytest.raises(FileChangedError):
            pool.read_at(0, 0, 3)
        with pytest.raises(FileChangedError):
            pool.check_unchanged()
