"""Logits of real producers' checkpoints against the float base that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from quantscope.probes import weights
from quantscope.probes.measure import LogitsCheck
from quantscope.probes.model import ProbeRequest, ProbeResult, SideRequest, TokenRequest

pytestmark = [pytest.mark.torch, pytest.mark.real]

BASE = "base-smol2l-h256"
NEAR = 0.6
"""Mean KL in nats that 4 bits and more stay below on this two-layer model; a wrong reading gives 7 and more."""
COARSE = {
    "auto-round-w2g32-asym-autoround": 4.0,
    "gguf-iq1_s-imat": 6.0,
    "gguf-iq2_xxs-imat": 3.0,
    "gguf-q2_k": 2.0,
    "gptqmodel-w3g128-sym": 1.0,
    "llmcompressor-w3a16-g128-asym": 2.0,
    "mlx-mixed_3_6": 2.0,
    "mlx-q3-g64": 2.5,
}
"""Two and three bits."""
OTHER_WEIGHTS = ("autoawq-gemm-g128", "autoawq-gemv-g128", "autoawq-gemvfast-g128")
"""Folders whose norms do not undo the scaling of the columns that read them: not the base's function."""
TERNARY = ("gguf-tq1_0",)


def against_base(real_set: Path, name: str) -> ProbeResult:
    sides = (
        SideRequest(label="base", path=str(real_set / BASE)),
        SideRequest(label="checkpoint", path=str(real_set / name)),
    )
    tokens = TokenRequest(source="random", targets=64)
    request = ProbeRequest(sides=sides, tokens=tokens)
    return LogitsCheck(request, lambda stage, done, total: None).run()


@pytest.mark.slow
def test_every_producers_checkpoint_stays_near_its_base(real_set: Path) -> None:
    folders = sorted(p.name for p in real_set.iterdir() if p.name != BASE)
    far: dict[str, Any] = {}
    for name in folders:
        result = against_base(real_set, name)
        kl = result.pairs[0].kl_mean
        missed = [c.name for c in result.controls if not c.held]
        if (
            name == "gguf-f16-bigendian"
        ):  # the same values: nothing differs, and the control says so
            assert (kl, missed) == (0.0, ["weights_differ"])
            continue
        if missed:
            far[name] = missed
        elif name in OTHER_WEIGHTS or name in TERNARY:
            assert kl > 3, name
        elif kl >= COARSE.get(name, NEAR):
            far[name] = kl
    assert not far


def test_input_scales_left_to_the_runtime_join_the_weight(
    real_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_scales = against_base(real_set, "modelopt-int4-awq").pairs[0].kl_mean
    monkeypatch.setattr(weights, "INPUT_SCALE_SUFFIXES", ())
    without = against_base(real_set, "modelopt-int4-awq").pairs[0].kl_mean
    assert with_scales < NEAR < 1.0 < without


def test_rescaled_columns_need_no_base_because_the_norms_are_in_the_checkpoint(
    real_set: Path,
) -> None:
    assert against_base(real_set, "gptqmodel-awq-gemm-g128-asym").pairs[0].kl_mean < NEAR
