"""Defaults and small pieces that kernels share."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.extras import absent_words
from quantscope.parity.model import Device, SkipReason
from quantscope.parity.protocol import (
    Available,
    Fixture,
    RawWeight,
    Refusal,
    TraceData,
    TraceRule,
    Weight,
)

from quantscope_plugins.kernels import fixtures, layouts


class KernelBase:
    """Defaults for a kernel; subclass it and say what differs."""

    name: str = ""
    title: str = ""
    device: Device = "cpu"
    executes: bool = True
    contracts: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("f32",)
    amplitude: float = 1.0
    fallback_batch: int | None = None
    most_columns: int = 1 << 30
    slowdown: float = 0.5
    trace_rule: TraceRule = TraceRule()
    limits: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """Modules that must be importable."""

    def missing(self) -> Refusal | None:
        """The first package that is not installed."""
        for package in self.packages:
            if not installed(package):
                reason: SkipReason = "torch_missing" if package == "torch" else "package_missing"
                return Refusal(reason=reason, detail=absent_words(package))
        return None

    def available(self) -> Available:
        """Runs wherever its packages are."""
        return Available()

    def quantized_input(self, weight: Weight, x: Array) -> Array | None:
        """Activations are not quantized."""
        return None

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData | None:
        """Nothing to observe."""
        return None


class AffineKernel(KernelBase):
    """A kernel over integer codes with scales and offsets: reading, fixtures and corruption are shared."""

    contracts: tuple[str, ...] = layouts.AFFINE_FAMILIES

    def read(self, weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
        """Stored planes."""
        return layouts.read_affine(weight, n_rows, reader)

    def fixture(self, weight: Weight) -> Fixture | None:
        """Known words in the weight's own layout where there is one, else in the nearest."""
        return affine_fixture(weight)

    def corrupted(self, raw: RawWeight) -> tuple[str, RawWeight] | None:
        """Codes of the upper and lower half of every byte exchanged."""
        return swap_nibbles(raw)


def affine_fixture(weight: Weight) -> Fixture:
    """The fixture nearest to an affine weight."""
    family, reading = weight.tensor.family, weight.reading
    if family == "gptq":
        return fixtures.gptq("minus_one" if reading.zero_convention == "minus_one" else "as_is")
    if family == "awq_gemm":
        return fixtures.awq_gemm()
    if family == "ct_pack" and reading.zero == "fixed":
        return fixtures.symmetric("ct_pack")
    if family in ("ct_pack", "awq_gemv", "mlx_affine"):
        return fixtures.row_packed(family)
    return fixtures.row_packed("ct_pack")


_CODE_PLANES = ("qweight", "weight_packed", "weight", "codes", "qdata")


def swap_nibbles(raw: RawWeight) -> tuple[str, RawWeight] | None:
    """The same planes with the halves of every byte of codes exchanged; whole bytes are rotated by 4 bits."""
    for name in _CODE_PLANES:
        plane = raw.arrays.get(name)
        if plane is None:
            continue
        if name == "qdata":
            rolled = np.roll(plane, 1, axis=1)
            return "codes moved by one input channel", raw.with_arrays(qdata=rolled)
        octets = np.ascontiguousarray(plane).view(np.uint8)
        swapped = ((octets << 4) | (octets >> 4)).view(plane.dtype).reshape(plane.shape)
        if bool((swapped == plane).all()):
            return None
        return f"halves of every byte of {name} exchanged", raw.with_arrays(**{name: swapped})
    return None


@cache
def installed(module: str) -> bool:
    """Whether a module could be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def version(distribution: str) -> str | None:
    """Installed version of a distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions(*distributions: str) -> dict[str, str]:
    """Versions of those that are installed."""
    found = {name: version(name) for name in distributions}
    return {name: text for name, text in found.items() if text is not None}


def file_sha256(path: str) -> str:
    """Digest of a library file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for piece in iter(lambda: stream.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


class Buffers:
    """A prepared weight: what the kernel is called with, and the buffers that were derived for it."""

    def __init__(self, repacked: Mapping[str, Array | bytes] | None = None, **held: Any) -> None:
        self.repacked: Mapping[str, Array | bytes] = repacked or {}
        self.held = held

    def __getitem__(self, name: str) -> Any:
        return self.held[name]
