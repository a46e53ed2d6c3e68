"""The only module that writes stdout: data, never messages.

A reader that closes the pipe early ends the output, not the command: its exit code stays the result's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from typing import IO

from quantscope.report.canonical import canonical_bytes


def write_text(text: str) -> None:
    """Write text and a final newline to stdout."""
    data = text if text.endswith("\n") else text + "\n"
    write_bytes(data.encode("utf-8", errors="backslashreplace"))


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout as they are."""
    write_chunks((data,))


def write_chunks(chunks: Iterable[bytes]) -> None:
    """Write a stream of bytes to stdout."""
    try:
        sys.stdout.flush()
        buffer: IO[bytes] = sys.stdout.buffer
        for chunk in chunks:
            buffer.write(chunk)
        buffer.flush()
    except BrokenPipeError:
        _close_quietly()


def write_file(path: str, chunks: Iterable[bytes]) -> None:
    """Write a stream of bytes to a file, whole or not at all: a new file takes the old one's place.

    Raises:
        OSError: the folder cannot be written; it names the path given.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as stream:
            stream.writelines(chunks)
        return
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, path) from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(chunks)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(document: object) -> None:
    """Write one canonical JSON document: UTF-8, sorted keys, no NaN or Infinity, inert on a terminal."""
    write_bytes(canonical_bytes(document))


def _close_quietly() -> None:
    """Point stdout at nothing, so that later writes and the flush at exit stay quiet."""
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(sink)
