"""Cost before a run, and time and memory of a run on a real model, within stated bounds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.probes.cost import BASE_BYTES, UNIT_SHARE
from quantscope.probes.model import Cost, ProbeRequest, SideRequest, TokenRequest
from quantscope.probes.run import estimate, run_probe
from quantscope.probes.text import render_cost
from quantscope.session.pipeline import Scope, inspect

MOST_CPU_SECONDS = 60.0
MOST_BYTES = 1_500_000_000


def cost(path: Path, request: ProbeRequest) -> Cost:
    with Checkpoint.open(str(path)) as checkpoint:
        return estimate(inspect(checkpoint, Scope(mode="headers")), request)


def test_cost_counts_passes_parameters_and_the_largest_unit(tmp_path: Path) -> None:
    zeros = np.zeros((64, 32), np.float32)
    tensors = {"model.embed_tokens.weight": zeros[:8]}
    for layer in range(3):
        for name in ("q_proj", "k_proj"):
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = zeros
    folder = write_checkpoint(tmp_path, tensors, {})
    sides = tuple(SideRequest(label=str(i), path=str(folder)) for i in range(2))
    found = cost(folder, ProbeRequest(sides=sides, tokens=TokenRequest(targets=9)))
    assert found.parameters == 8 * 32 + 6 * 64 * 32
    assert found.passes == 5
    assert found.tokens == 10
    assert found.bytes_read == 5 * 4 * found.parameters
    logits = 5 * 10 * 8 * 4
    assert found.memory_bytes == BASE_BYTES + int(2 * 64 * 32 * 4 * UNIT_SHARE) + logits
    full = cost(folder, ProbeRequest(sides=sides, tokens=TokenRequest(targets=9), stream=False))
    assert full.memory_bytes > found.memory_bytes
    layered = cost(folder, ProbeRequest(sides=sides, by_layer=True))
    assert layered.passes == 8
    assert "5 passes over 0.0 M parameters, 10 tokens" in render_cost(found)


def smollm() -> Path:
    folder = os.environ.get("QUANTSCOPE_GGUF_DIR", "")
    path = Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not folder or not path.is_file():
        pytest.skip("QUANTSCOPE_GGUF_DIR names no folder with SmolLM2-135M-Instruct.Q4_1.gguf")
    return path


@pytest.mark.slow
@pytest.mark.torch
def test_sixty_four_targets_of_a_gptq_model_decide_within_time_and_memory(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from probe_models import gptq, ids_file
    from quantscope.compare.sides import Side
    from quantscope.probes.config import config_of
    from quantscope.probes.network import Network
    from quantscope.probes.passage import PASSAGE
    from quantscope.probes.tokens import tokenize
    from quantscope.probes.weights import ModelWeights

    with Checkpoint.open(str(smollm())) as checkpoint:
        ids = tokenize(PASSAGE, checkpoint).ids
        network = Network(config_of(checkpoint), dtype="float32", device="cpu", stream=False)
        side = Side(inspect(checkpoint, Scope(mode="headers")))
        weights = ModelWeights(side, SideRequest(label="", path=""))
        network.logits(network.source(weights), (1, 2), lambda done, total: None)
    network.model.tie_weights()
    gptq(network.model, tmp_path, group=64)
    del network
    sides = (
        SideRequest(label="minus_one", path=str(tmp_path)),
        SideRequest(label="as_is", path=str(tmp_path), reading={"zero_convention": "as_is"}),
    )
    tokens = TokenRequest(source="ids", path=ids_file(tmp_path, ids))
    request = ProbeRequest(sides=sides, tokens=tokens)
    result = run_probe(request)
    assert result.outcome == "held"
    assert result.decision is not None
    assert result.decision.accepted == "minus_one"
    assert result.pairs[0].t is not None
    assert result.pairs[0].t > 10
    assert result.targets_counted == 64
    assert result.cpu_seconds < MOST_CPU_SECONDS
    assert 0 < result.peak_rss_bytes < MOST_BYTES
    stated = cost(tmp_path, request)
    assert result.peak_rss_bytes < 1.25 * stated.memory_bytes
    assert stated.seconds < MOST_CPU_SECONDS
