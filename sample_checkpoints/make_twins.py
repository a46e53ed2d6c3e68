"""Make the twin pair: a GPTQ and an AWQ checkpoint of the same weights with byte-identical zero planes.

Synthetic by construction, from slices of real weights: every code lies within six steps of its zero, so the same
weight can be written around two different zeros. Stored field i of a word is m_i in both files. GPTQ (v1) means
zero m_i + 1 for output channel 8c+i; AWQ means zero m_i for output channel 8c + order[i]. Both files decode to the
same weights, and swapping the rules shifts every weight by one step.

    python sample_checkpoints/make_twins.py BASE_FOLDER OUTPUT_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

ROWS, COLS, GROUP = 64, 256, 32
SPAN = 6
"""Steps from the zero to the farthest code."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SEED = 20260901


def main(base: Path, target: Path) -> None:
    """Write OUTPUT/twin-gptq and OUTPUT/twin-awq."""
    weights = load_file(base / "model.safetensors")
    rng = np.random.default_rng(SEED)
    gptq: dict[str, np.ndarray] = {}
    awq: dict[str, np.ndarray] = {}
    for name in sorted(weights):
        if not name.endswith("_proj.weight"):
            continue
        module = name.removesuffix(".weight")
        planes = _planes(weights[name][:ROWS, :COLS].astype(np.float32), rng)
        for kind, tensors in (("gptq", gptq), ("awq", awq)):
            for suffix, array in planes[kind].items():
                tensors[f"{module}.{suffix}"] = array
    config = json.loads((base / "config.json").read_text())
    plain = {
        "hidden_size": COLS,
        "num_hidden_layers": config["num_hidden_layers"],
        "architectures": config["architectures"],
        "model_type": config["model_type"],
        "note": "slices of real layers, not a model that runs",
    }
    _write(
        target / "twin-gptq",
        gptq,
        plain,
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": GROUP,
            "desc_act": False,
            "sym": False,
            "checkpoint_format": "gptq",
        },
    )
    _write(
        target / "twin-awq",
        awq,
        plain,
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "version": "gemm",
        },
    )


def _planes(weight: np.ndarray, rng: np.random.Generator) -> dict[str, dict[str, np.ndarray]]:
    groups = weight.reshape(ROWS, COLS // GROUP, GROUP)
    scale = (np.abs(groups).max(axis=2) / SPAN).astype(np.float16)
    scale = np.where(scale == 0, np.float16(1), scale)
    steps = np.rint(groups / scale.astype(np.float32)[:, :, None])
    steps = np.clip(steps, -SPAN, SPAN).astype(np.int16)
    fields = rng.integers(6, 9, size=(COLS // GROUP, ROWS // 8, 8)).astype(np.uint32)
    words = (fields << (4 * np.arange(8, dtype=np.uint32))).sum(axis=2, dtype=np.uint32)
    gptq_zero = fields.reshape(COLS // GROUP, ROWS).astype(np.int16) + 1
    awq_zero = np.empty((COLS // GROUP, ROWS // 8, 8), dtype=np.int16)
    awq_zero[:, :, list(AWQ_ORDER)] = fields.astype(np.int16)
    awq_zero = awq_zero.reshape(COLS // GROUP, ROWS)
    gptq_codes = (steps + gptq_zero.T[:, :, None]).reshape(ROWS, COLS).astype(np.uint32)
    awq_codes = (steps + awq_zero.T[:, :, None]).reshape(ROWS, COLS).astype(np.uint32)
    along_in = gptq_codes.T.reshape(COLS // 8, 8, ROWS)
    shifts = 4 * np.arange(8, dtype=np.uint32)
    gptq_words = (along_in << shifts[None, :, None]).sum(axis=1, dtype=np.uint32)
    along_out = awq_codes.T.reshape(COLS, ROWS // 8, 8)[:, :, list(AWQ_ORDER)]
    awq_words = (along_out << shifts).sum(axis=2, dtype=np.uint32)
    shared = {"qzeros": words.view(np.int32), "scales": np.ascontiguousarray(scale.T)}
    return {
        "gptq": {
            "qweight": gptq_words.view(np.int32),
            "g_idx": (np.arange(COLS) // GROUP).astype(np.int32),
            **shared,
        },
        "awq": {"qweight": awq_words.view(np.int32), **shared},
    }


def _write(
    folder: Path,
    tensors: dict[str, np.ndarray],
    config: dict[str, object],
    declared: dict[str, object],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # The writer dumps memory as it lies: only C-contiguous arrays come out as their shape says.
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps({**config, "quantization_config": declared}, indent=1, sort_keys=True)
    (folder / "config.json").write_text(text + "\n")
    provenance = {
        "synthetic": True,
        "made_by": "sample_checkpoints/make_twins.py",
        "weights": "slices of SmolLM2-135M (HuggingFaceTB, Apache-2.0), its Q4_1 GGUF dequantized",
        "what": "same weights, byte-identical qzeros, different zeros: see the maker's docstring",
    }
    (folder / "PROVENANCE.json").write_text(json.dumps(provenance, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
