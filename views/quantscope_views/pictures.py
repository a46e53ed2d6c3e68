"""Pictures of the app for the docs: a sample, a size, keys, and the SVG that comes of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from quantscope_views.app import QuantscopeApp
from quantscope_views.place import Place


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One picture: the keys that lead to it from the first screen."""

    name: str
    sample: str
    keys: tuple[str, ...] = ()
    size: tuple[int, int] = (100, 30)
    other: str = ""
    """Sample that the Compare screen takes as its other side."""
    place: Place | None = None
    """Where the app opens, as a deep link does; its first screen where there is none."""


PICTURES: tuple[Picture, ...] = (
    Picture(name="triage", sample="smol-w4-liar"),
    Picture(name="tensors", sample="smol-w4-liar", keys=("t", "v", "down", "right")),
    Picture(name="contract", sample="smol-w4-liar", keys=("enter", "enter", "1")),
    Picture(name="zero", sample="smol-w4-liar", keys=("enter", "enter", "2")),
    Picture(name="bytes", sample="smol-w4-liar", keys=("enter", "enter", "3", "z")),
    Picture(name="bytes-gguf", sample="smol-gguf-q4_k_m", keys=("t", "down", "enter", "3")),
    Picture(name="compare", sample="twin-gptq", keys=("c",), other="twin-awq"),
    Picture(name="report", sample="smol-w4-liar", keys=("e",)),
)

_Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
_AT = (17, 131)

MOMENTS: tuple[Picture, ...] = (
    Picture(name="a-triage", sample="smol-w4-liar"),
    Picture(
        name="b-zero",
        sample="smol-w4-liar",
        place=Place(screen="tensor", tensor=_Q_PROJ, tab="zero", at=_AT),
    ),
    Picture(
        name="c-bytes",
        sample="smol-w4-liar",
        place=Place(screen="tensor", tensor=_Q_PROJ, tab="bytes", at=_AT),
        keys=("z",),
    ),
    Picture(
        name="d-compare",
        sample="gptqmodel-w4g128-asym-v1",
        keys=("c",),
        other="autoawq-gemm-g128",
    ),
    Picture(name="e-report", sample="smol-w4-liar", keys=("e",)),
)
"""Five moments of a triage, on whole checkpoints of real producers; `smol-w4-liar` is gptqmodel-w4g128-asym-v2
declared as `gptq`."""


async def settle(pilot: Any) -> None:
    """Wait until no worker runs and every message was handled."""
    app = pilot.app
    while True:
        await pilot.pause()
        busy = [worker for worker in app.workers if not worker.is_finished]
        if not busy:
            await pilot.pause()
            if all(worker.is_finished for worker in app.workers):
                return
        for worker in busy:
            await worker.wait()


async def draw(path: str, picture: Picture, other: str = "", theme: str = "") -> tuple[str, str]:
    """Drive the app to a picture.

    Args:
        path: where the sample lies.
        picture: what to draw.
        other: where the other side of a comparison lies.
        theme: name of a theme; dark by default.

    Returns:
        The SVG, and the same screen as plain text.
    """
    app = QuantscopeApp(path, link=picture.place, restore=False, theme=theme, fixed_times=True)
    async with app.run_test(size=picture.size) as pilot:
        await settle(pilot)
        for key in picture.keys:
            await pilot.press(key)
            await settle(pilot)
        if other:
            app.screen.compare(other)  # type: ignore[attr-defined]
            await settle(pilot)
        svg = app.export_screenshot(title=f"quantscope {picture.sample}", simplify=True)
        return steady(svg), text_of(app)


def steady(svg: str) -> str:
    """The SVG without what differs from run to run: its class names hold a random number."""
    found = re.search(r"terminal-(\d+)-", svg)
    return svg.replace(f"terminal-{found.group(1)}", "terminal") if found else svg


def text_of(app: QuantscopeApp) -> str:
    """The screen on top as text."""
    strips: Sequence[Any] = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"
