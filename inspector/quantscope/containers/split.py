"""Split GGUF sets: found from any part, compared with each other.

Format: ggml-org/llama.cpp tools/gguf-split/gguf-split.cpp and src/llama-model-loader.cpp; parts are named
name-00001-of-00003.gguf, `split.no` counts from 0, `split.tensors.count` is the total of all parts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from quantscope.containers.assembly import Assembly
from quantscope.containers.issues import IssueLog
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.records import StoredTensor

PART_NAME = re.compile(r"^(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
MAX_PARTS = 4096

MAX_VALUE_TEXT = 60
"""Characters of a key's value that a message shows: a key of a count may hold text or an array."""


class SplitName(msgspec.Struct, frozen=True):
    """What the name of a part says; `no` counts from 1."""

    stem: str
    no: int
    count: int

    def sibling(self, no: int) -> str:
        """The name of another part."""
        return f"{self.stem}-{no:05d}-of-{self.count:05d}.gguf"


def split_name(name: str) -> SplitName | None:
    """The parts of a split file's name, or None."""
    found = PART_NAME.match(name)
    if not found or not 1 <= int(found["count"]) <= MAX_PARTS:
        return None
    return SplitName(found["stem"], int(found["no"]), int(found["count"]))


def open_split(
    assembly: Assembly, part: SplitName, files: Mapping[str, int], log: IssueLog
) -> tuple[StoredTensor, ...]:
    """Opens all parts of a set and compares them.

    Args:
        assembly: takes the files, in order of the parts.
        part: the name of any part.
        files: names in the folder with their sizes.
        log: takes the issues of the set.

    Returns:
        The union of the tensors, one for each name.
    """
    opened: dict[int, ParsedFile] = {}
    for no in range(1, part.count + 1):
        name = part.sibling(no)
        if name not in files:
            message = f"part {no} of {part.count} is not there: {name}"
            log.add("gg-split-missing", message, file=name, part=no, count=part.count)
            continue
        parsed = assembly.add(name)
        if parsed is None:
            continue
        if parsed.file.size == 0:
            message = f"part {no} of {part.count} is empty (0 bytes): {name}"
            log.add("gg-split-empty", message, file=name, part=no)
        elif not parsed.file.parsed:
            message = f"part {no} of {part.count} cannot be read: {parsed.file.error}"
            log.add("gg-split-unreadable", message, file=name, part=no)
        else:
            opened[no] = parsed
    _key_rules(part, opened, log)
    tensors = _union(opened, log)
    _total_rule(part, opened, log)
    return tensors


def check_single(parsed: ParsedFile, log: IssueLog) -> None:
    """A file that counts itself among several parts must be named as one of them."""
    count = parsed.file.metadata.get("split.count")
    if isinstance(count, int) and count > 1:
        message = (
            f"split.count is {count}, but {parsed.file.name} is not named -00001-of-{count:05d}.gguf: "
            f"the other parts cannot be found"
        )
        log.add("gg-split-name", message, count=count, no=parsed.file.metadata.get("split.no"))


def _key_rules(part: SplitName, opened: dict[int, ParsedFile], log: IssueLog) -> None:
    counts = {no: one.file.metadata.get("split.count") for no, one in opened.items()}
    numbers = {no: one.file.metadata.get("split.no") for no, one in opened.items()}
    for no, one in opened.items():
        name = one.file.name
        missing = [key for key in ("split.no", "split.count") if key not in one.file.metadata]
        if missing and part.count > 1:
            log.add("gg-split-keys", f"{name} lacks {' and '.join(missing)}", file=name, part=no)
    known = {no: count for no, count in counts.items() if count is not None}
    if any(count != part.count for count in known.values()):
        words = [str(count)[:MAX_VALUE_TEXT] for count in known.values()]
        message = f"split.count differs: {','.join(words)} in the parts, {part.count} in the names"
        if len(set(words)) == 1:
            message = f"split.count is {words[0]}, the names say {part.count}"
        odd = [opened[no].file.name for no, count in known.items() if count != part.count]
        log.add(
            "gg-split-count",
            message,
            file=odd[0],
            counts=list(known.values()),
            named=part.count,
            files=odd,
        )
    for no, number in numbers.items():
        if number is not None and number != no - 1:
            name = opened[no].file.name
            shown = str(number)[:MAX_VALUE_TEXT]
            message = f"split.no of {name} is {shown}, its name makes it {no - 1}"
            log.add("gg-split-no", message, file=name, split_no=number, expected=no - 1)


def _union(opened: dict[int, ParsedFile], log: IssueLog) -> tuple[StoredTensor, ...]:
    first: dict[str, tuple[int, StoredTensor]] = {}
    for no, one in opened.items():
        for tensor in one.tensors:
            if tensor.name in first:
                message = f"{tensor.name} stands in parts {first[tensor.name][0]} and {no}"
                where = (tensor.byte_offset, tensor.byte_offset + tensor.nbytes)
                log.add(
                    "gg-split-duplicate",
                    message,
                    file=one.file.name,
                    tensor=tensor.name,
                    byte_range=where,
                )
            else:
                first[tensor.name] = (no, tensor)
    return tuple(tensor for _, tensor in first.values())


def _total_rule(part: SplitName, opened: dict[int, ParsedFile], log: IssueLog) -> None:
    if len(opened) != part.count:
        return
    held = sum(len(one.tensors) for one in opened.values())
    totals = {
        one.file.name: one.file.metadata["split.tensors.count"]
        for one in opened.values()
        if "split.tensors.count" in one.file.metadata
    }
    odd = {name: total for name, total in totals.items() if total != held}
    if odd:
        name, total = next(iter(odd.items()))
        shown = str(total)[:MAX_VALUE_TEXT]
        message = f"split.tensors.count is {shown}, the {part.count} parts hold {held} tensors"
        log.add("gg-split-tensors", message, file=os.path.basename(name), declared=total, held=held)
