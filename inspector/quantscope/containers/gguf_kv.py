"""Cursor over a GGUF header and the values of its key-value section.

Sources: ggml-org/llama.cpp ggml/src/gguf.cpp and ggml/include/gguf.h; ggml docs/gguf.md.
"""

from __future__ import annotations

import struct
from typing import Literal

import numpy as np
import numpy.typing as npt

from quantscope.containers.records import Json
from quantscope.containers.source import ByteSource

WINDOW_BYTES = 1 << 16
WALK_BYTES = 1 << 20
MAX_INLINE_ELEMENTS = 64
"""Longer arrays stay in the file and are described by where they lie."""

MAX_INLINE_STRING = 1 << 20
MAX_NAME_BYTES = 65_535
"""Longest key that docs/gguf.md allows."""

MAX_INLINE_ARRAY_BYTES = 1 << 20
MAX_WALK_BYTES = 1 << 26
"""Bytes of strings that one header may make the reader walk."""

MAX_ARRAY_ELEMENTS = 1 << 30
"""gguf.cpp GGUF_MAX_ARRAY_ELEMENTS and GGUF_MAX_STRING_LENGTH."""

VALUE_TYPES: tuple[str, ...] = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array",
    "uint64", "int64", "float64",
)  # fmt: skip
"""Names by value type id (gguf.h)."""

STRING, ARRAY, BOOL = 8, 9, 7
_CODES = ("B", "b", "H", "h", "I", "i", "f", "B", "", "", "Q", "q", "d")
_NUMPY = ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u1", "", "", "u8", "i8", "f8")
_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)

VOCAB_KEYS = frozenset(
    f"tokenizer.ggml.{name}"
    for name in ("tokens", "scores", "token_type", "merges", "added_tokens")
)
"""Arrays that stay in the file whatever their length."""

ByteOrder = Literal["little", "big"]


class HeaderEndError(Exception):
    """The header cannot be followed any further; `slug` and the message say why."""

    def __init__(self, slug: str, message: str, byte_range: tuple[int, int]) -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.byte_range = byte_range


class Cursor:
    """Reads numbers and strings one after the other, a window of the file at a time."""

    def __init__(self, source: ByteSource, order: ByteOrder, position: int = 0) -> None:
        self.source = source
        self.order: ByteOrder = order
        self.mark = "<" if order == "little" else ">"
        self.position = position
        self.walked = 0
        self.bad_text = 0
        self._window = b""
        self._start = 0
        self._u32 = struct.Struct(f"{self.mark}I")
        self._u64 = struct.Struct(f"{self.mark}Q")

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.source.size - self.position

    def need(self, nbytes: int, what: str) -> None:
        """Raises where fewer bytes than `nbytes` are left for `what`."""
        if nbytes > self.left:
            message = (
                f"the file ends at byte {self.source.size}, inside {what}, which needs {nbytes} "
                f"bytes from byte {self.position}"
            )
            raise HeaderEndError("gg-truncated-header", message, (self.position, self.source.size))

    def take(self, nbytes: int, what: str) -> bytes:
        """The next bytes."""
        self.need(nbytes, what)
        at = self.position - self._start
        if at < 0 or at + nbytes > len(self._window):
            self._fill(nbytes)
            at = 0
        self.position += nbytes
        return self._window[at : at + nbytes]

    def skip(self, nbytes: int, what: str) -> None:
        """Passes over bytes without reading them."""
        self.need(nbytes, what)
        self.position += nbytes

    def u32(self, what: str) -> int:
        """The next 32-bit unsigned integer."""
        return int(self._u32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        """The next 64-bit unsigned integer."""
        return int(self._u64.unpack(self.take(8, what))[0])

    def numbers(self, type_id: int, count: int, what: str) -> list[Json]:
        """The next `count` numbers of a value type."""
        data = self.take(count * _SIZES[type_id], what)
        return list(struct.unpack(f"{self.mark}{count}{_CODES[type_id]}", data))

    def text(self, what: str, *, limit: int = MAX_INLINE_STRING) -> str | dict[str, Json]:
        """The next string; above `limit`, where it lies: {"string": nbytes, "byte_offset": offset}.

        Bytes that are no UTF-8 become backslash escapes, and `bad_text` counts the string.
        """
        start = self.position
        length = self.u64(f"the length of {what}")
        if length > self.left or length > MAX_ARRAY_ELEMENTS:
            message = (
                f"{what} gives itself {length} bytes at byte {start}, where {self.left} are left "
                f"in the file"
            )
            raise HeaderEndError("gg-string-length", message, (start, start + 8))
        if length > limit:
            at = self.position
            self.skip(length, what)
            return {"string": length, "byte_offset": at}
        return self.decode(self.take(length, what))

    def decode(self, data: bytes) -> str:
        """Text of a string's bytes."""
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.bad_text += 1
            return data.decode("utf-8", errors="backslashreplace")

    def name(self, what: str) -> str:
        """A key or tensor name, always as text; above 64 KiB its beginning."""
        value = self.text(what, limit=MAX_NAME_BYTES)
        if isinstance(value, str):
            return value
        data = self.source.read_at(value["byte_offset"], 1024)
        return self.decode(data) + "…"

    def walk_strings(self, count: int, what: str) -> None:
        """Passes over `count` strings, whose lengths must be read one after the other."""
        start = self.position
        if count * 8 > self.left:
            message = f"{what} gives itself {count} strings at byte {start}, where {self.left} bytes are left"
            raise HeaderEndError("gg-array-length", message, (start - 8, start))
        while count > 0:
            if self.walked + self.position - start > MAX_WALK_BYTES:
                message = f"{what} holds more than {MAX_WALK_BYTES} bytes of strings to walk"
                raise HeaderEndError("gg-header-over-limit", message, (start, self.position))
            self.need(8, what)
            size = min(WALK_BYTES, self.left, max(WINDOW_BYTES, count * 16))
            chunk = self.source.read_at(self.position, size)
            done, passed = skip_strings(chunk, count, self.order)
            if done == 0:
                length = int.from_bytes(chunk[:8], self.order)
                at = self.position
                if length > self.left - 8 or length > MAX_ARRAY_ELEMENTS:
                    message = (
                        f"a string of {what} gives itself {length} bytes at byte {at}, where "
                        f"{self.left - 8} are left in the file"
                    )
                    raise HeaderEndError("gg-string-length", message, (at, at + 8))
                done, passed = 1, 8 + length
            count -= done
            self.position += passed
        self.walked += self.position - start

    def _fill(self, nbytes: int) -> None:
        size = min(max(nbytes, WINDOW_BYTES), self.left)
        self._window = self.source.read_at(self.position, size)
        self._start = self.position


def skip_strings(chunk: bytes, count: int, order: ByteOrder) -> tuple[int, int]:
    """Strings, of at most `count`, that end inside `chunk`, and the bytes that they take.

    A length field of a short string is one non-zero byte beside seven zero bytes, and text holds no zero
    bytes: all length fields are found at once, and accepted where each lies exactly behind the string before.
    Where that chain breaks, one string is walked and the chain taken up again.
    """
    if len(chunk) < 8:
        return 0, 0
    starts, nexts = _length_fields(chunk, order)
    breaks = np.flatnonzero(nexts[:-1] != starts[1:])
    if breaks.size > 64 and breaks.size * 8 > min(count, starts.size):
        return _walk(chunk, count, 0, order)
    done = position = 0
    limit = len(chunk)
    while done < count and position + 8 <= limit:
        index = int(np.searchsorted(starts, position))
        if index < starts.size and starts[index] == position:
            stop = int(np.searchsorted(breaks, index))
            last = int(breaks[stop]) if stop < breaks.size else starts.size - 1
            last = min(last, index + count - done - 1)
            if nexts[last] > limit:
                last -= 1
            if last >= index:
                done += last - index + 1
                position = int(nexts[last])
                continue
        more, passed = _walk(chunk, 1, position, order)
        if not more:
            break
        done += 1
        position += passed
    return done, position


def _length_fields(
    chunk: bytes, order: ByteOrder
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Positions of all 8-byte words below 256, and where the string of each would end."""
    mask = np.zeros(len(chunk), dtype=np.bool_)
    dtype = np.dtype("<u8" if order == "little" else ">u8")
    for shift in range(min(8, len(chunk) - 7)):
        words = np.frombuffer(chunk, dtype, count=(len(chunk) - shift) // 8, offset=shift)
        mask[shift : shift + 8 * words.size : 8] = words < 256
    starts = np.flatnonzero(mask)
    low = 0 if order == "little" else 7
    lengths = np.frombuffer(chunk, np.uint8)[starts + low]
    return starts, starts + 8 + lengths


def _walk(chunk: bytes, count: int, position: int, order: ByteOrder) -> tuple[int, int]:
    unpack = struct.Struct("<Q" if order == "little" else ">Q").unpack_from
    start, limit, done = position, len(chunk), 0
    while done < count and position + 8 <= limit:
        end = position + 8 + unpack(chunk, position)[0]
        if end > limit:
            break
        position = end
        done += 1
    return done, position - start


def read_value(cursor: Cursor, key: str, type_id: int, depth: int = 0) -> tuple[Json, list[str]]:
    """One value, and slugs of what is odd about it.

    Raises:
        HeaderEndError: the value cannot be passed.
    """
    what = f"the value of {key}"
    if type_id == STRING:
        return cursor.text(what), []
    if type_id == ARRAY:
        return _read_array(cursor, key, depth)
    if not 0 <= type_id < len(VALUE_TYPES):
        message = f"{what} has the value type {type_id}; the format has 0 to 12"
        at = cursor.position
        raise HeaderEndError("gg-value-type", message, (at - 4, at))
    value = cursor.numbers(type_id, 1, what)[0]
    if type_id == BOOL:
        return value != 0, [] if value in (0, 1) else ["gg-bool-value"]
    return value, []


def _read_array(cursor: Cursor, key: str, depth: int) -> tuple[Json, list[str]]:
    what = f"the array {key}"
    start = cursor.position
    element = cursor.u32(what)
    count = cursor.u64(what)
    at = cursor.position
    if element >= len(VALUE_TYPES):
        message = f"{what} has the element type {element}; the format has 0 to 12"
        raise HeaderEndError("gg-value-type", message, (start, start + 4))
    least = {STRING: 8, ARRAY: 12}.get(element, _SIZES[element])
    if count > MAX_ARRAY_ELEMENTS or count * least > cursor.left:
        message = (
            f"{what} gives itself {count} elements of {VALUE_TYPES[element]} at byte {start}, where "
            f"{cursor.left} bytes are left in the file"
        )
        raise HeaderEndError("gg-array-length", message, (start, at))
    described = {"array": VALUE_TYPES[element], "count": count, "byte_offset": at}
    if element == ARRAY:
        if depth >= 4:
            message = f"{what} nests arrays deeper than 4 levels"
            raise HeaderEndError("gg-array-nested", message, (start, at))
        for _ in range(count):
            if cursor.position - at > MAX_WALK_BYTES // 16:
                message = f"{what} holds more than {MAX_WALK_BYTES // 16} bytes of nested arrays"
                raise HeaderEndError("gg-header-over-limit", message, (start, cursor.position))
            _read_array(cursor, key, depth + 1)
        return described, ["gg-array-nested"]
    inline = count <= MAX_INLINE_ELEMENTS and key not in VOCAB_KEYS and depth == 0
    if element == STRING:
        if not inline:
            cursor.walk_strings(count, what)
            return described, []
        texts = [cursor.text(what) for _ in range(count)]
        if cursor.position - at > MAX_INLINE_ARRAY_BYTES:
            return described, []
        return texts, []
    if not inline:
        cursor.skip(count * _SIZES[element], what)
        return described, []
    values = cursor.numbers(element, count, what)
    if element == BOOL:
        odd = [] if all(value in (0, 1) for value in values) else ["gg-bool-value"]
        return [value != 0 for value in values], odd
    return values, []


def read_array(
    source: ByteSource,
    descriptor: dict[str, Json],
    *,
    byte_order: ByteOrder = "little",
    start: int = 0,
    stop: int | None = None,
) -> list[str] | npt.NDArray[np.generic]:
    """Elements `[start, stop)` of an array that was left in the file.

    Args:
        source: the GGUF file.
        descriptor: {"array", "count", "byte_offset"} as it stands in the metadata.
        byte_order: the file's byte order (`OpenedFile.byte_order`).
        start: first element.
        stop: one past the last element; all where None.

    Returns:
        Strings as a list (bytes that are no UTF-8 as backslash escapes); numbers and booleans as an array.
    """
    count = int(descriptor["count"])
    stop = count if stop is None else min(stop, count)
    start = min(start, stop)
    element = VALUE_TYPES.index(descriptor["array"])
    cursor = Cursor(source, byte_order, int(descriptor["byte_offset"]))
    what = "an array left in the file"
    if element == STRING:
        cursor.walk_strings(start, what)
        texts = (cursor.text(what) for _ in range(stop - start))
        return [text if isinstance(text, str) else "" for text in texts]
    if element == ARRAY:
        return []
    size = _SIZES[element]
    data = source.read_at(cursor.position + start * size, (stop - start) * size)
    values = np.frombuffer(data, np.dtype(f"{cursor.mark}{_NUMPY[element]}"))
    return values != 0 if element == BOOL else values
