"""The JSON header of a safetensors file, decoded and checked entry by entry.

Rules: huggingface/safetensors, safetensors/src/tensor.rs (HashMetadata, TensorInfo) as serde_json reads them;
what it does with odd texts was taken from safetensors 0.8.0 (tests/test_containers_safetensors.py).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from quantscope.containers.dtypes import DTYPE_BITS
from quantscope.containers.issues import IssueLog
from quantscope.containers.records import Json
from quantscope.containers.strictjson import MAX_DEPTH, JsonText, depth_of, parse_json

MAX_ENTRIES = 500_000
MAX_STRAY_COLONS = 1_000_000
MAX_ENTRY_BYTES = 1 << 20
MAX_ODD_ENTRIES = 100_000
MAX_SALVAGE_BYTES = 1 << 25
"""Limits of what is listed; a lawful header beyond them is told as such, not as broken."""

MAX_NAMES_IN_DATA = 1000
U64 = 1 << 64

_METADATA = "__metadata__"
_FIELDS = frozenset(("dtype", "shape", "data_offsets"))


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One tensor entry as it stands in the header, offsets relative to the data section."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Header(msgspec.Struct):
    """The parts of a header, before they are judged against the file."""

    entries: dict[str, Entry]
    metadata: dict[str, Json]
    sound: bool
    """False where an entry was dropped or guessed, so that gaps say nothing."""


_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY = msgspec.json.Decoder(Entry)
_STRINGS = msgspec.json.Decoder(dict[str, str])

_SALVAGE = re.compile(
    rb'"((?:[^"\\\x00-\x1f]|\\[^\x00-\x1f]){0,4096}+)"[ \t\r\n]{0,64}+:[ \t\r\n]{0,64}+'
    rb'(\{[ \t\r\n]{0,64}+"(?:dtype|shape|data_offsets)"[^{}]{1,4096}+\})'
)
"""One well-formed entry inside a text that is no JSON as a whole; possessive, so linear in the text."""


def parse_header(text: bytes, log: IssueLog) -> tuple[Header | None, str | None]:
    """Decodes the header text; the second value says why the text as a whole is no header."""
    end = 8 + len(text)
    broken: str | None = None
    bad_byte = _first_bad_byte(text)
    if bad_byte is not None:
        broken = f"the header is no UTF-8: byte {8 + bad_byte} cannot be decoded"
        log.add("st-header-utf8", broken, byte_range=(8 + bad_byte, 9 + bad_byte))
    elif text[:1] != b"{":
        start = text.lstrip(b" \t\r\n")
        if start[:1] == b"{":
            gap = len(text) - len(start)
            message = f"{gap} bytes of white space stand before the {{ of the header"
            log.add("st-header-space", message, byte_range=(8, 8 + gap))
        else:
            broken = f"the header begins with {text[:1]!r} where {{ must stand"
            log.add("st-header-start", broken, byte_range=(8, min(9, end)))
    if broken:
        return salvage(text)[0], broken
    entries = text.count(b'"data_offsets"')
    colons = text.count(b":")
    if entries > MAX_ENTRIES or colons > 4 * entries + MAX_STRAY_COLONS:
        broken = (
            f"the header of {len(text)} bytes holds {colons} colons and {entries} entries, more than "
            f"the {MAX_ENTRIES} entries and {MAX_STRAY_COLONS} other keys that are listed"
        )
        log.add("st-header-over-limit", broken, byte_range=(8, end), colons=colons, entries=entries)
        return None, broken
    try:
        top = _TOP.decode(text)
    except RecursionError:
        broken = f"the header is JSON nested deeper than {MAX_DEPTH} levels"
        log.add("st-header-depth", broken, byte_range=(8, end))
    except msgspec.ValidationError:
        broken = "the header is JSON, but no object"
        log.add("st-header-not-object", broken, byte_range=(8, end))
    except msgspec.DecodeError as error:
        broken, where = _json_fault(str(error), end)
        log.add("st-header-json", broken, byte_range=where)
    else:
        return _Fields(text, log).collect(top, colons), None
    return salvage(text)[0], broken


def _json_fault(words: str, end: int) -> tuple[str, tuple[int, int]]:
    """A sentence and a byte range from msgspec's message, whose offsets count from the header's start."""
    found = re.search(r"\(byte (\d+)\)", words)
    reason = re.sub(r"^JSON is malformed: |\s*\(byte \d+\)", "", words)
    if found is None:
        return f"the header is no JSON: {reason}", (8, end)
    at = min(8 + int(found[1]), end)
    return f"the header is no JSON: {reason} at byte {at}", (at, min(at + 1, end))


def _first_bad_byte(text: bytes) -> int | None:
    if text.isascii():
        return None
    decoder = codecs.getincrementaldecoder("utf-8")()
    step = 1 << 20
    for start in range(0, len(text), step):
        try:
            decoder.decode(text[start : start + step], final=start + step >= len(text))
        except UnicodeDecodeError as error:
            # The decoder's own buffer may hold up to 3 bytes of the chunk before.
            return max(
                0, start + error.start - (len(error.object) - len(text[start : start + step]))
            )
    return None


class _Fields:
    """Turns raw values into entries, naming each one that the Rust reader would refuse."""

    def __init__(self, text: bytes, log: IssueLog) -> None:
        self.text = text
        self.log = log
        self.entries: dict[str, Entry] = {}
        self.metadata: dict[str, Json] = {}
        self.sound = True
        self.minus_zero = b"-0" in text

    def collect(self, top: dict[str, msgspec.Raw], colons: int) -> Header:
        """All entries of a decoded header, with the duplicates that decoding dropped."""
        expected = len(top) + "".join(top).count(":")
        large = len(self.text) > MAX_ENTRY_BYTES
        odd = 0
        decode = _ENTRY.decode
        for name, raw in top.items():
            if name == _METADATA:
                expected += self._metadata(raw)
                continue
            entry = None
            if not large or memoryview(raw).nbytes <= MAX_ENTRY_BYTES:
                with suppress(msgspec.DecodeError, RecursionError):
                    entry = decode(raw)
            if entry is None or (self.minus_zero and b"-0" in bytes(raw)):
                odd += 1
                if odd > MAX_ODD_ENTRIES:
                    self._too_odd(len(top))
                    break
                data = bytes(raw)
                expected += data.count(b":")
                entry = self._odd_entry(name, data)
                if entry is None:
                    continue
            else:
                expected += 3 + entry.dtype.count(":")
            self.entries[name] = entry
        if expected != colons or rb"\u003" in self.text:
            self._duplicates(top)
        return Header(entries=self.entries, metadata=self.metadata, sound=self.sound)

    def _too_odd(self, count: int) -> None:
        message = f"more than {MAX_ODD_ENTRIES} of {count} entries are not of the plain form; the rest is not read"
        self.log.add("st-header-over-limit", message, entries=count)
        self.sound = False

    def _metadata(self, raw: msgspec.Raw) -> int:
        """Takes the strings of __metadata__ and returns the colons that they account for."""
        try:
            strings = _STRINGS.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            data = bytes(raw)
            if data == b"null":
                return 0
            self._metadata_fault(parse_json(data) if len(data) <= MAX_ENTRY_BYTES else JsonText())
            return data.count(b":")
        self.metadata = dict(strings)
        return len(strings) + sum(text.count(":") for pair in strings.items() for text in pair)

    def _metadata_fault(self, result: JsonText) -> None:
        message = f"{_METADATA} is no object whose values are all strings"
        odd: list[str] = []
        if isinstance(result.value, dict):
            odd = [key for key, value in result.value.items() if not isinstance(value, str)]
            self.metadata = result.value
            if odd:
                message += f": {len(odd)} values are not, first {odd[0]}"
        elif result.error:
            message += f": it {result.error}"
        self.log.add("st-metadata", message, keys=odd[:MAX_NAMES_IN_DATA])

    def _odd_entry(self, name: str, data: bytes) -> Entry | None:
        """An entry that is not of the plain form: extra keys, a list, or faulty."""
        if len(data) > MAX_ENTRY_BYTES:
            message = f"the entry of {name} takes {len(data)} bytes and is not read"
            self.log.add("st-header-over-limit", message, tensor=name, nbytes=len(data))
            self.sound = False
            return None
        result = parse_json(data)
        value = result.value
        reason = f"it {result.error}" if result.error else _entry_fault(value, result.duplicates)
        if not reason and depth_of(value) + 1 > MAX_DEPTH:
            message = f"the entry of {name} is nested {depth_of(value)} levels deep"
            self.log.add("st-header-depth", message, tensor=name)
        elif reason:
            self._bad_entry(name, reason, result)
            return None
        if isinstance(value, list):
            message = f"the entry of {name} is a list, not an object"
            self.log.add("st-entry-list", message, tensor=name)
            return Entry(value[0], value[1], tuple(value[2]))
        extra = sorted(set(value) - _FIELDS)
        if extra:
            message = f"the entry of {name} has {len(extra)} more keys, which readers ignore"
            self.log.add("st-entry-extra", message, tensor=name, keys=extra[:MAX_NAMES_IN_DATA])
        return Entry(_dtype_word(value["dtype"]), value["shape"], tuple(value["data_offsets"]))

    def _bad_entry(self, name: str, reason: str, result: JsonText) -> None:
        self.sound = False
        negative = isinstance(result.value, dict) and _has_negative(result.value)
        twice = not result.error and bool(_FIELDS & set(result.duplicates))
        slug = "st-duplicate-field" if twice else "st-entry-malformed"
        if negative:
            slug = "st-negative"
        message = f"the entry of {name} is malformed: {reason}"
        self.log.add(slug, message, tensor=name)

    def _duplicates(self, top: dict[str, msgspec.Raw]) -> None:
        """Finds keys that stand twice; decoding kept the last of each."""
        for name, raw in top.items():
            data = bytes(raw)
            if name == _METADATA:
                for key in parse_json(data).duplicates:
                    message = f"{_METADATA} holds the key {key} twice; readers take the last"
                    self.log.add("st-duplicate-key", message, key=key)
            if name in self.entries and len(data) <= MAX_ENTRY_BYTES and data.count(b":") != 3:
                twice = set(parse_json(data).duplicates)
                if twice & _FIELDS:
                    words = ", ".join(sorted(twice & _FIELDS))
                    message = f"the entry of {name} gives {words} twice"
                    self.log.add("st-duplicate-field", message, tensor=name)
                    self.sound = False
        for name, earlier in _repeated(self.text):
            if name == _METADATA:
                message = f"{_METADATA} stands twice in the header"
                self.log.add("st-duplicate-field", message)
                continue
            message = f"{name} stands twice in the header; the official reader takes the last"
            offsets = earlier.get("data_offsets") if isinstance(earlier, dict) else None
            self.log.add(
                "st-duplicate-key", message, tensor=name, key=name, earlier_offsets=offsets
            )
            reason = None if earlier is _UNKNOWN else _earlier_fault(earlier)
            if reason:
                words = f"an earlier entry of {name} is malformed: {reason}"
                self.log.add("st-entry-malformed", words, tensor=name)


_UNKNOWN: dict[str, Json] = {}
"""Stands for an earlier value that was not kept, because the header is too large to decode twice."""


def _repeated(text: bytes) -> Iterator[tuple[str, Json]]:
    """Names that stand more than once at the top of the header, with each value but the last."""
    keep = len(text) <= 1 << 25
    last: list[list[tuple[str, Any]]] = [[]]

    def pairs(items: list[tuple[str, Any]]) -> Json:
        last[0] = items
        return dict(items) if keep else _UNKNOWN

    try:
        json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return
    final = {name: place for place, (name, _) in enumerate(last[0])}
    for place, (name, value) in enumerate(last[0]):
        if final[name] != place:
            yield name, value


def _dtype_word(value: Json) -> str:
    # serde reads a unit variant also from {"F32": null}.
    return value if isinstance(value, str) else str(next(iter(value)))


def _whole(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < U64


def _has_negative(value: dict[str, Json]) -> bool:
    numbers: list[Json] = []
    for key in ("shape", "data_offsets"):
        part = value.get(key)
        if isinstance(part, list):
            numbers.extend(part)
    return any(isinstance(number, int) and number < 0 for number in numbers)


def _entry_fault(value: Json, duplicates: tuple[str, ...]) -> str | None:
    """Why serde would not read `value` as a tensor entry, or None."""
    if isinstance(value, list):
        if len(value) != 3:
            return f"it is a list of {len(value)} values, not an object"
        value = dict(zip(("dtype", "shape", "data_offsets"), value, strict=True))
    if not isinstance(value, dict):
        return f"it is {_json_word(value)}, not an object"
    twice = sorted(_FIELDS & set(duplicates))
    if twice:
        return f"{', '.join(twice)} stands twice"
    missing = [key for key in ("dtype", "shape", "data_offsets") if key not in value]
    if missing:
        return f"{', '.join(missing)} is missing"
    dtype = value["dtype"]
    unit = isinstance(dtype, dict) and len(dtype) == 1 and None in dtype.values()
    if not isinstance(dtype, str) and not unit:
        return f"dtype is {_json_word(dtype)}, not a string"
    for key in ("shape", "data_offsets"):
        part = value[key]
        if not isinstance(part, list):
            return f"{key} is {_json_word(part)}, not a list"
        odd = [number for number in part if not _whole(number)]
        if odd:
            return f"{key} holds {str(odd[0])[:40]}, which is no unsigned 64-bit integer"
    if len(value["data_offsets"]) != 2:
        return f"data_offsets holds {len(value['data_offsets'])} numbers, not 2"
    return None


def _earlier_fault(value: Json) -> str | None:
    """Why serde would refuse a value that a later one of the same name replaces."""
    reason = _entry_fault(value, ())
    if reason:
        return reason
    word = _dtype_word(value["dtype"] if isinstance(value, dict) else value[0])
    return None if word in DTYPE_BITS else f"the format has no dtype {word}"


def _json_word(value: Json) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")


def salvage(text: bytes) -> tuple[Header, str | None]:
    """Entries that can be cut out of a text that is no JSON as a whole."""
    entries: dict[str, Entry] = {}
    for found in _SALVAGE.finditer(text[:MAX_SALVAGE_BYTES]):
        try:
            name = msgspec.json.decode(b'"' + found[1] + b'"', type=str)
            entries[name] = _ENTRY.decode(found[2])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        if len(entries) >= MAX_ENTRIES:
            break
    return Header(entries=entries, metadata={}, sound=False), None
