"""Every slug that a container reader can emit, with its fault kind and how grave it is.

The readers only state what is so; the rule layer turns a slug into a finding. `severity` is what the loaders
say: a violation is a file that the format's official loader refuses, or data that is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from quantscope.containers.records import ContainerIssue, Json

Severity = Literal["violation", "disagreement", "warning", "note"]

MAX_ISSUES_PER_SLUG = 2000
"""Issues of one slug that one file lists singly; what is beyond is counted in one last issue."""


MAX_MESSAGE_CHARS = 2000
"""A name of a megabyte may not be repeated in every message about it."""


class IssueKind(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the slug table."""

    slug: str
    kind: str | None
    severity: Severity
    what: str


def _table(*rows: tuple[str, str | None, Severity, str]) -> Mapping[str, IssueKind]:
    return MappingProxyType(
        {
            slug: IssueKind(slug=slug, kind=kind, severity=severity, what=what)
            for slug, kind, severity, what in rows
        }
    )


ISSUES: Mapping[str, IssueKind] = _table(
    # any file
    ("file-unreadable", None, "violation", "the system refused a read, or the path is no regular file"),
    ("file-changed", None, "violation", "the file shrank or changed while its header was read"),
    ("symlink-outside", None, "note", "a link in the folder leads to a file outside of it"),
    ("issues-left-out", None, "note", "more issues of one slug than are listed singly"),
    # safetensors: header
    ("st-empty-file", "ST-HDR", "violation", "file of 0 bytes"),
    ("st-too-short", "ST-HDR", "violation", "fewer than 8 bytes, no header length"),
    ("st-lfs-pointer", "ST-HDR", "violation", "Git-LFS pointer text instead of tensor data"),
    ("st-html-page", "ST-HDR", "violation", "HTML page saved as the file"),
    ("st-other-container", "ST-HDR", "violation", "another container under a safetensors name"),
    ("st-header-too-large", "ST-HDR", "violation", "header length above 100,000,000 bytes"),
    ("st-header-past-end", "ST-HDR", "violation", "header length reaches past the end of the file"),
    ("st-header-start", "ST-HDR", "violation", "header does not begin with {"),
    ("st-header-space", "ST-HDR", "warning", "white space before {; the official reader accepts it"),
    ("st-header-utf8", "ST-HDR", "violation", "header is no UTF-8"),
    ("st-header-json", "ST-HDR", "violation", "header is no JSON"),
    ("st-header-depth", "ST-HDR", "violation", "JSON nested deeper than 127 levels"),
    ("st-header-not-object", "ST-HDR", "violation", "header is JSON but no object"),
    ("st-header-over-limit", "ST-HDR", "warning", "lawful perhaps, but larger than this reader lists"),
    ("st-duplicate-key", "ST-HDR", "warning", "a key stands twice; the official reader takes the last"),
    ("st-duplicate-field", "ST-HDR", "violation", "dtype, shape, data_offsets or __metadata__ twice"),
    ("st-metadata", "ST-HDR", "violation", "__metadata__ is no object of strings"),
    # safetensors: entries
    ("st-entry-malformed", "ST-HDR", "violation", "entry without sound dtype, shape and data_offsets"),
    ("st-entry-list", "ST-HDR", "warning", "entry written as a list; the official reader accepts it"),
    ("st-entry-extra", None, "note", "keys beside dtype, shape and data_offsets"),
    ("st-dtype-unknown", "ST-HDR", "violation", "dtype word that the format does not have"),
    ("st-shape-overflow", "ST-SIZE", "violation", "element count beyond 64 bits"),
    ("st-size-mismatch", "ST-SIZE", "violation", "shape and dtype need other bytes than the offsets give"),
    ("st-sub-byte", "ST-SIZE", "violation", "sub-byte elements do not fill whole bytes"),
    ("st-negative", "ST-TRUNC", "violation", "negative offset or dimension"),
    ("st-offsets-reversed", "ST-TRUNC", "violation", "begin after end"),
    ("st-past-end", "ST-TRUNC", "violation", "tensor bytes reach past the end of the file"),
    ("st-overlap", "ST-OVERLAP", "violation", "two tensors share bytes"),
    ("st-alias", "ST-OVERLAP", "violation", "two tensors have the same byte range"),
    ("st-hole", "ST-OVERLAP", "violation", "bytes between two tensors belong to nobody"),
    ("st-trailing-bytes", "ST-OVERLAP", "violation", "bytes after the last tensor"),
    # GGUF: header
    ("gg-empty-file", "GG-HDR", "violation", "file of 0 bytes"),
    ("gg-magic", "GG-HDR", "violation", "first four bytes are not GGUF"),
    ("gg-blank-header", "GG-HDR", "violation", "first four bytes are zero"),
    ("gg-lfs-pointer", "GG-HDR", "violation", "Git-LFS pointer text instead of tensor data"),
    ("gg-html-page", "GG-HDR", "violation", "HTML page saved as the file"),
    ("gg-old-container", "GG-HDR", "violation", "container older than GGUF"),
    ("gg-version", "GG-HDR", "violation", "version 0, 1 or above 3"),
    ("gg-big-endian", "GG-HDR", "note", "big-endian file"),
    ("gg-counts", "GG-HDR", "violation", "tensor or key count that the file cannot hold"),
    ("gg-truncated-header", "GG-HDR", "violation", "file ends inside the header"),
    ("gg-header-over-limit", "GG-HDR", "warning", "header larger than this reader walks"),
    # GGUF: keys
    ("gg-key-empty", "GG-DIMS", "violation", "metadata key of length 0"),
    ("gg-key-duplicate", "GG-DUP", "violation", "metadata key twice"),
    ("gg-key-long", "GG-DIMS", "warning", "metadata key above 65,535 bytes"),
    ("gg-value-type", "GG-HDR", "violation", "metadata value type above 12"),
    ("gg-string-length", "GG-DIMS", "violation", "string longer than the rest of the file"),
    ("gg-array-length", "GG-DIMS", "violation", "array longer than the rest of the file"),
    ("gg-array-nested", "GG-DIMS", "violation", "array of arrays"),
    ("gg-bool-value", None, "note", "boolean that is neither 0 nor 1, read as true"),
    ("gg-string-utf8", None, "warning", "key, name or string that is no UTF-8"),
    ("gg-alignment-type", "GG-ALIGN", "violation", "general.alignment is no uint32"),
    ("gg-alignment-value", "GG-ALIGN", "violation", "general.alignment is no power of two"),
    ("gg-alignment-absurd", "GG-ALIGN", "warning", "general.alignment below 8 or above 1 MiB"),
    ("gg-tail-padding", "GG-ALIGN", "note", "last tensor is not padded, or more than padding follows"),
    # GGUF: tensors
    ("gg-name-long", "GG-DIMS", "violation", "tensor name of 64 bytes or more"),
    ("gg-name-empty", "GG-DIMS", "warning", "tensor name of length 0"),
    ("gg-name-duplicate", "GG-DUP", "violation", "tensor name twice"),
    ("gg-n-dims", "GG-DIMS", "violation", "no dimension, or more than 4"),
    ("gg-dim-value", "GG-DIMS", "violation", "dimension that is zero or negative"),
    ("gg-dims-overflow", "GG-DIMS", "violation", "element or byte count beyond 63 bits"),
    ("gg-row-length", "GG-DIMS", "violation", "row length is no multiple of the block"),
    ("gg-type-unknown", "GG-TYPE", "disagreement", "type id that no known ggml has"),
    ("gg-type-withdrawn", "GG-TYPE", "warning", "type id that was withdrawn"),
    ("gg-type-fork", "GG-TYPE", "warning", "type id that only a fork has"),
    ("gg-type-recent", "GG-TYPE", "note", "type id that older readers do not know"),
    ("gg-bounds", "GG-BOUNDS", "violation", "tensor bytes reach past the end of the file"),
    ("gg-region-short", "GG-REGION", "violation", "next tensor begins before this one can end"),
    ("gg-region-gap", "GG-REGION", "violation", "offset is not the aligned running sum"),
    ("gg-offset-order", "GG-REGION", "violation", "offsets do not follow the order of the list"),
    ("gg-offset-align", "GG-REGION", "violation", "offset is no multiple of the alignment"),
    # GGUF split sets
    ("gg-split-missing", "GG-SPLIT", "violation", "part of a split set is not there"),
    ("gg-split-empty", "GG-SPLIT", "violation", "part of a split set has 0 bytes"),
    ("gg-split-unreadable", "GG-SPLIT", "violation", "part of a split set has no readable header"),
    ("gg-split-count", "GG-SPLIT", "violation", "split.count differs between parts or from the name"),
    ("gg-split-no", "GG-SPLIT", "violation", "split.no is not the part's place, or stands twice"),
    ("gg-split-keys", "GG-SPLIT", "violation", "part without split.no or split.count"),
    ("gg-split-tensors", "GG-SPLIT", "violation", "split.tensors.count is not the number of tensors"),
    ("gg-split-name", "GG-SPLIT", "violation", "split.count above 1 in a file not named as a part"),
    ("gg-split-duplicate", "GG-DUP", "violation", "tensor name in two parts"),
    ("gg-raw-part", "GG-SPLIT", "violation", "raw piece of a larger file"),
    # torch
    ("pt-legacy-pickle", None, "warning", "bare pickle, not a zip; never read here"),
    ("pt-zip", None, "violation", "zip directory is broken"),
    ("pt-no-pickle", None, "violation", "zip without data.pkl"),
    ("pt-pickle-size", None, "warning", "pickle larger than this reader walks"),
    ("pt-pickle-broken", None, "violation", "pickle opcodes cannot be followed"),
    ("pt-pickle-limit", None, "warning", "pickle builds more values than this reader keeps"),
    ("pt-global", None, "warning", "pickle names a global outside the allow-list"),
    ("pt-compressed", None, "warning", "zip entry is compressed, its tensors cannot be read in place"),
    ("pt-storage-missing", None, "violation", "storage entry is not in the zip"),
    ("pt-storage-size", None, "violation", "storage holds fewer bytes than a tensor needs"),
    ("pt-byteorder", None, "note", "tensors are stored big-endian"),
    ("pt-lfs-pointer", None, "violation", "Git-LFS pointer text instead of data"),
    ("pt-html-page", None, "violation", "HTML page saved as the file"),
    ("pt-empty-file", None, "violation", "file of 0 bytes"),
    ("pt-unknown", None, "violation", "neither a zip nor a pickle under a torch name"),
    # index
    ("index-unreadable", "IDX-MAP", "violation", "index is no JSON, too large or no regular file"),
    ("index-not-object", "IDX-MAP", "violation", "index or its weight_map is no object"),
    ("index-entry", "IDX-MAP", "violation", "weight_map maps a name to something that is no string"),
    ("index-duplicate-key", "IDX-MAP", "warning", "a name stands twice in weight_map"),
    ("index-name-outside", "IDX-SHARD", "violation", "shard name leaves the checkpoint folder"),
    ("index-shard-missing", "IDX-SHARD", "violation", "shard that the index names is not there"),
    ("index-shard-broken", "IDX-SHARD", "violation", "shard that the index names cannot be read"),
    ("index-tensor-missing", "IDX-MAP", "violation", "tensor is not in the shard that the index names"),
    ("index-tensor-omitted", "IDX-OMIT", "disagreement", "tensor of a shard is not in the index"),
    ("index-file-omitted", "IDX-OMIT", "disagreement", "file of the set is not in the index"),
    ("index-tensor-twice", "IDX-OMIT", "disagreement", "tensor name in two files"),
    ("index-total-size", "IDX-OMIT", "disagreement", "metadata.total_size differs from the tensors"),
    ("index-total-size-type", "IDX-OMIT", "note", "metadata.total_size is no whole number"),
    # folders
    ("set-incomplete", "IDX-SHARD", "violation", "file names count more shards than there are"),
    ("set-without-index", None, "note", "several shards and no index"),
    ("set-tensor-twice", "IDX-OMIT", "disagreement", "tensor name in two files of the set"),
    ("folder-over-limit", None, "warning", "folder holds more names than are looked at"),
    ("snapshot-choice", None, "note", "several snapshots, one was chosen"),
    # config files
    ("config-unreadable", None, "violation", "config file cannot be read or parsed"),
    ("config-too-large", None, "warning", "config file larger than is parsed"),
    ("config-duplicate-key", None, "warning", "a key stands twice in a config file"),
    ("config-not-object", None, "warning", "config file is no object"),
    ("config-bom", None, "warning", "config file begins with a byte order mark"),
)  # fmt: skip
"""Slug -> kind of the fault catalogue, severity word, and what it means."""


class IssueLog:
    """Collects the issues of one file, bounded per slug."""

    def __init__(self, file: str, *, limit: int = MAX_ISSUES_PER_SLUG) -> None:
        self.file = file
        self._limit = limit
        self._issues: list[ContainerIssue] = []
        self._counts: Counter[str] = Counter()

    def add(
        self,
        slug: str,
        message: str,
        *,
        tensor: str | None = None,
        byte_range: tuple[int, int] | None = None,
        file: str | None = None,
        **data: Json,
    ) -> None:
        """Adds one issue; `slug` must be in the table."""
        row = ISSUES[slug]
        self._counts[slug] += 1
        if self._counts[slug] > self._limit:
            return
        self._issues.append(
            ContainerIssue(
                name=slug,
                kind=row.kind,
                message=message if len(message) <= MAX_MESSAGE_CHARS else _shortened(message),
                file=self.file if file is None else file,
                tensor=tensor,
                byte_range=byte_range,
                data=data,
            )
        )

    def count(self, slug: str) -> int:
        """Issues of a slug so far, those left out included."""
        return self._counts[slug]

    def done(self) -> tuple[ContainerIssue, ...]:
        """All issues, with one line for each slug that overflowed."""
        extra = [
            ContainerIssue(
                name="issues-left-out",
                kind=None,
                message=f"{count - self._limit} more issues of {slug} in {self.file} are not listed",
                file=self.file,
                data={"slug": slug, "omitted": count - self._limit, "count": count},
            )
            for slug, count in sorted(self._counts.items())
            if count > self._limit
        ]
        return (*self._issues, *extra)


def _shortened(message: str) -> str:
    half = MAX_MESSAGE_CHARS // 2
    return f"{message[:half]} … {message[-half:]}"


def severity_of(issue: ContainerIssue) -> Severity:
    """The severity word that the table suggests for an issue."""
    return ISSUES[issue.name].severity
