"""Families get planes of any dtype and shape and any config; nothing may raise but typed errors of reading."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import Raw, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.decode.window import decode_window
from quantscope.errors import QuantscopeError
from quantscope.families.registry import FamilyRegistry

DATA = Path(__file__).parent / "data"

FAMILIES = (
    "awq_gemm", "awq_gemv", "awq_gemv_fast", "awq_marlin", "bnb_4bit", "bnb_int8", "ct_float", "ct_int",
    "ct_mx", "ct_nvfp4", "ct_pack", "fp8", "gptq", "gptq_gguf", "marlin_legacy", "mlx_affine", "mlx_float",
    "mxfp8", "nvfp4",
)  # fmt: skip

SUFFIXES = (
    "qweight", "qzeros", "scales", "g_idx", "bias", "B", "s", "scaled_zeros", "weight", "weight_packed",
    "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "weight_global_scale",
    "weight_scale_2", "weight_scale_inv", "qscale_weight", "scale_weight", "scale", "SCB", "weight_scb",
    "weight_format", "biases", "qbiases", "global_scale", "input_scale", "k_scale", "comfy_quant",
    "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4", "weight_quant_state",
    "weight_absmax", "scaled_fp8",
)  # fmt: skip

DTYPES = {
    "U8": 1, "I8": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "F8_E4M3": 1,
    "F8_E5M2": 1, "F8_E8M0": 1, "BOOL": 1, "F64": 8,
}  # fmt: skip

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 4, 8, 3, 128, 10**18, 1.5, "", "gptq", "in", [], [128, 128], [0, "x"], {},
    {"weights": {"num_bits": 4, "group_size": 0, "strategy": "block", "block_structure": [0, -1]}},
    "re:(a+)+$", ["re:[", "Linear", 5], {"a.b": {"bits": "four"}}, "x" * 600,
)  # fmt: skip

METHODS = (
    "gptq", "awq", "compressed-tensors", "fp8", "bitsandbytes", "auto-round", "modelopt", "quark", "metal",
    "fbgemm_fp8", "gguf", "marlin", "mxfp8",
)  # fmt: skip

KEYS = (
    "bits", "w_bit", "group_size", "sym", "desc_act", "static_groups", "checkpoint_format", "format", "version",
    "zero_point", "packing_format", "extra_config", "dynamic", "modules_to_not_convert", "config_groups",
    "ignore", "weight_block_size", "weight_scale_semantics", "quant_algo", "quantized_layers",
    "exclude_modules", "global_quant_config", "layer_quant_config", "exclude", "load_in_4bit",
    "bnb_4bit_quant_type", "bnb_4bit_quant_storage", "mode", "data_type", "fmt", "scale_fmt", "m",
)  # fmt: skip


def random_config(generator: random.Random) -> dict[str, Any]:
    section = {key: generator.choice(JUNK) for key in generator.sample(KEYS, 12)}
    section["quant_method"] = generator.choice((*METHODS, None, 7))
    if generator.random() < 0.3:
        del section["quant_method"]
    return {"quantization_config": section, "quantization": generator.choice(JUNK)}


def random_tensors(generator: random.Random) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for module in ("m", "n.self_attn.q_proj"):
        for suffix in generator.sample(SUFFIXES, generator.randint(2, 9)):
            dtype = generator.choice(tuple(DTYPES))
            extents = (0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 5)
            shape = tuple(generator.choice(extents) for _ in range(generator.randint(0, 3)))
            count = int(np.prod(shape, dtype=object)) if shape else 1
            data = generator.randbytes(count * DTYPES[dtype])
            if "quant_state" in suffix and generator.random() < 0.7:
                state = {"quant_type": "nf4", "shape": generator.choice(JUNK), "blocksize": 64}
                data = json.dumps(state).encode()
                dtype, shape = "U8", (len(data),)
            tensors[f"{module}.{suffix}"] = Raw(dtype, shape, data)
    return tensors


def corners(shape: tuple[int, ...]) -> list[Window]:
    rows, cols = shape[-2], shape[-1]
    row, col = min(rows, 3), min(cols, 40)
    return [
        Window(range(row), range(col)),
        Window(range(rows - row, rows), range(cols - col, cols)),
        Window(range(0), range(col)),
    ]


@pytest.fixture(scope="module")
def registry() -> FamilyRegistry:
    return FamilyRegistry.from_entry_points()


def check_families(checkpoint: Checkpoint, registry: FamilyRegistry) -> int:
    """Call every method of every family on what it groups; returns how many readings solved."""
    solved_count = 0
    reader = checkpoint.reader()
    for name in FAMILIES:
        family = registry[name]
        for tensor in family.group(checkpoint.index, checkpoint.declarations):
            if not hasattr(tensor, "planes"):
                continue
            tuple(family.claims(tensor, checkpoint.declarations, reader))
            readings = tuple(family.candidates(tensor))
            assert len(readings) < 4000
            solved = [
                reading
                for reading in readings
                if all(e.holds is not False for e in family.equations(tensor, reading))
            ]
            with contextlib.suppress(QuantscopeError):
                tuple(family.evidence(tensor, readings, reader))
            solved_count += len(solved)
            for reading in (*solved[:3], *readings[:2]):
                exercise(family, tensor, reading, reader, reading in solved)
    return solved_count


@pytest.mark.parametrize("seed", range(60))
def test_no_family_raises_on_random_planes(
    seed: int, tmp_path: Path, registry: FamilyRegistry
) -> None:
    generator = random.Random(seed)
    write_checkpoint(
        tmp_path, random_tensors(generator), random_config(generator), {"gptq_bits": "x"}
    )
    with Checkpoint.open(str(tmp_path), registry) as checkpoint:
        check_families(checkpoint, registry)


SAMPLES = sorted(path.parent.name for path in DATA.glob("*/oracle.safetensors"))


@pytest.mark.parametrize("folder", SAMPLES)
@pytest.mark.parametrize("seed", range(4))
def test_no_family_raises_on_damaged_samples(
    folder: str, seed: int, tmp_path: Path, registry: FamilyRegistry
) -> None:
    generator = random.Random(f"{folder}{seed}")
    source = DATA / folder / "model.safetensors"
    if not source.exists():
        pytest.skip("no safetensors sample")
    tensors = {name: as_stored(*entry) for name, entry in read_entries(source).items()}
    for name in generator.sample(sorted(tensors), max(1, len(tensors) // 3)):
        damage(tensors, name, generator)
    config = (
        json.loads((DATA / folder / "config.json").read_text())
        if (DATA / folder / "config.json").exists()
        else None
    )
    write_checkpoint(tmp_path, tensors, config)
    with Checkpoint.open(str(tmp_path), registry) as checkpoint:
        check_families(checkpoint, registry)


def test_the_undamaged_samples_solve(registry: FamilyRegistry) -> None:
    for folder in ("gptqmodel-v2", "mlx-variants", "comfy-kitchen"):
        with Checkpoint.open(str(DATA / folder), registry) as checkpoint:
            assert check_families(checkpoint, registry) >= 6


def read_entries(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    return {
        name: (
            entry["dtype"],
            entry["shape"],
            blob[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def as_stored(dtype: str, shape: list[int], data: bytes) -> Raw:
    return Raw(dtype, tuple(shape), data)


def damage(tensors: dict[str, Raw], name: str, generator: random.Random) -> None:
    """Drop, flatten, transpose, cut, retype or fill one stored tensor."""
    old = tensors[name]
    kind = generator.choice(("drop", "flatten", "turn", "cut", "retype", "noise", "stack"))
    item = DTYPES.get(old.dtype, 1)
    if kind == "drop":
        del tensors[name]
    elif kind == "flatten":
        tensors[name] = Raw(old.dtype, (len(old.data) // item,), old.data)
    elif kind == "turn":
        tensors[name] = Raw(old.dtype, old.shape[::-1], old.data)
    elif kind == "stack":
        tensors[name] = Raw(old.dtype, (1, *old.shape), old.data)
    elif kind == "cut" and old.shape and old.shape[0] > 1:
        row = len(old.data) // old.shape[0]
        tensors[name] = Raw(old.dtype, (old.shape[0] - 1, *old.shape[1:]), old.data[:-row])
    elif kind == "retype":
        same = [word for word, nbytes in DTYPES.items() if nbytes == item]
        tensors[name] = Raw(generator.choice(same), old.shape, old.data)
    else:
        tensors[name] = Raw(old.dtype, old.shape, generator.randbytes(len(old.data)))


def exercise(family: Any, tensor: Any, reading: Any, reader: Any, solved: bool) -> None:
    """Take corners apart and locate elements; under sizes that hold only typed errors may come."""
    if min(reading.shape) <= 0:
        return
    for window in corners(reading.shape):
        if not solved:
            with contextlib.suppress(QuantscopeError):
                decode_window(family, tensor, reading, window, reader)
            continue
        with contextlib.suppress(QuantscopeError), np.errstate(all="ignore"):
            parts = family.parts(tensor, reading, window, reader)
            weights = family.combine(parts, reading, True)
            assert weights.shape == window.shape
            assert weights.dtype == np.float32
    if solved:
        with contextlib.suppress(QuantscopeError):
            cell = family.locate(
                tensor, reading, reading.shape[-2] - 1, reading.shape[-1] - 1, reader
            )
            for span in cell.bits:
                assert 0 < span.bit_width <= 8 * span.nbytes - span.low_bit
