"""Bounded positioned reads of one file, and a pool that keeps few files open.

Nothing is mapped into memory: a file that shrinks under a map kills the process, a short read is an error
that can be shown.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

import msgspec

from quantscope.errors import FileChangedError, UnreadableError

MAX_OPEN_FILES = 64
"""File descriptors that one `SourceSet` holds at most, far below the usual limit of 256 or 1024."""

_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_BINARY", 0)
)

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)

_REASONS = {
    errno.ELOOP: ("is a loop of symbolic links", "remove the link and fetch the file again"),
    errno.ENOENT: ("does not exist", "check the spelling, or fetch the file again"),
    errno.EACCES: ("may not be read by this user", "change its permissions"),
    errno.EPERM: ("may not be read by this user", "change its permissions"),
    errno.ENAMETOOLONG: ("has a name longer than the system allows", ""),
    errno.ENOTDIR: ("lies below something that is no folder", ""),
}


def fingerprint_of(status: os.stat_result) -> str:
    """`size-mtime_ns-inode` in hex."""
    return f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}"


def unreadable(path: str, error: OSError | ValueError) -> UnreadableError:
    """The error that a person sees where the operating system refused `path`."""
    code = error.errno if isinstance(error, OSError) else None
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    reason, hint = _REASONS.get(code or 0, (f"cannot be read: {text}", ""))
    return UnreadableError(f"{path} {reason}", hint=hint, source=path)


def resolve_regular(path: str) -> tuple[str, os.stat_result]:
    """The real path of a regular file and its status.

    The type is looked at before anything is opened, because opening a pipe waits and opening a device acts.

    Raises:
        UnreadableError: no such file, no permission, a loop of links, or no regular file.
    """
    try:
        real = os.path.realpath(path, strict=True)
        status = os.stat(real)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    for test, words in _KINDS:
        if test(status.st_mode):
            raise UnreadableError(
                f"{path} is {words}, not a regular file",
                hint="give a file or a checkpoint folder",
                source=path,
            )
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableError(f"{path} is not a regular file", source=path)
    return real, status


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to open a file again and to know that it is still the same one."""

    file_id: int
    name: str
    path: str
    size: int
    fingerprint: str


class ByteSource:
    """Positioned reads of one regular file; safe to use from several threads.

    The file is opened at the first read and stays open until `close` or until a pool takes the descriptor
    back. `bytes_read` counts what was delivered.
    """

    def __init__(
        self, path: str, *, name: str | None = None, spec: SourceSpec | None = None
    ) -> None:
        if spec is None:
            real, status = resolve_regular(path)
            self.path = real
            self.size = status.st_size
            self.fingerprint = fingerprint_of(status)
        else:
            self.path, self.size, self.fingerprint = spec.path, spec.size, spec.fingerprint
        self.name = name if name is not None else (spec.name if spec else os.path.basename(path))
        self.bytes_read = 0
        self._fd: int | None = None
        self._pool: SourceSet | None = None
        self._users = 0
        self._closed = False
        self._lock = threading.Lock()
        self._seek_lock = threading.Lock()

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def spec(self, file_id: int) -> SourceSpec:
        """The facts that a pool needs to open this file again."""
        return SourceSpec(
            file_id=file_id,
            name=self.name,
            path=self.path,
            size=self.size,
            fingerprint=self.fingerprint,
        )

    def read_at(self, byte_offset: int, nbytes: int) -> bytes:
        """Bytes `[byte_offset, byte_offset + nbytes)` of the file, all of them.

        Raises:
            UnreadableError: the range lies outside the file as it was when opened, or the system refused.
            FileChangedError: the file is shorter than it was, or was replaced.
        """
        self._check_range(byte_offset, nbytes)
        if nbytes == 0:
            return b""
        with self._borrow() as fd:
            data = self._pread(fd, nbytes, byte_offset)
            if len(data) == nbytes:
                self._count(nbytes)
                return data
            parts = [data]
            done = len(data)
            while done < nbytes:
                part = self._pread(fd, nbytes - done, byte_offset + done)
                if not part:
                    raise self._shrunk(byte_offset, nbytes, done)
                parts.append(part)
                done += len(part)
        self._count(nbytes)
        return b"".join(parts)

    def read_into(self, byte_offset: int, buffer: bytearray | memoryview) -> None:
        """Fills a writable, contiguous buffer with the bytes that start at `byte_offset`.

        Raises:
            UnreadableError: the range lies outside the file as it was when opened, or the system refused.
            FileChangedError: the file is shorter than it was, or was replaced.
        """
        view = memoryview(buffer).cast("B")
        self._check_range(byte_offset, len(view))
        step = 1 << 24
        with self._borrow() as fd:
            done = 0
            while done < len(view):
                got = self._pread_into(fd, view[done : done + step], byte_offset + done)
                if not got:
                    raise self._shrunk(byte_offset, len(view), done)
                done += got
        self._count(len(view))

    def read_runs(
        self, byte_offset: int, nbytes: int, stride_bytes: int, buffer: bytearray | memoryview
    ) -> None:
        """Fills a writable, contiguous buffer with runs of `nbytes` bytes whose starts lie `stride_bytes` apart.

        Raises:
            UnreadableError: the runs lie outside the file as it was when opened, or the system refused.
            FileChangedError: the file is shorter than it was, or was replaced.
        """
        view = memoryview(buffer).cast("B")
        count = len(view) // nbytes if nbytes > 0 else 0
        if not count:
            return
        self._check_range(byte_offset, (count - 1) * stride_bytes + nbytes)
        with self._borrow() as fd:
            for number in range(count):
                start, place = byte_offset + number * stride_bytes, number * nbytes
                done = 0
                while done < nbytes:
                    got = self._pread_into(fd, view[place + done : place + nbytes], start + done)
                    if not got:
                        raise self._shrunk(start, nbytes, done)
                    done += got
        self._count(count * nbytes)

    def check_unchanged(self) -> None:
        """Compares the file on disk with what it was when it was opened.

        Raises:
            FileChangedError: size, time of last change or inode differ.
        """
        try:
            status = os.stat(self.path)
        except (OSError, ValueError) as error:
            raise FileChangedError(
                f"{self.name} is gone: {unreadable(self.path, error).message}",
                hint="open the checkpoint again",
                source=self.path,
            ) from error
        self._compare(status)

    def close(self) -> None:
        """Gives the descriptor back; a read that is under way finishes first."""
        with self._lock:
            self._closed = True
            self._drop()

    def release(self) -> bool:
        """Closes the descriptor if no read is using it; the next read opens the file again."""
        with self._lock:
            if self._users:
                return False
            self._drop()
            return True

    def join(self, pool: SourceSet) -> None:
        """Makes `pool` decide how long the descriptor is held."""
        self._pool = pool

    @property
    def is_open(self) -> bool:
        """True while a descriptor is held."""
        return self._fd is not None

    def _drop(self) -> None:
        if self._fd is not None and self._users == 0:
            os.close(self._fd)
            self._fd = None

    @contextmanager
    def _borrow(self) -> Iterator[int]:
        if self._pool is not None:
            self._pool.touch(self)
        with self._lock:
            if self._closed:
                raise UnreadableError(f"{self.name} was closed", source=self.path)
            if self._fd is None:
                self._fd = self._open()
            fd = self._fd
            self._users += 1
        try:
            yield fd
        finally:
            self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._closed:
                self._drop()

    def _open(self) -> int:
        try:
            fd = os.open(self.path, _OPEN_FLAGS)
        except (OSError, ValueError) as error:
            raise unreadable(self.path, error) from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableError(f"{self.path} is not a regular file", source=self.path)
            self._compare(status)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _compare(self, status: os.stat_result) -> None:
        now = fingerprint_of(status)
        if now != self.fingerprint:
            raise FileChangedError(
                f"{self.name} changed while it was open: {self.size} bytes then, "
                f"{status.st_size} bytes now (fingerprint {self.fingerprint} then, {now} now)",
                hint="open the checkpoint again",
                source=self.path,
            )

    def _check_range(self, byte_offset: int, nbytes: int) -> None:
        if byte_offset < 0 or nbytes < 0 or byte_offset + nbytes > self.size:
            raise UnreadableError(
                f"bytes {byte_offset} to {byte_offset + nbytes} lie outside {self.name}, "
                f"which has {self.size} bytes",
                source=self.path,
            )

    def _shrunk(self, byte_offset: int, nbytes: int, got: int) -> FileChangedError:
        return FileChangedError(
            f"{self.name} shrank while it was open: {got} of {nbytes} bytes were left at "
            f"offset {byte_offset}",
            hint="open the checkpoint again",
            source=self.path,
        )

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.bytes_read += nbytes

    def _pread(self, fd: int, nbytes: int, byte_offset: int) -> bytes:
        try:
            if hasattr(os, "pread"):
                return os.pread(fd, nbytes, byte_offset)
            with self._seek_lock:
                os.lseek(fd, byte_offset, os.SEEK_SET)
                return os.read(fd, nbytes)
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _pread_into(self, fd: int, view: memoryview, byte_offset: int) -> int:
        if not hasattr(os, "preadv"):
            data = self._pread(fd, len(view), byte_offset)
            view[: len(data)] = data
            return len(data)
        try:
            return os.preadv(fd, [view], byte_offset)
        except OSError as error:
            raise unreadable(self.path, error) from error


class SourceSet:
    """The files of a checkpoint by `file_id`, opened lazily, few at a time.

    Closing it closes every file; it can be used as a context manager.
    """

    def __init__(self, specs: Iterable[SourceSpec], *, max_open: int = MAX_OPEN_FILES) -> None:
        self._sources = {spec.file_id: ByteSource(spec.path, spec=spec) for spec in specs}
        self._max_open = max(1, max_open)
        self._recent: OrderedDict[int, ByteSource] = OrderedDict()
        self._lock = threading.Lock()
        for source in self._sources.values():
            source.join(self)

    def __enter__(self) -> SourceSet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[int]:
        return iter(self._sources)

    def __contains__(self, file_id: object) -> bool:
        return file_id in self._sources

    def __getitem__(self, file_id: int) -> ByteSource:
        """The source of a file.

        Raises:
            UnreadableError: the checkpoint has no file with this id.
        """
        source = self._sources.get(file_id)
        if source is None:
            raise UnreadableError(f"the checkpoint has no file with id {file_id}")
        return source

    def read_at(self, file_id: int, byte_offset: int, nbytes: int) -> bytes:
        """As `ByteSource.read_at`, of the file with this id."""
        return self[file_id].read_at(byte_offset, nbytes)

    def read_into(self, file_id: int, byte_offset: int, buffer: bytearray | memoryview) -> None:
        """As `ByteSource.read_into`, of the file with this id."""
        self[file_id].read_into(byte_offset, buffer)

    def check_unchanged(self) -> None:
        """Checks every file.

        Raises:
            FileChangedError: the first file that differs from what it was.
        """
        for source in self._sources.values():
            source.check_unchanged()

    def close(self) -> None:
        """Closes every file."""
        for source in self._sources.values():
            source.close()

    @property
    def bytes_read(self) -> int:
        """Bytes delivered by all files so far."""
        return sum(source.bytes_read for source in self._sources.values())

    @property
    def open_files(self) -> int:
        """Descriptors held now."""
        return sum(source.is_open for source in self._sources.values())

    def touch(self, source: ByteSource) -> None:
        """Called by a source before it reads: the longest unused files make room for it.

        A file that is being read is passed over.
        """
        with self._lock:
            self._recent[id(source)] = source
            self._recent.move_to_end(id(source))
            if len(self._recent) <= self._max_open:
                return
            for key, other in list(self._recent.items())[:-1]:
                if other.release():
                    del self._recent[key]
                if len(self._recent) <= self._max_open:
                    return
