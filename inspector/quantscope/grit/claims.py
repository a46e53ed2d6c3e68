"""What descriptors declare of the tensors that they describe, in the words of a contract.

Only fields that both vocabularies have: the innermost group size and how a stored zero point is read. GRIT v1
has no words for several planes in several tensors, for bfloat16 scales, codebooks, or an order of columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantscope.containers.records import OpenedFile
from quantscope.grit import words
from quantscope.grit.descriptor import Descriptor, frame_fault
from quantscope.grit.locate import descriptors
from quantscope.model import Claim, Source


def claims_by_tensor(files: Sequence[OpenedFile]) -> dict[str, tuple[Claim, ...]]:
    """Claims of every descriptor with a believable frame, by the name of the stored tensor."""
    return {
        item.tensor: tuple(claims_of(item.descriptor, item.source))
        for item in descriptors(files)
        if item.tensor is not None
        and item.descriptor is not None
        and frame_fault(item.descriptor) is None
    }


def claims_of(desc: Descriptor, source: Source) -> list[Claim]:
    """Claims of one descriptor."""
    found = [Claim(field="group", value={"size": desc.k0}, source=source, written=desc.k0)]
    if desc.flags & words.HAS_ZP:
        convention = "minus_one" if desc.flags & words.ZP_MINUS1 else "as_is"
        found.append(
            Claim(field="zero_convention", value=convention, source=source, written=desc.flags)
        )
    return found
