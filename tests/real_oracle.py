"""What EXPECTED.json of a real checkpoint demands, as checks that raise AssertionError."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_builder import read_safetensors_values
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.decode.roundings import round_to
from quantscope.decode.window import decode_window
from quantscope.session.inspection import Inspection, TensorState
from quantscope.session.pipeline import Scope, inspect


class RealCheckpoint:
    """One folder of the real set, opened and inspected once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[str, Any] = json.loads((folder / "EXPECTED.json").read_text())
        self.checkpoint = Checkpoint.open(str(folder))
        self.inspection: Inspection = inspect(self.checkpoint, Scope(sample_groups=4096))

    def expectation(self, name: str) -> dict[str, Any] | None:
        """What is said of a tensor: its own entry, else the first pattern that fits."""
        modules = self.expected["modules"]
        if name in modules:
            return modules[name]
        return next((e for p, e in modules.items() if fnmatch.fnmatchcase(name, p)), None)

    def oracle(self) -> dict[str, Any]:
        """The producer's own dequantized weights, float32 [out, in]."""
        return read_safetensors_values(self.folder / "oracle.safetensors")

    def decode(self, name: str, as_producer: bool) -> Any:
        """Our decode of a whole tensor under the reading in force."""
        state = self.inspection.state(name)
        reading = state.reading
        assert reading is not None, f"{name} has no reading"
        rows, cols = reading.shape[-2:]
        return decode_window(
            self.checkpoint.family(state.tensor),
            state.tensor,
            reading,
            Window(range(rows), range(cols)),
            self.checkpoint.reader(),
            as_producer=as_producer,
        )


def check_statements(real: RealCheckpoint) -> None:
    """Family word, counts and every contract field of every module."""
    expected, inspection = real.expected, real.inspection
    grouping = real.checkpoint.grouping
    assert not grouping.failures, grouping.failures
    assert not grouping.unrecognised, [t.name for t in grouping.unrecognised]
    assert not grouping.orphans, grouping.orphans
    words = {expected["family"], *expected.get("family_aliases", ())}
    assert len(inspection.states) == expected["n_quantized_tensors"]
    plain = [t for t in grouping.plain if len(t.shape) >= 2]
    assert len(plain) == expected["unquantized_weights"], [t.name for t in plain]
    for state in inspection.states:
        assert state.tensor.word in words, (state.tensor.name, state.tensor.word)
        entry = real.expectation(state.tensor.name)
        assert entry is not None, f"{state.tensor.name} is not expected"
        problems = list(differences(state, entry))
        assert not problems, (state.tensor.name, problems)


def differences(state: TensorState, entry: dict[str, Any]) -> Any:
    """Contract values that differ from an entry of `modules`: (field, expected, found)."""
    value = state.contract.value
    yield from _differs("element", entry["element"], value("element"))
    group = dict(entry["group"])
    if entry.get("super_block", group["size"]) != group["size"]:
        group["outer"] = [{"axis": "in", "size": entry["super_block"]}]
    yield from _differs("group", group, value("group"))
    scale = value("scale")
    if not str(entry["scale_dtype"]).startswith("u8 nested"):
        yield from _differs("scale dtype", entry["scale_dtype"], scale["dtype"])
    yield from _differs("scale direction", entry["scale_direction"], scale["direction"])
    if "super_block" not in entry:  # half scales of ggml blocks carry a sign by definition
        yield from _differs("scale signed", entry.get("scale_signed", False), scale["signed"])
    second = entry.get("second_level")
    if second is not None:
        found = scale.get("second_level", {})
        wanted = {"dtype": second["scale_dtype"], **second}
        del wanted["scale_dtype"]
        yield from _differs("second level", wanted, found)
    zero = entry["zero_convention"]
    if zero in ("as_is", "minus_one"):
        yield from _differs("zero", "integer", value("zero"))
        yield from _differs("zero_convention", zero, value("zero_convention"))
    else:
        allowed = [zero, *entry.get("zero_convention_alternatives", ())]
        if value("zero") not in allowed:
            yield ("zero", allowed, value("zero"))
    if entry["symmetric"] is not None:
        yield from _differs("symmetric", entry["symmetric"], value("symmetric"))
    order = "act_order" if entry["act_order"] else "natural"
    yield from _differs("order", order, value("order") or "natural")


def _differs(field: str, expected: Any, found: Any) -> Any:
    if expected != found:
        yield field, expected, found


def check_equations(real: RealCheckpoint) -> None:
    """Some reading solves the sizes of every tensor, and no declaration contradicts another or the bytes."""
    for state in real.inspection.states:
        broken = [e for e in state.solved.equations if e.holds is False]
        assert state.solved.solutions, (state.tensor.name, broken)
        assert not broken, (state.tensor.name, broken)
        assert state.solved.declared_holds is not False, state.tensor.name
        torn = {
            field: (state_field.declared, state_field.inferred)
            for field, state_field in state.contract.fields.items()
            if state_field.match == "disagree"
        }
        assert not torn, (state.tensor.name, torn)


def check_declarations(real: RealCheckpoint) -> None:
    """Every declaration is found at its place, and the zero convention is declared where EXPECTED says."""
    declared = real.checkpoint.declarations
    found: dict[str, Any] = {str(source): value for source, value in declared.leaves()}
    claims = [claim for state in real.inspection.states for claim in state.claims]
    for claim in claims:
        found.setdefault(str(claim.source), claim.written)
    for key, places in real.expected["declares"].items():
        for place in places:
            at = place["at"]
            if "*" in at:
                assert _claimed(key, place["value"], claims), (key, place)
            elif not isinstance(place["value"], dict):
                if at.startswith("hf_quant_config.json#/producer"):
                    continue
                assert at in found or _inside(declared, at, place["value"]), (key, at)
                if at in found:
                    assert found[at] == place["value"], (at, found[at])
    sources = {str(claim.source) for claim in claims if claim.field in ("zero", "zero_convention")}
    by = real.expected["zero_convention_declared_by"]
    if by is None:
        assert not [c for c in claims if c.field == "zero_convention"]
    elif by == "tensor type id":
        assert all(source.endswith(":type") for source in sources)
        assert sources
    elif "*" in by:
        assert any(source.startswith(by.partition("*")[0]) for source in sources), sources
    else:
        assert by in sources, sources


def _claimed(key: str, value: Any, claims: Any) -> bool:
    name = key.rpartition(".")[2]
    if value == [None]:  # a null attribute says nothing about the weight
        return True
    values = [value, *value] if isinstance(value, list) else [value]
    return any(
        claim.source.pointer.endswith(f"/{name}") and claim.written in values for claim in claims
    )


def _inside(declared: Any, at: str, value: Any) -> bool:
    file, _, pointer = at.partition("#")
    config = declared.configs.get(file)
    node = config.data if config is not None else None
    for escaped in pointer.split("/")[1:]:
        key = escaped.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or key not in node:
            return False
        node = node[key]
    return bool(node == value)


def relative_norm(found: Any, wanted: Any) -> float:
    """Norm of the difference over the norm of what is wanted."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def check_decode(real: RealCheckpoint) -> None:
    """Plain decode compares as `compare_in` says; the producer's arithmetic is bit-equal where `exact_in` names one."""
    rule = real.expected["oracle"]
    oracle = real.oracle()
    assert set(rule["tensors"]) <= set(oracle)
    for name in rule["tensors"]:
        plain = real.decode(name, as_producer=False)
        compare(plain, oracle[name], rule, name)
        if rule["exact_in"] is not None:
            produced = real.decode(name, as_producer=True)
            assert np.array_equal(produced, oracle[name]), (
                name,
                relative_norm(produced, oracle[name]),
            )


def compare(plain: Any, wanted: Any, rule: dict[str, Any], name: str = "") -> None:
    """One tensor against its oracle under `compare_in`."""
    kind = rule["compare_in"]
    assert plain.shape == wanted.shape, (name, plain.shape, wanted.shape)
    if kind == "f32_exact":
        assert np.array_equal(plain, wanted), (name, relative_norm(plain, wanted))
    elif kind in ("f16_rounded", "bf16_rounded"):
        rounded = round_to(plain, kind.removesuffix("_rounded"))
        assert np.array_equal(rounded, wanted), (name, relative_norm(rounded, wanted))
    else:
        limit = rule["tolerance_f32"] * 1.05
        if kind.startswith("tolerance:"):
            limit = max(limit, float(kind.partition(":")[2]))
        assert relative_norm(plain, wanted) <= limit, (name, relative_norm(plain, wanted), limit)


def flip(path: Path, span: Any, bit: int | None = None) -> None:
    """Flip the bits of a span in a file, or only one of them, counted from its lowest."""
    with open(path, "r+b") as file:
        file.seek(span.byte_offset)
        word = int.from_bytes(file.read(span.nbytes), "little")
        mask = (1 << span.bit_width) - 1 if bit is None else 1 << bit
        word ^= mask << span.low_bit
        file.seek(span.byte_offset)
        file.write(word.to_bytes(span.nbytes, "little"))


def whole_parts(folder: Path, name: str, reading: Any) -> tuple[Any, Any]:
    """Codes and plain weights of a tensor, from a fresh opening of the folder."""
    with Checkpoint.open(str(folder)) as checkpoint:
        tensor = checkpoint.find(name)
        family = checkpoint.family(tensor)
        window = Window(range(reading.shape[-2]), range(reading.shape[-1]))
        parts = family.parts(tensor, reading, window, checkpoint.reader())
        codes = np.array(parts.codes, copy=True)
        weights = decode_window(family, tensor, reading, window, checkpoint.reader())
        return codes, weights


def check_locate(
    folder: Path, name: str, reading: Any, cells: Any, scale_bit: int | None = None
) -> None:
    """Flipping the bits that `locate` names changes that code and no other, and that scale's weights only.

    Args:
        folder: a writable copy of a checkpoint.
        name: logical tensor.
        reading: reading in force.
        cells: (row, column) pairs.
        scale_bit: which bit of a scale is flipped; one in the middle of its mantissa by default.
    """
    with Checkpoint.open(str(folder)) as checkpoint:
        tensor = checkpoint.find(name)
        family = checkpoint.family(tensor)
        paths = [Path(file.path) for file in checkpoint.opened.files]
        located = {
            cell: family.locate(tensor, reading, *cell, checkpoint.reader()) for cell in cells
        }
        everywhere = {
            (row, col): family.locate(tensor, reading, row, col, checkpoint.reader())
            for row in {r for r, _ in cells}
            for col in range(reading.shape[-1])
        }
    codes, weights = whole_parts(folder, name, reading)
    for (row, col), cell in located.items():
        for span in cell.bits:
            flip(paths[span.file_id], span)
        changed, _ = whole_parts(folder, name, reading)
        for span in cell.bits:
            flip(paths[span.file_id], span)
        where = np.argwhere(changed != codes)
        assert where.tolist() == [[row, col]], (row, col, where[:8].tolist())
        for role, spans in cell.per_plane.items():
            if role == "group_index" or not spans:
                continue
            bit = {32: 20, 16: 5}.get(spans[0].bit_width, 0)
            bit = bit if scale_bit is None else scale_bit
            flip(paths[spans[0].file_id], spans[0], bit)
            _, moved = whole_parts(folder, name, reading)
            flip(paths[spans[0].file_id], spans[0], bit)
            hit = np.argwhere((moved != weights)[row])[:, 0].tolist()
            same = [
                c for c in range(weights.shape[1]) if everywhere[row, c].per_plane[role] == spans
            ]
            assert set(hit) <= set(same), (role, row, col, hit[:8], same[:8])
            live_codes = codes if reading.zero == "additive_min" else weights
            live = [c for c in same if live_codes[row, c] != 0]
            if role == "scale":
                assert set(live) <= set(hit), (role, row, col)
            assert hit or not live, (role, row, col)
