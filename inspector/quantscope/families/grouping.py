"""Stored tensors into logical ones: ask the families, settle competing claims, account for the rest."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from quantscope.containers.records import StoredTensor
from quantscope.families.declarations import Declarations
from quantscope.families.guard import FamilyFailedError, PluginFailure, guarded
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Family
from quantscope.families.registry import FamilyRegistry
from quantscope.model import Companion, LogicalTensor, Orphan

PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16", "C64"})
"""Dtypes of unquantized weights."""

BUFFER_DTYPES = frozenset({"I64", "U64", "BOOL", "I32", "I16", "U16", "U32"})
"""Integer dtypes of buffers such as position ids; quantized-looking only in two or more dimensions."""

WIDE_DTYPES = frozenset({"I64", "U64", "BOOL"})
"""Dtypes of position ids, relative positions and masks of any rank."""

WIDE_CODES = frozenset({"Qidxs", "codes", "weight", "qweight"})
"""Last parts of names under which some quantizers store codes in such a dtype all the same."""

MIN_QUANTIZED_ELEMENTS = 64
"""An integer tensor of fewer elements is a marker or a buffer, not codes."""


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """Every stored tensor accounted for exactly once or shared by logical tensors."""

    tensors: tuple[LogicalTensor, ...]
    companions: tuple[Companion, ...]
    orphans: tuple[Orphan, ...]
    plain: tuple[StoredTensor, ...]
    unrecognised: tuple[StoredTensor, ...]
    failures: tuple[PluginFailure, ...]


def group_tensors(index: TensorIndex, declared: Declarations, registry: FamilyRegistry) -> Grouping:
    """Ask every family whose signature fits and settle what more than one claims.

    Of several families that claim a stored tensor, the one with the highest certainty wins; then the one
    that claims more stored tensors for it; then the first by name.
    """
    claimed: list[LogicalTensor] = []
    companions: list[Companion] = []
    orphans: list[Orphan] = []
    failures: list[PluginFailure] = []
    dtypes = {tensor.dtype for tensor in index.tensors.values()}
    keys = {key for file in index.files.values() for key in file.metadata}
    for family in registry:
        asked = guarded(family)
        try:
            if not _asked(asked, dtypes, keys, index):
                continue
            found = list(asked.group(index, declared))
        except FamilyFailedError as problem:
            failures.append(problem.failure)
            continue
        claimed.extend(item for item in found if isinstance(item, LogicalTensor))
        companions.extend(item for item in found if isinstance(item, Companion))
        orphans.extend(item for item in found if isinstance(item, Orphan))
    tensors = _settle(claimed)
    used = {name for tensor in tensors for name in tensor.stored_names()}
    kept_companions = {c.stored_name: c for c in companions if c.stored_name not in used}
    used |= set(kept_companions)
    kept_orphans = {o.stored_name: o for o in orphans if o.stored_name not in used}
    used |= set(kept_orphans)
    rest = [tensor for name, tensor in index.tensors.items() if name not in used]
    plain = tuple(tensor for tensor in rest if is_plain(tensor))
    return Grouping(
        tensors=tuple(tensors),
        companions=tuple(kept_companions.values()),
        orphans=tuple(kept_orphans.values()),
        plain=plain,
        unrecognised=tuple(tensor for tensor in rest if not is_plain(tensor)),
        failures=tuple(failures),
    )


def is_plain(tensor: StoredTensor) -> bool:
    """Whether a stored tensor nobody claims can be an unquantized weight or a buffer."""
    if tensor.dtype in PLAIN_DTYPES:
        return True
    if tensor.dtype in WIDE_DTYPES and tensor.name.rpartition(".")[2] not in WIDE_CODES:
        return True
    elements = 1
    for extent in tensor.shape:
        elements *= extent
    if elements < MIN_QUANTIZED_ELEMENTS:
        return True
    return tensor.dtype in BUFFER_DTYPES and len(tensor.shape) < 2


def _asked(family: Family, dtypes: set[str], keys: set[str], index: TensorIndex) -> bool:
    """Whether anything of the family's signature is present."""
    signature = family.signature()
    return (
        not dtypes.isdisjoint(signature.dtypes)
        or not keys.isdisjoint(signature.metadata_keys)
        or any(index.names_with_last(part) for part in signature.last_parts)
    )


def _settle(claimed: list[LogicalTensor]) -> list[LogicalTensor]:
    by_stored: dict[str, list[LogicalTensor]] = defaultdict(list)
    for tensor in claimed:
        for name in tensor.stored_names():
            by_stored[name].append(tensor)
    lost: set[int] = set()
    for rivals in by_stored.values():
        families = {tensor.family for tensor in rivals}
        if len(families) < 2:
            continue
        best = max(rivals, key=_rank)
        lost |= {id(tensor) for tensor in rivals if tensor.family != best.family}
    return [tensor for tensor in claimed if id(tensor) not in lost]


def _rank(tensor: LogicalTensor) -> tuple[int, int, str]:
    return tensor.certainty, len(tensor.stored_names()), tensor.family
