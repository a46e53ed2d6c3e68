"""Planes that belong together by their names, whatever family they are of: who lacks a mate that others have."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from quantscope.containers.records import StoredTensor
from quantscope.rules import names
from quantscope.rules.facts import Facts

CODE_SUFFIXES: tuple[str, ...] = (
    "qweight",
    "weight_packed",
    "W_q",
    "_weight_qdata",
    "weight._data._data",
    "weight._data",
    "q_weight",
    "trellis",
    "codes",
    "Qidxs",
    "B",
    "weight",
)
"""Suffixes of code planes, most telling first; `weight` only in a dtype that is no plain weight's."""

SIDE_KINDS: dict[str, str] = {
    "scales": "SCALE-MISSING",
    "weight_scale": "SCALE-MISSING",
    "weight_scale_inv": "SCALE-MISSING",
    "weight_scale_2": "SCALE-MISSING",
    "weight_global_scale": "SCALE-MISSING",
    "scale_weight": "SCALE-MISSING",
    "qscale_weight": "SCALE-MISSING",
    "weight_scales": "SCALE-MISSING",
    "scale": "SCALE-MISSING",
    "SCB": "SCALE-MISSING",
    "_weight_scale": "SCALE-MISSING",
    "weight._scale": "SCALE-MISSING",
    "s": "SCALE-MISSING",
    "s_channel": "SCALE-MISSING",
    "s_group": "SCALE-MISSING",
    "q_scale": "SCALE-MISSING",
    "q_scale_max": "SCALE-MISSING",
    "suh": "SCALE-MISSING",
    "svh": "SCALE-MISSING",
    "codebooks": "SCALE-MISSING",
    "biases": "ZP-PRESENCE",
    "qzeros": "ZP-PRESENCE",
    "weight_zero_point": "ZP-PRESENCE",
    "_weight_zero_point": "ZP-PRESENCE",
    "weight._shift": "ZP-PRESENCE",
    "zero": "ZP-PRESENCE",
    "g_idx": "G-IDX",
    "weight_g_idx": "G-IDX",
    "q_invperm": "G-IDX",
    "q_groups": "GROUP",
    "weight_shape": "BITS",
    "input_scale": "INPUT-SCALE",
    "input_global_scale": "INPUT-SCALE",
    "weight.absmax": "BNB",
    "weight.quant_map": "BNB",
    "weight.nested_absmax": "BNB",
    "weight.nested_quant_map": "BNB",
    "weight.quant_state.bitsandbytes__nf4": "BNB",
    "weight.quant_state.bitsandbytes__fp4": "BNB",
}
"""Side planes of a quantized module, with the fault kind of one that is not there."""

BNB_SUFFIXES = tuple(suffix for suffix, kind in SIDE_KINDS.items() if kind == "BNB")

PLAIN_WEIGHTS = frozenset({"F64", "F32", "F16", "BF16"})


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """One module's quantized planes by suffix."""

    name: str
    code: StoredTensor | None
    sides: frozenset[str]


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A module that lacks a side plane which its like has."""

    module: str
    code: StoredTensor | None
    suffix: str
    have: int
    """Modules of the same place and dtype that store it."""
    of: int


def modules(facts: Facts) -> dict[str, Module]:
    """Every module that stores a plane of a known suffix."""
    by_module: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    known = set(SIDE_KINDS) | set(CODE_SUFFIXES)
    for name, stored in facts.stored.items():
        for suffix in _suffixes_of(name):
            if suffix in known:
                module = name[: -len(suffix) - 1] if len(name) > len(suffix) else ""
                by_module[module][suffix] = stored
                break
    return {
        name: Module(name=name, code=_code(planes), sides=frozenset(planes) & frozenset(SIDE_KINDS))
        for name, planes in by_module.items()
    }


def _suffixes_of(name: str) -> list[str]:
    """Candidate suffixes of a stored name, longest first."""
    parts = name.split(".")
    return [".".join(parts[-count:]) for count in (3, 2, 1) if len(parts) >= count]


def _code(planes: dict[str, StoredTensor]) -> StoredTensor | None:
    for suffix in CODE_SUFFIXES:
        stored = planes.get(suffix)
        if stored is not None and stored.dtype not in PLAIN_WEIGHTS:
            return stored
    bnb = planes.get("weight")
    return bnb if bnb is not None and "weight.absmax" in planes else None


def odd_ones_out(facts: Facts) -> list[Missing]:
    """Modules without a side plane that others of the same place, code dtype and rank have."""
    alike: dict[tuple[str, str, int], list[Module]] = defaultdict(list)
    for module in facts.once(modules).values():
        if module.code is not None:
            key = (names.role_of(module.name), module.code.dtype, len(module.code.shape))
            alike[key].append(module)
    found: list[Missing] = []
    for group in alike.values():
        counts = Counter(suffix for module in group for suffix in module.sides)
        for suffix, have in counts.items():
            if have == len(group):
                continue
            for module in group:
                if suffix not in module.sides:
                    found.append(
                        Missing(
                            module=module.name,
                            code=module.code,
                            suffix=suffix,
                            have=have,
                            of=len(group),
                        )
                    )
    return found


FP8_SCALE_NAMES = (
    "weight_scale",
    "weight_scale_inv",
    "scale",
    "scales",
    "scale_weight",
    "weight_scales",
    "qscale_weight",
    "scale_inv",
    "weight.scale",
    "weight_scale_2",
    "wscales",
)
"""Suffixes under which some producer stores the scale of an FP8 matrix."""


def fp8_matrices(facts: Facts) -> list[tuple[str, StoredTensor, bool]]:
    """(module, stored, whether it has a scale) of every FP8 matrix."""
    found = []
    for name, stored in facts.stored.items():
        if (
            not stored.dtype.startswith("F8_E")
            or stored.dtype == "F8_E8M0"
            or len(stored.shape) < 2
        ):
            continue
        if name.rpartition(".")[2] in FP8_SCALE_NAMES or name.endswith(("_scale", "_scales")):
            continue
        module = name.removesuffix(".weight").removesuffix(".compressed")
        state = facts.by_stored.get(name)
        planes = state.tensor.planes if state is not None else ()
        scaled = any(p.role.startswith("scale") for p in planes if p.stored_name != name) or any(
            f"{base}{joint}{suffix}" in facts.stored
            for base in (module, name)
            for joint in (".", "_")
            for suffix in FP8_SCALE_NAMES
        )
        found.append((module, stored, scaled))
    return found


def any_fp8_scale(facts: Facts) -> bool:
    """Whether any FP8 matrix has a scale."""
    return any(scaled for _, _, scaled in facts.once(fp8_matrices))


def without_codes(facts: Facts) -> list[tuple[str, str, StoredTensor]]:
    """(module, suffix, stored) of weight scales whose module stores no codes though others' do."""
    known = facts.once(modules)
    paired = {
        suffix for module in known.values() if module.code is not None for suffix in module.sides
    }
    found = []
    for module in known.values():
        if module.code is not None:
            continue
        for suffix in sorted(module.sides & paired):
            if SIDE_KINDS[suffix] in ("SCALE-MISSING", "ZP-PRESENCE", "G-IDX") and suffix not in (
                "scale",
                "zero",
                "s",
                "biases",
            ):
                stored = facts.stored.get(f"{module.name}.{suffix}" if module.name else suffix)
                if stored is not None:
                    found.append((module.name, suffix, stored))
    return found
