"""Drives the app in tests: checkpoints to look at, waiting without sleeping, text of the screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_builder import write_checkpoint, write_safetensors
from quantscope_views.app import QuantscopeApp
from textual.pilot import Pilot
from textual.worker import WorkerCancelled, WorkerFailed

GROUP = 128
N_OUT, N_IN = 64, 256


class Gptq:
    """A 4-bit GPTQ module with every code, zero and scale known."""

    def __init__(self, seed: int = 0, n_out: int = N_OUT, n_in: int = N_IN) -> None:
        generator = np.random.default_rng(seed)
        groups = n_in // GROUP
        self.zeros = generator.integers(6, 11, (n_out, groups))
        spread = generator.normal(0, 2.2, (n_out, n_in))
        centre = np.repeat(self.zeros, GROUP, axis=1)
        self.codes = np.clip(np.rint(spread + centre), 0, 15).astype(np.int64)
        self.scales = generator.uniform(0.01, 0.02, (n_out, groups)).astype(np.float16)

    def value(self, row: int, col: int, shift: int = 0) -> float:
        """(code - (stored zero + shift)) * scale in float32 steps."""
        group = col // GROUP
        step = np.float32(self.codes[row, col] - self.zeros[row, group] - shift)
        return float(step * np.float32(self.scales[row, group]))

    def tensors(self, module: str) -> dict[str, Any]:
        """The stored planes of the module."""
        return {
            f"{module}.qweight": _packed(self.codes.T),
            f"{module}.qzeros": _packed(self.zeros.T, axis=1),
            f"{module}.scales": self.scales.T.copy(),
            f"{module}.g_idx": np.arange(self.codes.shape[1], dtype=np.int32) // GROUP,
        }


def _packed(codes: np.ndarray[Any, Any], axis: int = 0) -> np.ndarray[Any, Any]:
    """Eight 4-bit codes a word along an axis, the first in the lowest bits."""
    moved = np.moveaxis(codes, axis, 0)
    words = np.zeros((moved.shape[0] // 8, *moved.shape[1:]), np.uint32)
    for nibble in range(8):
        words |= moved[nibble::8].astype(np.uint32) << np.uint32(4 * nibble)
    return np.ascontiguousarray(np.moveaxis(words, 0, axis)).view(np.int32)


def gptq_config(checkpoint_format: str = "gptq_v2") -> dict[str, Any]:
    """A config.json that declares 4-bit asymmetric GPTQ."""
    return {
        "model_type": "llama",
        "quantization_config": {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": GROUP,
            "desc_act": False,
            "sym": False,
            "checkpoint_format": checkpoint_format,
        },
    }


def module_names(count: int) -> list[str]:
    """Names of a small decoder's projections."""
    parts = ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj")
    return [f"model.layers.{i // 4}.{parts[i % 4]}" for i in range(count)]


def gptq_folder(
    folder: Path,
    count: int = 8,
    checkpoint_format: str = "gptq_v2",
    names: list[str] | None = None,
) -> tuple[Path, dict[str, Gptq]]:
    """A GPTQ checkpoint folder and its modules; zeros are stored as they are."""
    modules = {
        name: Gptq(seed)
        for seed, name in enumerate(names if names is not None else module_names(count))
    }
    tensors: dict[str, Any] = {}
    for name, module in modules.items():
        tensors |= module.tensors(name)
    tensors["model.norm.weight"] = np.ones(64, np.float16)
    write_checkpoint(folder, tensors, gptq_config(checkpoint_format))
    return folder, modules


def sharded_folder(folder: Path, bad_scale: tuple[int, int, int]) -> Path:
    """Three shards with an index; one scale of the module `bad_scale[0]` at (group, out) is NaN."""
    import json

    folder.mkdir(parents=True)
    names = module_names(12)
    index: dict[str, str] = {}
    for shard in range(3):
        file = f"model-{shard + 1:05d}-of-00003.safetensors"
        tensors: dict[str, Any] = {}
        for number in range(shard * 4, shard * 4 + 4):
            module = Gptq(number)
            planes = module.tensors(names[number])
            if number == bad_scale[0]:
                planes[f"{names[number]}.scales"][bad_scale[1], bad_scale[2]] = np.nan
            tensors |= planes
        write_safetensors(folder / file, tensors)
        index |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    (folder / "config.json").write_text(json.dumps(gptq_config()))
    return folder


async def idle(pilot: Pilot[Any]) -> None:
    """Wait until no worker runs and every message was handled."""
    app = pilot.app
    for _ in range(200):
        await pilot.pause()
        busy = [worker for worker in app.workers if not worker.is_finished]
        if not busy:
            await pilot.pause()
            if all(worker.is_finished for worker in app.workers):
                return
            continue
        for worker in busy:
            try:
                await worker.wait()
            except (WorkerCancelled, WorkerFailed):
                continue
    raise AssertionError("the app never became idle")


async def press(pilot: Pilot[Any], *keys: str) -> None:
    """Press keys one by one, each when the app is idle again."""
    for key in keys:
        await pilot.press(key)
        await idle(pilot)


async def typed(pilot: Pilot[Any], text: str) -> None:
    """Type a text."""
    names = {
        " ": "space",
        ".": "full_stop",
        ",": "comma",
        "/": "slash",
        "_": "underscore",
        "-": "minus",
    }
    await pilot.press(*(names.get(char, char) for char in text))
    await idle(pilot)


def screen_text(app: Any) -> str:
    """What the screen on top shows, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


def notices(app: Any) -> list[str]:
    """Messages of the notices that are up."""
    return [notice.message for notice in app._notifications]


def make_app(path: Path | str | None, **options: Any) -> QuantscopeApp:
    """The app without a last place, so that nothing outside the test matters."""
    options.setdefault("restore", False)
    return QuantscopeApp(str(path) if path is not None else None, **options)


async def until(pilot: Pilot[Any], condition: Callable[[], bool], tries: int = 2000) -> None:
    """Let the loop run until a condition holds."""
    for _ in range(tries):
        if condition():
            return
        await pilot.pause()
    raise AssertionError("the condition never held")
