"""Every CUDA kernel on synthetic and sample tensors; writes the evidence record.

    python benchmarks/gpu_parity.py [--out docs/evidence/gpu_parity.json] [CHECKPOINT ...]

Run it on a machine with an NVIDIA device and with the packages whose kernels are wanted (torch for CUDA, bitsandbytes,
triton, vllm, llama-cpp-python with CUDA). The record names device, driver, CUDA, versions, shapes, seeds, digests of the
bytes, the declared rounding points, the worst errors, codes recovered, controls, every traced kernel name, and for each
kernel that did not run the reason. Exit code 4 without a device, 1 where something did not hold.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from quantscope import __version__
from quantscope.errors import QuantscopeError
from quantscope.parity.entries import kernel_gate
from quantscope.parity.model import BackendState, ParityRun, Settings
from quantscope.parity.run import backends, run_checkpoint
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
SHAPES = ((1024, 4096), (4096, 1024))
GROUP = 128
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def words_along(
    codes: np.ndarray, axis: int, places: tuple[int, ...] = tuple(range(8))
) -> np.ndarray:
    """4-bit codes as int32 words along an axis; `places` holds the nibble of each of eight codes."""
    eights = np.moveaxis(codes, axis, -1)
    eights = eights.reshape(*eights.shape[:-1], -1, 8).astype(np.uint64)
    words = np.zeros(eights.shape[:-1], np.uint64)
    for number, place in enumerate(places):
        words |= eights[..., number] << np.uint64(4 * place)
    return np.ascontiguousarray(np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis))


def layer(
    n: int, k: int, seed: int, *, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes [K, N], zeros [G, N], scales f16 [G, N]), bell-shaped around the zeros."""
    made = np.random.default_rng(seed)
    groups = k // GROUP
    zero = np.full((groups, n), 8) if symmetric else made.integers(4, 12, (groups, n))
    scale = made.uniform(0.004, 0.02, (groups, n)).astype(np.float16)
    codes = np.clip(np.rint(made.normal(np.repeat(zero, GROUP, axis=0), 2.2)), 0, 15)
    return codes.astype(np.int64), zero, scale


def write(folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any]) -> Path:
    """A checkpoint of one file."""
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def gptq(folder: Path, *, symmetric: bool) -> Path:
    """GPTQ v1, two layers."""
    tensors = {}
    for number, (n, k) in enumerate(SHAPES):
        codes, zero, scale = layer(n, k, number, symmetric=symmetric)
        name = f"model.layers.{number}.mlp.up_proj"
        tensors[f"{name}.qweight"] = words_along(codes, 0)
        tensors[f"{name}.qzeros"] = words_along((zero - 1) & 15, 1)
        tensors[f"{name}.scales"] = scale
        tensors[f"{name}.g_idx"] = (np.arange(k) // GROUP).astype(np.int32)
    config = {"bits": 4, "group_size": GROUP, "sym": symmetric, "desc_act": False}
    return write(folder, tensors, config | {"quant_method": "gptq", "checkpoint_format": "gptq"})


def awq(folder: Path) -> Path:
    """AWQ GEMM, two layers."""
    tensors = {}
    for number, (n, k) in enumerate(SHAPES):
        codes, zero, scale = layer(n, k, number + 10, symmetric=False)
        name = f"model.layers.{number}.mlp.up_proj"
        tensors[f"{name}.qweight"] = words_along(codes, 1, AWQ_PLACES)
        tensors[f"{name}.qzeros"] = words_along(zero, 1, AWQ_PLACES)
        tensors[f"{name}.scales"] = scale
    config = {"bits": 4, "group_size": GROUP, "zero_point": True}
    return write(folder, tensors, config | {"quant_method": "awq", "version": "gemm"})


def checkpoints(folder: Path, given: list[str]) -> list[str]:
    """Synthetic checkpoints, the samples of this repository, those that were given."""
    made = [
        gptq(folder / "gptq-asym", symmetric=False),
        gptq(folder / "gptq-sym", symmetric=True),
        awq(folder / "awq"),
    ]
    samples = sorted(p for p in (ROOT / "sample_checkpoints").glob("*") if p.is_dir())
    return [str(path) for path in (*made, *samples)] + given


def device_facts() -> dict[str, Any] | None:
    """The device, its driver and torch's CUDA; None without a device."""
    import torch

    if not torch.cuda.is_available():
        return None
    capability = torch.cuda.get_device_capability()
    driver = ""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(
            query, capture_output=True, text=True, timeout=30, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        driver = "not stated"
    return {
        "name": torch.cuda.get_device_name(),
        "capability": f"{capability[0]}.{capability[1]}",
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
    }


def one(path: str, name: str, root: Path) -> dict[str, Any]:
    """One kernel on one checkpoint, as the record lists it."""
    shown = str(Path(path).relative_to(root)) if path.startswith(str(root)) else Path(path).name
    try:
        run: ParityRun = run_checkpoint(
            path, name, sample=3, keep=False, settings=Settings(max_columns=512, timeout_s=300.0)
        )
    except QuantscopeError as problem:
        return {"checkpoint": shown, "kernel": name, "error": problem.message}
    results = [msgspec.to_builtins(result) for result in run.results]
    return {
        "checkpoint": shown,
        "kernel": name,
        "gate": kernel_gate(run).as_json(),
        "coverage": msgspec.to_builtins(run.coverage),
        "results": results,
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Outcomes by kernel."""
    counts: dict[str, dict[str, int]] = {}
    for run in runs:
        per = counts.setdefault(run["kernel"], {})
        for result in run.get("results", ()):
            word = result["outcome"] or result["status"]
            per[word] = per.get(word, 0) + 1
            if result["execution"]["proof"] == "proved":
                per["proved"] = per.get("proved", 0) + 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="*", help="more checkpoints")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "gpu_parity.json")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run of this script"
    )
    options = parser.parse_args()
    try:
        facts = device_facts()
    except ImportError:
        print("torch is not installed", file=sys.stderr)
        return 4
    if facts is None and options.device == "cuda":
        print("no CUDA device: nothing was run and no record was written", file=sys.stderr)
        return 4
    states: list[BackendState] = backends(probe=True)
    names = [
        f"{state.name}:{kernel.name}@{kernel.device}"
        for state in states
        for kernel in state.kernels
        if kernel.device == options.device and kernel.reason is None and kernel.executes
    ]
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for path in checkpoints(Path(folder), options.checkpoints):
            root = Path(folder) if path.startswith(folder) else ROOT
            for name in names:
                started = time.monotonic()
                runs.append(one(path, name, root))
                print(f"{name:<32} {runs[-1]['checkpoint']:<40} {time.monotonic() - started:.1f} s")
    record = {
        "tool": {"name": "quantscope", "version": __version__},
        "device": facts,
        "platform": platform.platform(),
        "backends": msgspec.to_builtins(states),
        "summary": summary(runs),
        "runs": [
            run for run in runs if run.get("coverage", {}).get("layers_run") or run.get("error")
        ],
        "not_run": {
            f"{state.name}:{kernel.name}@{kernel.device}": f"{kernel.reason}: {kernel.detail}"
            for state in states
            for kernel in state.kernels
            if kernel.device == options.device and kernel.reason is not None
        },
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print(f"wrote {options.out}")
    return 1 if any("did_not_hold" in counts for counts in record["summary"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
