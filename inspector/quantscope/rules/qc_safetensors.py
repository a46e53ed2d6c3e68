"""QC0xx: the safetensors container, checked against the rules of its official reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from quantscope.containers.records import ContainerIssue
from quantscope.model import Severity
from quantscope.rules.base import Page
from quantscope.rules.container_rule import AGAIN, GONE, Advice, ContainerRule

READER = "Every rule of the official reader (safetensors, src/tensor.rs) read from the header; proved by the bytes."


class SafetensorsHeader(ContainerRule):
    """The header is not one that the official reader takes."""

    code = "QC001"
    name = "safetensors-header"
    kind = "ST-HDR"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "st-empty-file": Advice("no weights: the file holds nothing", AGAIN, "download"),
        "st-too-short": Advice("no weights: the file holds no header", AGAIN, "download"),
        "st-lfs-pointer": Advice(
            "no weights: the file is a pointer to them",
            "git lfs pull, or download the file itself",
            "download",
        ),
        "st-html-page": Advice("no weights: the file is a web page", AGAIN, "download"),
        "st-other-container": Advice(
            "no weights under this name", "give the file the extension of what it is", "storage"
        ),
        "st-header-too-large": Advice("the official reader refuses the file", AGAIN, "download"),
        "st-header-past-end": Advice("the official reader refuses the file", AGAIN, "download"),
        "st-header-start": Advice("the official reader refuses the file", "write the file again"),
        "st-header-space": Advice("none", "write the header without leading white space"),
        "st-header-utf8": Advice("the official reader refuses the file", "write the file again"),
        "st-header-json": Advice("the official reader refuses the file", "write the file again"),
        "st-header-depth": Advice("the official reader refuses the file", "write the file again"),
        "st-header-not-object": Advice(
            "the official reader refuses the file", "write the file again"
        ),
        "st-header-over-limit": Advice(
            "tensors beyond the limit are not listed", "split the file into shards"
        ),
        "st-duplicate-key": Advice(
            "readers that take the first entry load other bytes than those that take the last",
            "write each name once",
        ),
        "st-duplicate-field": Advice(
            "the official reader refuses the file", "write each field once"
        ),
        "st-metadata": Advice(
            "the official reader refuses the file", "make every value of __metadata__ a string"
        ),
        "st-entry-malformed": Advice(
            "the official reader refuses the file", "write the file again"
        ),
        "st-entry-list": Advice("none", "write entries as objects"),
        "st-dtype-unknown": Advice(
            "the official reader refuses the file",
            "store the tensor in a dtype that the format has",
        ),
    }
    page = Page(
        checks="The first 8 bytes, the JSON header and every entry of a safetensors file.",
        why="A file whose header cannot be read holds no weights for anybody, whatever its size.",
        evidence=READER,
        proves_not="A sound header says nothing of the data behind it.",
        sample="st-header-json",
        reports=("exllama#242",),
    )


class SafetensorsTruncated(ContainerRule):
    """The data section is shorter than the header says."""

    code = "QC002"
    name = "safetensors-truncated"
    kind = "ST-TRUNC"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "st-past-end": Advice("the tensors past the end are cut or absent", AGAIN, "download"),
        "st-offsets-reversed": Advice(GONE, "write the file again"),
        "st-negative": Advice(GONE, "write the file again"),
    }
    page = Page(
        checks="The last byte that an entry names against the size of the file; offsets in order and not negative.",
        why="An interrupted download keeps a good header, so that only this comparison shows it.",
        evidence=READER,
        proves_not="A file of the right size can still hold damaged bytes: compare its SHA-256.",
        sample="st-truncated",
        reports=("llama.cpp#6733",),
    )


class SafetensorsSize(ContainerRule):
    """Shape and byte range of an entry disagree."""

    code = "QC003"
    name = "safetensors-size"
    kind = "ST-SIZE"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "st-size-mismatch": Advice(
            "a reader that trusts the shape reads past the data", "write the file again"
        ),
        "st-shape-overflow": Advice(GONE, "write the file again"),
        "st-sub-byte": Advice(
            "the official reader refuses the file", "pad the last dimension to whole bytes"
        ),
    }
    page = Page(
        checks="Shape times dtype against the byte range of each tensor, sub-byte types in bits.",
        why="Two header fields that disagree leave it to the reader which one to believe.",
        evidence=READER,
        proves_not="Matching sizes do not say that the dtype is the right one.",
        sample="st-size",
        reports=("ds4#543", "mlx#3363", "modelaudit#1607"),
    )


class SafetensorsLayout(ContainerRule):
    """Overlap, alias, hole or bytes that belong to nobody."""

    code = "QC004"
    name = "safetensors-layout"
    kind = "ST-OVERLAP"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "st-overlap": Advice(
            "two tensors share bytes: at least one of them is wrong", "write the file again"
        ),
        "st-alias": Advice(
            "two names have one set of bytes: at least one of them is wrong unless they are tied",
            "store each tensor once, or drop the second name",
        ),
        "st-hole": Advice(
            "the official reader refuses the file; no weight changes", "write the file again"
        ),
        "st-trailing-bytes": Advice(
            "the official reader refuses the file; no weight changes", "write the file again"
        ),
    }
    page = Page(
        checks="Whether the byte ranges of all tensors follow each other without overlap, hole or tail.",
        why="Overlaps alias weights in silence; holes and tails hide data and are refused by the official reader.",
        evidence=READER,
        proves_not="A gapless file can still have two tensors in each other's place.",
        sample="st-overlap",
        reports=("lattice#752",),
    )


class IndexShard(ContainerRule):
    """A shard that is needed is not there."""

    code = "QC005"
    name = "shard-missing"
    kind = "IDX-SHARD"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "index-shard-missing": Advice(
            "every tensor of the shard is absent; some engines start without them",
            AGAIN,
            "download",
        ),
        "index-shard-broken": Advice("every tensor of the shard is absent", AGAIN, "download"),
        "set-incomplete": Advice("the tensors of the missing files are absent", AGAIN, "download"),
    }
    page = Page(
        checks="Every file that the index or the numbering of the names promises.",
        why="Engines that load by a one-way filter start with whole layers missing and answer with garbage.",
        evidence="The index, the folder and the headers of the shards; proved.",
        proves_not="A complete set says nothing of the content of the shards.",
        sample="shard-missing",
        reports=("vllm#34859", "sglang#32279"),
    )


class IndexMap(ContainerRule):
    """The index maps a name to a shard that does not hold it."""

    code = "QC006"
    name = "index-wrong-shard"
    kind = "IDX-MAP"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "index-unreadable": Advice("readers that need the index load nothing", AGAIN, "download"),
        "index-not-object": Advice(
            "readers that need the index load nothing", "write the index again"
        ),
        "index-entry": Advice(
            "the tensor is absent for readers of the index", "write the index again"
        ),
        "index-duplicate-key": Advice(
            "readers that take the first line look in another shard", "write each name once"
        ),
        "index-tensor-missing": Advice(
            "the tensor is absent for readers of the index",
            "write the index again from the shards' headers",
        ),
    }
    page = Page(
        checks="Each pair of tensor and shard in weight_map against the header of that shard.",
        why="Metadata calls succeed and the load fails late, or the tensor stays at its initial value.",
        evidence="The index and the headers of the shards; proved.",
        proves_not="A consistent index can have been made to fit a damaged set.",
        sample="index-wrong-shard",
        reports=("huggingface_hub#4728",),
    )


class IndexOmit(ContainerRule):
    """Tensors or files outside the index."""

    code = "QC007"
    name = "outside-the-index"
    kind = "IDX-OMIT"
    severity = "disagreement"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "index-tensor-omitted": Advice(
            "readers of the index leave the tensors out, readers of the files take them",
            "write the index again from the shards' headers",
            many="{count} tensors of the shard are not in the index",
        ),
        "index-file-omitted": Advice(
            "readers of the index leave the file out, readers of the folder take it",
            "add its tensors to the index, or remove the file",
        ),
        "index-tensor-twice": Advice(
            "which of the two is loaded depends on the reader", "keep the tensor in one shard"
        ),
        "index-total-size": Advice(
            "none; progress bars and memory plans are wrong",
            "set metadata.total_size to the tensors' bytes",
        ),
        "index-total-size-type": Advice("none", "make metadata.total_size a whole number"),
        "set-tensor-twice": Advice(
            "which of the two is loaded depends on the reader", "keep the tensor in one file"
        ),
    }

    def severity_of(self, issue: ContainerIssue) -> Severity:
        """A shard that holds no tensor of its own, metadata only, is a note."""
        counts = (issue.data.get("new_count"), issue.data.get("repeated_count"))
        if issue.name == "index-file-omitted" and counts == (0, 0) and issue.data.get("parsed"):
            return "note"
        return super().severity_of(issue)

    page = Page(
        checks="Names in the headers against names in the index, files beside it, one name in two files, total_size.",
        why="Two lists of what belongs to the model mean two models.",
        evidence="The index and the headers of the shards; proved.",
        proves_not="Which of the two lists is the intended one.",
        sample="index-omits",
        reports=("buun-llama-cpp#136",),
    )


class FileFault(ContainerRule):
    """A file cannot be read as what it claims to be."""

    code = "QC008"
    name = "file-unreadable"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "file-unreadable": Advice(
            GONE, "check permissions and that the path is a regular file", "storage"
        ),
        "file-changed": Advice(
            "what was read is of two states of the file",
            "scan again when nothing writes to it",
            "storage",
        ),
        "set-without-index": Advice(
            "none; readers that need an index refuse the folder", "write an index", "producer"
        ),
        "snapshot-choice": Advice("none", "give the path of the snapshot that is meant", "nobody"),
        "st-entry-extra": Advice("none; the official reader ignores the keys", "", "nobody"),
    }
    page = Page(
        checks="Whether each file could be read in full and stayed the same while it was read.",
        why="What was not read was not checked.",
        evidence="The operating system's answers.",
        proves_not="That the file is damaged: permissions and running downloads look the same.",
        sample="file-missing",
    )


class TorchZip(ContainerRule):
    """A torch archive whose tensors cannot all be listed without running code."""

    code = "QC009"
    name = "torch-archive"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "pt-zip": Advice(GONE, AGAIN, "download"),
        "pt-no-pickle": Advice(GONE, AGAIN, "download"),
        "pt-pickle-broken": Advice(GONE, AGAIN, "download"),
        "pt-storage-missing": Advice(GONE, AGAIN, "download"),
        "pt-storage-size": Advice("the tensor is cut", AGAIN, "download"),
        "pt-compressed": Advice(
            "the tensors of the entry cannot be read in place",
            "store entries uncompressed, as torch.save does",
        ),
        "pt-byteorder": Advice("none; bytes are swapped for display", "", "nobody"),
        "pt-lfs-pointer": Advice(
            "no weights: the file is a pointer to them",
            "git lfs pull, or download the file itself",
            "download",
        ),
        "pt-html-page": Advice("no weights: the file is a web page", AGAIN, "download"),
        "pt-empty-file": Advice("no weights: the file holds nothing", AGAIN, "download"),
        "pt-unknown": Advice("no weights under this name", AGAIN, "download"),
    }
    page = Page(
        checks="The zip directory, the pickle's opcodes and the storages of a torch archive, without unpickling.",
        why="A storage that is missing or short gives tensors of garbage or none.",
        evidence="The zip directory and the opcodes of data.pkl; proved.",
        proves_not="That loading the file is safe: it is never loaded here.",
        sample="torch-storage-missing",
    )


class ConfigFileFault(ContainerRule):
    """A config file that cannot be read as one object of unique keys."""

    code = "QC010"
    name = "config-file"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "config-unreadable": Advice(
            "what the file declares is unknown; engines refuse the model",
            "mend the file's JSON",
            "config",
        ),
        "config-duplicate-key": Advice(
            "readers that take the first value decode other weights than those that take the last",
            "write the key once",
            "config",
        ),
        "config-not-object": Advice(
            "what the file declares is unknown", "make the file one object", "config"
        ),
        "config-bom": Advice(
            "none for tolerant readers", "save the file without a byte order mark", "config"
        ),
    }
    page = Page(
        checks="The config files beside the weights: readable, one object, each key once.",
        why="A declaration that two parsers read differently is two declarations.",
        evidence="The bytes of the file; proved.",
        proves_not="That what a readable file declares is true.",
        sample="config-broken",
    )


RULES = (
    SafetensorsHeader,
    SafetensorsTruncated,
    SafetensorsSize,
    SafetensorsLayout,
    IndexShard,
    IndexMap,
    IndexOmit,
    FileFault,
    TorchZip,
    ConfigFileFault,
)
