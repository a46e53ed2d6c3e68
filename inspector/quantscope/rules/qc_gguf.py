"""QC02x: the GGUF container, checked against the rules of its official reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from quantscope.rules.base import Page
from quantscope.rules.container_rule import AGAIN, GONE, Advice, ContainerRule

READER = "Every rule of the official reader (llama.cpp, ggml/src/gguf.cpp) read from the header; proved by the bytes."


class GgufHeader(ContainerRule):
    """The header is not one that the official reader takes."""

    code = "QC020"
    name = "gguf-header"
    kind = "GG-HDR"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "gg-empty-file": Advice("no weights: the file holds nothing", AGAIN, "download"),
        "gg-magic": Advice("no weights: this is no GGUF", AGAIN, "download"),
        "gg-blank-header": Advice("no weights: the header region is blank", AGAIN, "download"),
        "gg-lfs-pointer": Advice(
            "no weights: the file is a pointer to them",
            "git lfs pull, or download the file itself",
            "download",
        ),
        "gg-html-page": Advice("no weights: the file is a web page", AGAIN, "download"),
        "gg-old-container": Advice(
            "current readers refuse the file", "convert it with a tool of its time, or get a GGUF"
        ),
        "gg-version": Advice("current readers refuse the file", "convert the model again"),
        "gg-big-endian": Advice(
            "none here; most readers refuse big-endian files",
            "gguf_convert_endian.py FILE little",
            "reader",
        ),
        "gg-counts": Advice("the official reader refuses the file", AGAIN, "download"),
        "gg-truncated-header": Advice(
            "tensors and keys past the end are absent", AGAIN, "download"
        ),
        "gg-header-over-limit": Advice("what lies beyond the limit was not read", "", "nobody"),
        "gg-value-type": Advice("the official reader refuses the file", "write the key again"),
        "gg-string-utf8": Advice("none for weights", "write text as UTF-8"),
        "gg-bool-value": Advice("none; the official reader takes it as true", "write 0 or 1"),
    }
    page = Page(
        checks="Magic, version, byte order, counts, and the types of all keys of a GGUF file.",
        why="A header that cannot be walked to its end hides every tensor behind it.",
        evidence=READER,
        proves_not="A sound header says nothing of the data behind it.",
        sample="gg-header",
        reports=("llama.cpp#13258", "ollama#4938", "llama.cpp#9498"),
    )


class GgufBounds(ContainerRule):
    """A tensor reaches past the end of the file."""

    code = "QC021"
    name = "gguf-truncated"
    kind = "GG-BOUNDS"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "gg-bounds": Advice(
            "the tensors past the end are cut or absent",
            AGAIN,
            "download",
            many="{count} tensors reach past the end of the file, by up to {hi_missing_bytes} bytes",
        )
    }
    page = Page(
        checks="Data start plus offset plus size of each tensor against the size of the file.",
        why="An interrupted download keeps a good header.",
        evidence=READER,
        proves_not="A file of the right size can still hold damaged bytes: compare its SHA-256.",
        sample="gg-truncated",
        reports=("llama.cpp#6885", "textgen#6080"),
    )


class GgufRegion(ContainerRule):
    """The region kept for a tensor does not fit its type."""

    code = "QC022"
    name = "gguf-region"
    kind = "GG-REGION"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "gg-region-short": Advice(
            "the tail of the tensor is read from the next one",
            "write the file again with the right sizes",
        ),
        "gg-region-gap": Advice("the official reader refuses the file", "write the file again"),
        "gg-offset-align": Advice("the official reader refuses the file", "write the file again"),
        "gg-offset-order": Advice("the official reader refuses the file", "write the file again"),
    }
    page = Page(
        checks="Each offset against the aligned running sum of sizes, and against the next tensor's offset.",
        why="Only the last tensor can trip a bounds check: one that is too long in the middle reads its neighbour.",
        evidence=READER,
        proves_not="That the type id is the one the bytes were written with.",
        sample="gg-region",
        reports=("ik_llama.cpp#2437",),
    )


class GgufDims(ContainerRule):
    """Dimensions or lengths that cannot be."""

    code = "QC023"
    name = "gguf-dimensions"
    kind = "GG-DIMS"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "gg-key-empty": Advice("the official reader refuses the file", "name the key"),
        "gg-key-long": Advice("some readers refuse the file", "shorten the key"),
        "gg-string-length": Advice("what lies behind it cannot be read", AGAIN, "download"),
        "gg-array-length": Advice("what lies behind it cannot be read", AGAIN, "download"),
        "gg-array-nested": Advice("the official reader refuses the file", "write flat arrays"),
        "gg-name-long": Advice("the official reader refuses the file", "use names below 64 bytes"),
        "gg-name-empty": Advice(
            "no architecture asks for a tensor without a name", "name the tensor"
        ),
        "gg-n-dims": Advice("the official reader refuses the file", "store 1 to 4 dimensions"),
        "gg-dim-value": Advice(
            "the official reader refuses the file; some divide by zero", "write the file again"
        ),
        "gg-dims-overflow": Advice(GONE, "write the file again"),
        "gg-row-length": Advice(
            "the official reader refuses the file",
            "quantize the tensor to a type whose block divides its rows",
        ),
    }
    page = Page(
        checks="Number and size of dimensions, products, row length against the block, lengths of strings and arrays.",
        why="Unchecked products wrap and let impossible tensors in.",
        evidence=READER,
        proves_not="That possible dimensions are the model's: see the rules on metadata.",
        sample="gg-dims",
        reports=("gguf-tools#25", "llama.cpp#24263", "llama.cpp#25378", "llama.cpp#27203"),
    )


class GgufAlignment(ContainerRule):
    """Alignment value or tail padding."""

    code = "QC024"
    name = "gguf-alignment"
    kind = "GG-ALIGN"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "gg-alignment-type": Advice(
            "the official reader refuses the file", "write general.alignment as uint32"
        ),
        "gg-alignment-value": Advice(
            "the official reader refuses the file; others look for data at other places",
            "set general.alignment to a power of two",
        ),
        "gg-alignment-absurd": Advice("none if all readers honour it", "use 32"),
        "gg-tail-padding": Advice("none", "pad the last tensor to the alignment"),
    }
    page = Page(
        checks="general.alignment: its type and value; the padding after the last tensor.",
        why="A reader with another idea of the alignment reads every tensor a few bytes off.",
        evidence=READER,
        proves_not="Padding is no fault: readers once took it for a second file.",
        sample="gg-alignment",
        reports=("ollama#8456",),
    )


class GgufDuplicate(ContainerRule):
    """A tensor name or a key stands twice."""

    code = "QC025"
    name = "gguf-duplicate"
    kind = "GG-DUP"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "gg-key-duplicate": Advice(
            "which value counts depends on the reader", "write the key once"
        ),
        "gg-name-duplicate": Advice(
            "which of the two is loaded depends on the reader", "write each tensor once"
        ),
        "gg-split-duplicate": Advice(
            "which of the two is loaded depends on the reader", "keep the tensor in one part"
        ),
    }
    page = Page(
        checks="Names of tensors and keys over all parts.",
        why="The first or the last wins in silence.",
        evidence=READER,
        proves_not="Which of the two is the intended one.",
        sample="gg-duplicate",
        reports=("llama.cpp#6836", "llama.cpp#10756"),
    )


class GgufType(ContainerRule):
    """A type id that readers do not share."""

    code = "QC026"
    name = "gguf-type"
    kind = "GG-TYPE"
    severity = "disagreement"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "gg-type-unknown": Advice(
            "the tensor cannot be decoded by any known reader",
            "requantize with a current llama.cpp",
        ),
        "gg-type-withdrawn": Advice(
            "current readers refuse the file", "requantize to the plain type"
        ),
        "gg-type-fork": Advice(
            "mainline readers refuse the type or read other blocks",
            "use the fork, or requantize",
            "reader",
        ),
        "gg-type-recent": Advice(
            "none; older readers refuse the type", "use a current reader", "reader"
        ),
    }
    page = Page(
        checks="Each tensor's type id against the tables of ggml and of its forks.",
        why="Forks reuse ids: the same number means another block.",
        evidence="The tables of ggml and of known forks; proved for the id, not for what the writer meant.",
        proves_not="That the bytes are of the type that the id names.",
        sample="gg-type",
        reports=("llama.cpp#10757", "unsloth#3124"),
    )


class GgufSplit(ContainerRule):
    """The parts of a split set do not fit together."""

    code = "QC027"
    name = "gguf-split"
    kind = "GG-SPLIT"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "gg-split-missing": Advice("the tensors of the part are absent", AGAIN, "download"),
        "gg-split-empty": Advice("the tensors of the part are absent", AGAIN, "download"),
        "gg-split-unreadable": Advice("the tensors of the part are absent", AGAIN, "download"),
        "gg-split-count": Advice(
            "readers that check every part refuse the set", "split the model again"
        ),
        "gg-split-no": Advice(
            "readers put the parts in another order or refuse the set", "split the model again"
        ),
        "gg-split-keys": Advice("readers take the part for a whole model", "split the model again"),
        "gg-split-tensors": Advice("tensors are missing or foreign", "split the model again"),
        "gg-split-name": Advice(
            "readers look for parts that are not there", "name the file as a part, or merge"
        ),
        "gg-raw-part": Advice(
            "most tensors lie past the end: this is a piece of a larger file",
            "join the pieces: cat PARTS > FILE",
            "storage",
        ),
    }
    page = Page(
        checks="split.no, split.count and split.tensors.count of every part against each other and the file names.",
        why="Loaders that check the first part only assemble sets that do not belong together.",
        evidence="The headers of all parts that are there; proved.",
        proves_not="That parts of one numbering come from one model.",
        sample="gg-split",
        reports=("llama.cpp#9498", "fak#13110", "textgen#6080"),
    )


RULES = (
    GgufHeader,
    GgufBounds,
    GgufRegion,
    GgufDims,
    GgufAlignment,
    GgufDuplicate,
    GgufType,
    GgufSplit,
)
