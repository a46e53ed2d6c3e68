"""How fast `quantscope decode` gives whole tensors, file to float32 rows, beside the bare decoders.

    python benchmarks/decode_families.py [--gguf FILE | --cache FOLDER | --no-model] [--repeat N] [--size N]

Everything a user pays for is in it: reads through the page cache, scales, zeros, group indices, pieces of rows.
The ratios are to copying and to writing the float32 output in memory, and to gguf-py, in the same run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from decode import GROUP, Job, Timer, best, model_file, one_and_two
from quantscope.checkpoint import Checkpoint
from quantscope.decode.window import decode_window, stream_windows
from quantscope.families.protocol import Family
from quantscope.infer.solver import solve
from quantscope.model import LogicalTensor, Reading
from safetensors.numpy import save_file

Named = tuple[Family, LogicalTensor, Reading]


def write(folder: Path, tensors: dict[str, Any], config: dict[str, Any]) -> Path:
    folder.mkdir()
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def int4_checkpoints(folder: Path, size: int) -> dict[str, Path]:
    """Write one random asymmetric 4-bit weight [size, size] of each of three families."""
    rng = np.random.default_rng(0)

    def words(*shape: int) -> Any:
        return rng.integers(-(2**31), 2**31, shape).astype(np.int32)

    scales = (rng.random((size // GROUP, size)) * 0.01).astype(np.float16)
    weights = {"num_bits": 4, "type": "int", "group_size": GROUP, "strategy": "group"}
    down = {"a.qweight": words(size // 8, size), "a.qzeros": words(size // GROUP, size // 8)}
    along = {"a.qweight": words(size, size // 8), "a.qzeros": words(size // GROUP, size // 8)}
    packed = {
        "a.weight_packed": words(size, size // 8),
        "a.weight_zero_point": words(size // 8, size // GROUP),
        "a.weight_scale": np.ascontiguousarray(scales.T),
        "a.weight_shape": np.array([size, size]),
    }
    index = (np.arange(size) // GROUP).astype(np.int32)
    return {
        "GPTQ": write(
            folder / "gptq",
            down | {"a.scales": scales, "a.g_idx": index},
            {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq"},
        ),
        "AWQ": write(
            folder / "awq",
            along | {"a.scales": scales},
            {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
        ),
        "compressed-tensors": write(
            folder / "ct",
            packed,
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {
                    "group_0": {"targets": ["Linear"], "weights": weights | {"symmetric": False}}
                },
            },
        ),
    }


def readings(checkpoint: Checkpoint) -> list[Named]:
    """Every logical tensor with its family and the reading that its sizes and claims give."""
    found = []
    for tensor in checkpoint.grouping.tensors:
        family = checkpoint.family(tensor)
        claims = tuple(family.claims(tensor, checkpoint.declarations, checkpoint.reader()))
        chosen = solve(family, tensor, claims).chosen
        if chosen is not None:
            found.append((family, tensor, chosen))
    return found


def stream(checkpoint: Checkpoint, named: list[Named]) -> int:
    """Decode tensors piece by piece as the command does; return how many weights there were."""
    reader, count = checkpoint.reader(), 0
    for family, tensor, reading in named:
        for window in stream_windows(reading):
            count += decode_window(family, tensor, reading, window, reader).size
    return count


def limits(size: int, repeat: int, pool: ThreadPoolExecutor) -> dict[str, tuple[float, float]]:
    """Seconds to copy and to write one float32 [size, size], on one thread and on two."""
    outs = [np.empty((size, size), np.float32) for _ in range(2)]
    sources = [np.ones((size, size), np.float32) for _ in range(2)]
    jobs: dict[str, Job] = {
        "memcpy": lambda i: np.copyto(outs[i], sources[i]),
        "float32 write": lambda i: outs[i].fill(1),
    }
    return {name: one_and_two(job, repeat, pool) for name, job in jobs.items()}


def int4(size: int, repeat: int, pool: ThreadPoolExecutor, floor: Any) -> None:
    """Time whole 4-bit tensors through their families."""
    elements = size * size
    print(f"\nint4 through the families, {size} x {size}, groups of {GROUP}, file to float32")
    print(f"{'':28} {'M el/s 1T':>9} {'2T':>9}    of memcpy       of float32 write")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in int4_checkpoints(Path(folder), size).items():
            with Checkpoint.open(str(path)) as checkpoint:
                named = readings(checkpoint)
                seconds = one_and_two(lambda _, c=checkpoint, n=named: stream(c, n), repeat, pool)
            rates = [elements / value / 1e6 for value in seconds]
            shares = [
                " ".join(
                    f"{100 * f / s:5.0f} %" for f, s in zip(floor[limit], seconds, strict=True)
                )
                for limit in ("memcpy", "float32 write")
            ]
            print(f"{name:28} {rates[0]:9.0f} {rates[1]:9.0f}   {shares[0]}   {shares[1]}")


def whole_model(file: Path, repeat: int) -> None:
    """Time every quantized tensor of a GGUF file through the family, against gguf-py."""
    stored = [(t.tensor_type, np.array(t.data)) for t in gguf.GGUFReader(file).tensors]
    stored = [(kind, data) for kind, data in stored if kind.name not in ("F32", "F16", "BF16")]
    out = np.empty(max(data.nbytes for _, data in stored) * 8, np.float32)
    with Checkpoint.open(str(file)) as checkpoint:
        named = readings(checkpoint)
        elements = stream(checkpoint, named)
        peer = best(lambda: [gguf.dequantize(d, k) for k, d in stored], max(2, repeat // 3))
        ours = best(lambda: stream(checkpoint, named), repeat)
    write_limit = best(lambda: [out[: data.nbytes].fill(1) for _, data in stored], repeat)
    written = sum(data.nbytes for _, data in stored)
    write_limit *= elements / written
    print(f"\n{file.name} through the family, {elements / 1e6:.1f} M elements, one thread")
    for name, seconds in (("gguf-py", peer), ("this", ours), ("float32 write limit", write_limit)):
        print(
            f"{name:28} {seconds:7.3f} s {elements / seconds / 1e6:9.0f} M el/s   "
            f"x{peer / seconds:.1f} of gguf-py"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, help="a GGUF file to decode instead of SmolLM2")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "quantscope-bench")
    parser.add_argument("--no-model", action="store_true", help="leave the GGUF file out")
    parser.add_argument("--repeat", type=int, default=7, help="runs of each; the shortest counts")
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the weights")
    parser.add_argument(
        "--processor-time", action="store_true", help="for a busy machine; one thread only"
    )
    options = parser.parse_args()
    if options.processor_time:
        Timer.use_processor_time()
    with ThreadPoolExecutor(2) as pool:
        floor = limits(options.size, options.repeat, pool)
        for name, seconds in floor.items():
            one, two = (4e-9 * options.size**2 / value for value in seconds)
            print(f"{name:28} {one:6.1f} GB/s one thread, {two:6.1f} GB/s two threads")
        int4(options.size, options.repeat, pool, floor)
    if not options.no_model:
        whole_model(model_file(options.gguf, options.cache), options.repeat)


if __name__ == "__main__":
    main()
