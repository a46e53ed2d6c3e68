"""What one container reader returns for one file."""

from __future__ import annotations

import msgspec

from quantscope.containers.records import ContainerIssue, OpenedFile, StoredTensor


class ParsedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file, the tensors that could be listed, and the rules that it breaks."""

    file: OpenedFile
    tensors: tuple[StoredTensor, ...] = ()
    issues: tuple[ContainerIssue, ...] = ()
