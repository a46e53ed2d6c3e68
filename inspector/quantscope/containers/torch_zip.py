"""Reader of torch files; a stub until the opcode walk is here."""

from __future__ import annotations

from quantscope.containers.issues import IssueLog
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.records import OpenedFile
from quantscope.containers.source import ByteSource


def read_torch(source: ByteSource, file_id: int) -> ParsedFile:
    """Names the file."""
    log = IssueLog(source.name)
    message = "torch file: not read yet"
    log.add("pt-legacy-pickle", message)
    file = OpenedFile(
        file_id=file_id,
        name=source.name,
        path=source.path,
        kind="torch_zip",
        size=source.size,
        fingerprint=source.fingerprint,
        parsed=False,
        error=message,
    )
    return ParsedFile(file=file, issues=log.done())
