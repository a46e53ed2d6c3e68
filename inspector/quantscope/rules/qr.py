"""QR: GRIT descriptors: readable, sound, bound to a tensor, true of its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from quantscope.containers.records import StoredTensor
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import QuantscopeError
from quantscope.grit import grade as grades
from quantscope.grit import identity, words
from quantscope.grit.descriptor import (
    PLANES,
    Descriptor,
    SizeError,
    disagreements,
    frame_fault,
    placement_fault,
    plane_bytes,
    recovered_grade,
)
from quantscope.grit.locate import Found, descriptors
from quantscope.model import Subject
from quantscope.report.words import zero_words
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts

MAX_DIGEST_BYTES = 16 << 20
"""The hash is defined byte by byte; larger tensors are left out."""


def found(facts: Facts) -> list[Found]:
    """Every descriptor of the checkpoint."""
    return list(descriptors(facts.opened.files))


def sound(facts: Facts) -> Iterator[tuple[Found, Descriptor, StoredTensor]]:
    """Descriptors with a believable frame whose tensor is stored."""
    for item in facts.once(found):
        stored = facts.stored.get(item.tensor or "")
        if (
            item.descriptor is not None
            and stored is not None
            and frame_fault(item.descriptor) is None
        ):
            yield item, item.descriptor, stored


def subject(facts: Facts, item: Found) -> Subject:
    """A subject that names the descriptor and its tensor."""
    stored = facts.stored.get(item.tensor or "")
    return Subject(
        tensor=item.tensor,
        stored=stored.name if stored is not None else None,
        file=item.source.file,
        config_key=str(item.source),
    )


class GritText(Rule):
    """A descriptor that is not 64 bytes of hex."""

    code = "QR001"
    name = "grit-unreadable"
    severity = "violation"
    page = Page(
        checks="The text of `__grit__` and `grit.desc.*`: JSON, an object of strings, 128 hex characters each.",
        why="A descriptor that cannot be read declares nothing, and a reader that ignores it decodes by habit.",
        evidence="The text; proved.",
        proves_not="What it was meant to say.",
        sample="grit-unreadable",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Texts with a fault."""
        for item in facts.once(found):
            if item.fault:
                yield self.hit(
                    subject(facts, item),
                    f"GRIT descriptor is unreadable: {item.fault}",
                    fold=item.fault,
                    many=f"{{count}} GRIT descriptors are unreadable: {item.fault}",
                    impact="none on weights; the declared contract is lost",
                    try_=f"write {item.source} again",
                    severity="violation" if item.tensor is not None else "warning",
                    data={"fault": item.fault},
                )


class GritFrame(Rule):
    """A descriptor whose frame cannot be believed."""

    code = "QR002"
    name = "grit-frame"
    severity = "violation"
    page = Page(
        checks="Magic, version, reserved bits and combinations that version 1 rules out; placement words.",
        why="A header that cannot be believed cannot have a knowable contract.",
        evidence="The 64 bytes, in the order of tests that GRIT prescribes; proved.",
        proves_not="A sound frame can still describe another tensor.",
        sample="grit-frame",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Frame and placement faults."""
        for item in facts.once(found):
            if item.descriptor is None:
                continue
            fault = frame_fault(item.descriptor) or placement_fault(item.descriptor)
            if fault is not None:
                yield self.hit(
                    subject(facts, item),
                    f"GRIT frame is not sound: {fault}",
                    fold=fault,
                    many=f"{{count}} GRIT frames are not sound: {fault}",
                    impact="none on weights; the declared contract cannot be used",
                    try_=f"write {item.source} again",
                    data={"fault": fault},
                )


class GritGrade(Rule):
    """The frame contradicts the grade that its id names."""

    code = "QR003"
    name = "grit-grade"
    severity = "disagreement"
    page = Page(
        checks="Whether the fields of a frame are those of the grade behind its id, registered or recovered by trying "
        "every string that the frame leaves open.",
        why="The id is what tools compare; a frame that says something else decodes to other weights under the same id.",
        evidence="The id is a hash of the canonical string: a hit proves the string, a miss that none fits.",
        proves_not="A custom scale rule hashes to an id that cannot be recovered.",
        sample="grit-grade",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Frames against ids."""
        for item in facts.once(found):
            desc = item.descriptor
            if desc is None or frame_fault(desc) is not None:
                continue
            name = grades.BY_ID.get(desc.grade_id)
            if name is not None:
                wrong = disagreements(desc, grades.REGISTRY[name])
                if wrong:
                    yield self._hit(
                        facts, item, f"frame disagrees with {name} in {', '.join(wrong)}"
                    )
                continue
            text = recovered_grade(desc)
            if text is None:
                yield self._hit(
                    facts,
                    item,
                    f"no grade that the frame allows has the id 0x{desc.grade_id:016x}",
                )
            else:
                yield self.hit(
                    subject(facts, item),
                    f"grade is not registered; its id is that of {text}",
                    fold=text,
                    many=f"the grade of {{count}} tensors is not registered; its id is that of {text}",
                    impact="none",
                    try_="",
                    who="nobody",
                    severity="note",
                    data={"grade": text},
                )

    def _hit(self, facts: Facts, item: Found, text: str) -> Hit:
        return self.hit(
            subject(facts, item),
            f"GRIT {text}",
            fold=text,
            impact="tools that go by the id decode otherwise than tools that go by the frame",
            try_=f"write {item.source} again from the producer's contract",
            data={"fault": text},
        )


class GritSizes(Rule):
    """The planes that a descriptor demands are not what is stored."""

    code = "QR004"
    name = "grit-sizes"
    severity = "violation"
    page = Page(
        checks="The four plane sizes that the descriptor gives for the tensor's shape against the bytes stored, and "
        "against the planes of the logical tensor where it is made of several.",
        why="A descriptor of another group size or container cannot be of these bytes.",
        evidence="Size equations of GRIT; proved.",
        proves_not="In safetensors the stored shape cannot be the logical one: both are tried.",
        sample="grit-sizes",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Described tensors whose bytes do not add up."""
        for item, desc, stored in sound(facts):
            if placement_fault(desc) is not None:
                continue
            state = facts.by_stored.get(stored.name)
            shapes = [stored.shape[::-1] if facts.is_gguf else stored.shape, stored.shape]
            if state is not None and state.solved.chosen is not None:
                shapes.append(state.solved.chosen.shape)
            tried: list[str] = []
            fits = False
            for shape in dict.fromkeys(shapes):
                try:
                    wanted = plane_bytes(desc, shape)
                except SizeError as problem:
                    tried.append(f"{list(shape)}: {problem}")
                    continue
                fits = fits or sum(wanted) == stored.nbytes or wanted[0] == stored.nbytes
                tried.append(f"{list(shape)} needs {'+'.join(map(str, wanted))} bytes")
            if not fits:
                yield self.hit(
                    subject(facts, item),
                    f"GRIT sizes do not fit: {tried[0]}, stored are {stored.nbytes}",
                    fold=f"{desc.grade_id}|{desc.k0}",
                    many="GRIT sizes of {count} tensors do not fit their bytes",
                    impact="the descriptor is of other bytes, or the tensor is cut",
                    try_=f"write {item.source} again",
                    data={"tried": tried, "nbytes": stored.nbytes, "planes": list(PLANES)},
                )


class GritDangling(Rule):
    """A descriptor of a tensor that is not stored."""

    code = "QR005"
    name = "grit-dangling"
    severity = "disagreement"
    page = Page(
        checks="Whether every described tensor is stored.",
        why="A contract without its tensor is left from another file, or the tensor was renamed.",
        evidence="Names; proved.",
        proves_not="Which of the two it is.",
        sample="grit-dangling",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Names that no file stores."""
        for item in facts.once(found):
            if item.tensor is not None and item.tensor not in facts.stored:
                yield self.hit(
                    subject(facts, item),
                    "GRIT descriptor names a tensor that is not stored",
                    fold="dangling",
                    many="{count} GRIT descriptors name tensors that are not stored",
                    impact="none on weights",
                    try_=f"remove {item.source}, or rename it",
                    severity="note" if facts.incomplete else None,
                    data={},
                )


class GritContradicts(Rule):
    """A descriptor says something else of a tensor than its planes or other declarations do."""

    code = "QR006"
    name = "grit-contradicts"
    severity = "disagreement"
    page = Page(
        checks="Group size and zero-point convention of the descriptor against what the planes fit.",
        why="A tool that trusts the descriptor decodes other weights.",
        evidence="The solved reading of the tensor and the strength of its evidence.",
        proves_not="That the descriptor is the one at fault.",
        sample="grit-contradicts",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Described logical tensors."""
        for item, desc, stored in sound(facts):
            state = facts.by_stored.get(stored.name)
            reading = state.reading or state.solved.chosen if state is not None else None
            if state is None or reading is None or not state.solved.solutions:
                continue
            if reading.group and reading.group[0].axis == "in" and reading.group_size != desc.k0:
                yield self._hit(
                    facts, item, "group", f"groups of {desc.k0}", f"groups of {reading.group_size}"
                )
            if desc.flags & words.HAS_ZP and reading.zero == "integer":
                said = "minus_one" if desc.flags & words.ZP_MINUS1 else "as_is"
                inferred = state.contract["zero_convention"].inferred
                firm = inferred is not None and inferred.strength not in ("weak", "convention")
                if firm and inferred is not None and inferred.value != said:
                    yield self._hit(facts, item, "zero_convention", said, str(inferred.value))

    def _hit(self, facts: Facts, item: Found, field: str, said: str, actual: str) -> Hit:
        base = subject(facts, item)
        return self.hit(
            Subject(
                tensor=base.tensor,
                stored=base.stored,
                file=base.file,
                field=field,
                config_key=base.config_key,
            ),
            f"GRIT says {zero_words(said)}, the planes fit {zero_words(actual)}",
            fold=f"{field}|{said}|{actual}",
            many=f"GRIT says {zero_words(said)} of {{count}} tensors, their planes fit {zero_words(actual)}",
            impact="tools that trust the descriptor decode other weights",
            try_=f"write {item.source} again",
            data={"said": said, "actual": actual, "field": field},
        )


class GritInexpressible(Rule):
    """A described tensor whose contract GRIT version 1 has no words for."""

    code = "QR007"
    name = "grit-inexpressible"
    severity = "note"
    page = Page(
        checks="Whether the formats of a described tensor's planes are in the grammar of GRIT version 1.",
        why="Where a contract cannot be said, the nearest words describe other weights.",
        evidence="The grammar: eleven formats, no bfloat16, no E5M2, no three- or five-bit integers, no codebooks; one "
        "container tensor for all planes.",
        proves_not="A fault of the file.",
        sample="grit-inexpressible",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Described tensors with several stored planes, or with a format outside the grammar."""
        for item, _, stored in sound(facts):
            state = facts.by_stored.get(stored.name)
            if state is None:
                continue
            several = len(state.tensor.stored_names()) > 1
            missing = sorted(
                {p.dtype for p in state.tensor.planes if p.dtype in ("BF16", "F8_E5M2", "F64")}
            )
            if not several and not missing:
                continue
            text = (
                f"{len(state.tensor.stored_names())} stored tensors make one weight; GRIT 1 binds a descriptor to one"
                if several
                else f"GRIT 1 has no word for {', '.join(missing)}"
            )
            yield self.hit(
                subject(facts, item),
                text,
                fold=text,
                many=text + " ({count} tensors)",
                impact="none on weights; the descriptor cannot be complete",
                try_="",
                who="nobody",
                data={"formats": missing, "planes": len(state.tensor.stored_names())},
            )


class GritIdentity(Rule):
    """Contract and content ids of described tensors."""

    code = "QR008"
    name = "grit-identity"
    severity = "note"
    needs = "deep"
    page = Page(
        checks="The gid of every described tensor whose grade is known, and the digest of its bytes.",
        why="Two tools that print the same gid mean the same contract; the same digest, the same bytes.",
        evidence="FNV-1a over the canonical grade, the frame and the shape; over the planes.",
        proves_not="FNV-1a is no proof of origin: ids can be forged.",
        sample="grit-good",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Ids as data of one folded note."""
        for item, desc, stored in sound(facts):
            text = recovered_grade(desc)
            if text is None:
                continue
            shape = stored.shape[::-1] if facts.is_gguf else stored.shape
            printed = identity.crockford32(identity.gid(desc.frame, text, shape))
            yield self.hit(
                subject(facts, item),
                f"gid {printed}" + self._digest(facts, desc, stored, shape),
                fold=printed,
                many=f"gid {printed} ({{count}} tensors)",
                impact="none",
                try_="",
                who="nobody",
                data={"gid": printed, "grade": text},
            )

    @staticmethod
    def _digest(
        facts: Facts, desc: Descriptor, stored: StoredTensor, shape: tuple[int, ...]
    ) -> str:
        reader: PlaneReader | None = facts.reader
        if reader is None or stored.nbytes > MAX_DIGEST_BYTES or prod(shape) == 0:
            return ""
        try:
            sizes = plane_bytes(desc, shape)
            if sum(sizes) != stored.nbytes:
                return ""
            data = reader.read_bytes("codes", stored.file_id, stored.byte_offset, stored.nbytes)
        except (SizeError, QuantscopeError):
            return ""
        planes, start = [], 0
        for size in sizes:
            planes.append(data[start : start + size])
            start += size
        return f", digest {identity.digest(planes).hex()}"


RULES = (
    GritText,
    GritFrame,
    GritGrade,
    GritSizes,
    GritDangling,
    GritContradicts,
    GritInexpressible,
    GritIdentity,
)
