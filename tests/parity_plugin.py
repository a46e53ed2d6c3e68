"""A backend of a third party, written into a folder: kernels that crash, hang, lie or print, found by entry point."""

from __future__ import annotations

from pathlib import Path

SOURCE = '''
import ctypes, os, signal, sys, time
import numpy as np
from quantscope.parity.model import ErrorModel
from quantscope.parity.protocol import API_VERSION, TraceData, TraceRule
from quantscope.parity.model import TraceEvent
from quantscope_plugins.kernels import layouts
from quantscope_plugins.kernels.base import AffineKernel, Buffers


class Plain(AffineKernel):
    name = "plain"
    title = "float32 product"
    dtypes = ("f32",)
    trace_rule = TraceRule(must=("the_kernel",), fallback=("dequantize",), neutral=("copy",))
    events = ("the_kernel", "copy")

    def refusal(self, weight, dtype):
        return None

    def error_model(self, weight, dtype):
        return ErrorModel(input_dtype="f32", weight_dtype="f32", weight_roundings=3, magnitude="parts")

    def prepare(self, raw, dtype):
        return Buffers(weights=layouts.affine_of(raw).weights().astype(np.float32))

    def run(self, prepared, x, dtype):
        self.misbehave()
        return x @ prepared["weights"].T

    def trace(self, prepared, x, dtype):
        return TraceData(
            events=tuple(
                TraceEvent(name=name, device="cpu", count=1, microseconds=2.0) for name in self.events
            ),
            method="told",
        )

    def misbehave(self):
        pass


class Segfault(Plain):
    name = "segfault"

    def misbehave(self):
        ctypes.string_at(0)


class Abort(Plain):
    name = "abort"

    def misbehave(self):
        os.abort()


class Killed(Plain):
    name = "killed"

    def misbehave(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Hang(Plain):
    name = "hang"

    def misbehave(self):
        while True:
            time.sleep(3600)


class Memory(Plain):
    name = "memory"

    def misbehave(self):
        self.kept = [np.ones(1 << 24) for _ in range(1 << 12)]


class Raises(Plain):
    name = "raises"

    def misbehave(self):
        raise RuntimeError("shape [3] does not fit \\x1b[31m")


class Exits(Plain):
    name = "exits"

    def misbehave(self):
        os._exit(7)


class Chatty(Plain):
    name = "chatty"

    def misbehave(self):
        print("noise on stdout", flush=True)
        os.write(1, b"noise from C\\n")
        sys.stderr.write("noise on stderr\\n")


class Offline(Plain):
    name = "offline"

    def misbehave(self):
        raise RuntimeError("HF_HUB_OFFLINE=" + os.environ.get("HF_HUB_OFFLINE", "unset"))


class Falls(Plain):
    name = "falls"
    events = ("the_kernel", "dequantize")


class Unknown(Plain):
    name = "unknown"
    events = ("the_kernel", "something_else")


class Silent(Plain):
    name = "silent"
    events = ()


class OffByOne(Plain):
    name = "off_by_one"

    def prepare(self, raw, dtype):
        affine = layouts.affine_of(raw)
        affine.offset = affine.offset - affine.scale
        return Buffers(weights=affine.weights().astype(np.float32))


class IgnoresZeros(Plain):
    """The defect of a CPU layer that packs every asymmetric zero as the midpoint."""

    name = "ignores_zeros"

    def prepare(self, raw, dtype):
        affine = layouts.affine_of(raw)
        affine.offset = -(1 << raw.bit_width - 1) * affine.scale
        return Buffers(weights=affine.weights().astype(np.float32))


class Zero(Plain):
    """Gives zeros, whatever the bytes are."""

    name = "zero"

    def run(self, prepared, x, dtype):
        return np.zeros((x.shape[0], prepared["weights"].shape[0]), np.float32)


class NotFinite(Plain):
    name = "not_finite"

    def run(self, prepared, x, dtype):
        y = x @ prepared["weights"].T
        y[0, 0] = np.nan
        return y


class Blind(Plain):
    """Declares so coarse a model that no fault can be noticed."""

    name = "blind"

    def error_model(self, weight, dtype):
        return ErrorModel(input_dtype="f32", weight_dtype="e2m1", weight_roundings=400, magnitude="parts")


class Faulty:
    name = "faulty"
    title = "kernels with every fault"
    api_version = API_VERSION
    kernels = tuple(
        kind()
        for kind in (
            Plain, Segfault, Abort, Killed, Hang, Memory, Raises, Exits, Chatty, Offline, Falls, Unknown, Silent,
            OffByOne, IgnoresZeros, Zero, NotFinite, Blind,
        )
    )

    def versions(self):
        return {}


class Broken:
    def __init__(self):
        raise OSError("libbroken.so: cannot open")
'''


def write_plugin(folder: Path) -> Path:
    """The module and the metadata that importlib finds beside it."""
    (folder / "faulty_kernels.py").write_text(SOURCE)
    info = folder / "faulty_kernels-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-kernels\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[quantscope.kernels]\nfaulty = faulty_kernels:Faulty\nbroken = faulty_kernels:Broken\n"
    )
    return folder
