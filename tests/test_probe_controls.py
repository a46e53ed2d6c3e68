"""A logits check's controls, and what it says when it cannot be trusted or cannot run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from checkpoint_builder import read_safetensors_values, write_checkpoint
from probe_models import IDS, QWEN, gptq, ids_file, random_model
from quantscope.errors import QuantscopeError, ReadingError
from quantscope.probes import figures, twists
from quantscope.probes.measure import LogitsCheck
from quantscope.probes.model import (
    Control,
    ProbeRequest,
    ProbeResult,
    SideRequest,
    SideResult,
    TokenRequest,
    Tokens,
)
from quantscope.probes.network import Network

pytestmark = pytest.mark.torch

OTHER = {"zero_convention": "as_is"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 in GPTQ planes."""
    folder = tmp_path_factory.mktemp("controls")
    gptq(random_model(QWEN), folder)
    return folder


def check(
    folder: Path,
    *sides: SideRequest,
    tokens: TokenRequest | None = None,
    finished: Callable[[SideResult], None] = lambda side: None,
) -> ProbeResult:
    """A check of a checkpoint under its own reading and others, in this process."""
    own = SideRequest(label="own", path=str(folder))
    tokens = tokens or TokenRequest(source="random", targets=16)
    request = ProbeRequest(sides=sides or (own,), tokens=tokens)
    return LogitsCheck(request, lambda stage, done, total: None, finished).run()


def two(folder: Path) -> tuple[SideRequest, SideRequest]:
    return (
        SideRequest(label="own", path=str(folder)),
        SideRequest(label="other", path=str(folder), reading=OTHER),
    )


def control(result: ProbeResult, name: str) -> Control:
    return next(c for c in result.controls if c.name == name)


def test_every_control_holds_on_a_sound_run_and_is_recorded(checkpoint: Path) -> None:
    seen: list[str] = []
    result = check(checkpoint, *two(checkpoint), finished=lambda side: seen.append(side.label))
    assert result.outcome == "held"
    assert [c.name for c in result.controls] == [
        "self_before",
        "weights_differ",
        "planted",
        "base_after",
    ]
    assert seen == ["own", "other"]
    assert control(result, "self_before").numbers["kl_max"] == 0.0
    assert result.sides[1].tensors_changed == 21
    assert result.sides[0].readings == {"u4 zero integer minus_one sequential": 21}
    assert result.sides[1].readings == {"u4 zero integer as_is sequential": 21}
    assert result.sides[0].weights_sha256 != result.sides[1].weights_sha256
    assert result.config_sha256
    assert {"torch", "transformers", "quantscope"} <= set(result.libraries)
    assert any(name.endswith("model.safetensors") for name in result.fingerprints)
    assert "nothing about other text" in result.verified_scope


@pytest.mark.parametrize(("call", "name"), [(2, "self_before"), (5, "base_after")])
def test_a_base_that_does_not_repeat_itself_is_seen(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, call: int, name: str
) -> None:
    calls: list[int] = []
    real = Network.logits

    def drifting(self: Network, *args: Any) -> Any:
        calls.append(1)
        logits = real(self, *args)
        if len(calls) == call:
            logits[3, 5] = np.nextafter(logits[3, 5], np.float32(9))
        return logits

    monkeypatch.setattr(Network, "logits", drifting)
    result = check(checkpoint, *two(checkpoint))
    assert not control(result, name).held
    assert result.outcome == "inconclusive"
    assert name in result.reason
    assert result.decision is None


def test_weights_changed_in_place_between_passes_are_seen_at_the_end(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Network._load

    def leaking(self: Network, prefix: str, unit: Any) -> None:
        real(self, prefix, unit)
        if calls > 3 * len(self._units) and prefix.endswith("layers.0"):
            for parameter in unit.parameters():
                parameter.data.mul_(1.001)

    calls = 0

    def counted(self: Network, prefix: str, unit: Any) -> None:
        nonlocal calls
        calls += 1
        leaking(self, prefix, unit)

    monkeypatch.setattr(Network, "_load", counted)
    result = check(checkpoint, *two(checkpoint))
    assert control(result, "self_before").held
    assert not control(result, "base_after").held


def test_a_candidate_that_is_the_base_is_seen(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    sides = (
        SideRequest(label="base", path=str(checkpoint)),
        SideRequest(label="checkpoint", path=str(copy)),
    )
    result = check(checkpoint, *sides)
    differ = control(result, "weights_differ")
    assert not differ.held
    assert differ.numbers == {"equal_to_base": ["checkpoint"]}
    assert result.outcome == "inconclusive"
    assert result.pairs[0].kl_max == 0.0


def test_a_planted_reading_that_changes_nothing_is_seen(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twists, "planted", lambda parts: parts)
    result = check(checkpoint, *two(checkpoint))
    assert not control(result, "planted").held
    assert result.outcome == "inconclusive"


def test_a_planted_reading_must_raise_the_likelihood_loss_too() -> None:
    rows = np.zeros((2, 4), dtype=np.float32)
    better = np.array([[0, 5, 0, 0], [0, 0, 5, 0]], dtype=np.float32)
    tokens = Tokens(ids=(0, 1, 2), source="", sha256="", scored=True, bos="")
    side = SideRequest(label="own", path="c")
    made = {
        "changed": 0,
        "readings": {},
        "unused": [],
    }
    right = figures.Pass(logits=rows, weights_sha256="a", **made)  # type: ignore[arg-type]
    wrong = figures.Pass(logits=better, weights_sha256="b", **made)  # type: ignore[arg-type]
    result = figures.side_result(side, right, tokens)
    found = figures.planted_control(rows, rows, wrong, result, tokens)
    assert found.numbers["kl_mean"] > 0
    assert not found.held
    swapped = figures.planted_control(
        better, better, right, figures.side_result(side, wrong, tokens), tokens
    )
    assert swapped.held


def test_a_what_if_that_changes_nothing_is_refused(checkpoint: Path) -> None:
    side = SideRequest(label="x", path=str(checkpoint), reading={"zero_convention": "minus_one"})
    with pytest.raises(ReadingError, match="changes no tensor") as caught:
        check(checkpoint, SideRequest(label="own", path=str(checkpoint)), side)
    assert "leave this reading out" in caught.value.hint
    side = SideRequest(label="x", path=str(checkpoint), reading={"zero_convention": "nothing"})
    with pytest.raises(ReadingError, match="changes no tensor") as caught:
        check(checkpoint, SideRequest(label="own", path=str(checkpoint)), side)
    assert "no candidate" in caught.value.hint


@pytest.mark.parametrize(
    "reading",
    [
        {"packing": "reversed"},
        {"packing": "awq"},
        {"scale": "divide"},
        {"packing": "pair_swapped", "zero_convention": "as_is"},
    ],
)
def test_other_code_orders_and_scale_directions_are_readings_too(
    checkpoint: Path, reading: dict[str, str]
) -> None:
    side = SideRequest(label="x", path=str(checkpoint), reading=reading)
    result = check(checkpoint, SideRequest(label="own", path=str(checkpoint)), side)
    assert result.sides[1].tensors_changed == 21
    assert result.pairs[0].kl_mean > 0.01
    assert result.outcome == "held"


def broken(folder: Path, source: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a checkpoint with some tensor changed."""
    tensors = read_safetensors_values(source / "model.safetensors")
    change(tensors)
    return write_checkpoint(folder, tensors, json.loads((source / "config.json").read_text()))


def test_logits_that_are_not_finite_are_refused_with_their_place(
    checkpoint: Path, tmp_path: Path
) -> None:
    def infinite(tensors: dict[str, Any]) -> None:
        name = "model.layers.2.mlp.down_proj.scales"
        tensors[name] = np.full_like(tensors[name], np.inf)

    folder = broken(tmp_path / "inf", checkpoint, infinite)
    with pytest.raises(QuantscopeError, match="logits are not finite, the first at position 0"):
        check(folder)


def test_vocabularies_that_differ_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    gptq(random_model({**QWEN, "vocab_size": 104}), tmp_path)
    sides = (
        SideRequest(label="base", path=str(checkpoint)),
        SideRequest(label="checkpoint", path=str(tmp_path)),
    )
    with pytest.raises(QuantscopeError, match="vocabularies differ: 96 and 104"):
        check(checkpoint, *sides)


def test_an_embedding_of_other_rows_is_a_vocabulary_that_differs(
    checkpoint: Path, tmp_path: Path
) -> None:
    def longer(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = np.zeros((99, 64), dtype=np.float32)

    folder = broken(tmp_path, checkpoint, longer)
    with pytest.raises(QuantscopeError, match=r"vocabularies differ: lm_head.weight has 99 rows"):
        check(folder)


def test_configs_that_differ_are_named_as_not_verified(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "other")
    config = json.loads((checkpoint / "config.json").read_text())
    config["rms_norm_eps"] = 0.5
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    sides = (
        SideRequest(label="base", path=str(checkpoint)),
        SideRequest(label="checkpoint", path=str(tmp_path / "other"), reading=OTHER),
    )
    result = check(checkpoint, *sides)
    assert any(note.startswith("rms_norm_eps of ") for note in result.unverified)


def test_text_without_a_tokenizer_says_what_to_give_instead(checkpoint: Path) -> None:
    with pytest.raises(QuantscopeError, match=r"no tokenizer.json and no GGUF vocabulary") as found:
        check(checkpoint, tokens=TokenRequest(source="passage"))
    assert "--tokens" in found.value.hint


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 96], "token id 96 lies outside the vocabulary of 96"),
        ([1, -1], "token id -1 lies outside"),
        ([5], "fewer than two tokens"),
    ],
)
def test_ids_that_cannot_be_scored_are_refused(
    checkpoint: Path, tmp_path: Path, ids: list[int], message: str
) -> None:
    tokens = TokenRequest(source="ids", path=ids_file(tmp_path, ids))
    with pytest.raises(QuantscopeError, match=message):
        check(checkpoint, tokens=tokens)


def test_random_ids_give_divergence_and_no_likelihood(checkpoint: Path) -> None:
    result = check(checkpoint, *two(checkpoint))
    assert result.targets_counted == 0
    assert result.sides[0].nll_mean is None
    assert result.pairs[0].dnll_mean is None
    assert result.decision is not None
    assert result.decision.accepted is None
    again = check(checkpoint, *two(checkpoint))
    assert again.ids_sha256 == result.ids_sha256
    assert again.sides[0].logits_sha256 == result.sides[0].logits_sha256


def test_perplexity_comes_from_the_total_over_the_counted_targets(
    checkpoint: Path, tmp_path: Path
) -> None:
    tokens = TokenRequest(source="ids", path=ids_file(tmp_path))
    result = check(checkpoint, *two(checkpoint), tokens=tokens)
    side = result.sides[0]
    assert result.targets_counted == len(IDS) - 1 == len(side.nll_rows)
    assert side.nll_sum is not None
    assert side.ppl == pytest.approx(np.exp(side.nll_sum / result.targets_counted))
    assert len(result.pairs[0].kl_by_position) == len(IDS) - 1


def test_a_rotated_basis_is_refused_with_the_reason(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec
    from quantscope.compare.sides import Side

    real = Side.states.func  # type: ignore[attr-defined]

    def rotated(self: Side) -> Any:
        return {
            name: msgspec.structs.replace(
                state, reading=msgspec.structs.replace(state.reading, basis="rotated")
            )
            for name, state in real(self).items()
        }

    monkeypatch.setattr(Side, "states", property(rotated))
    with pytest.raises(QuantscopeError, match=r"rotated basis .* no logits can be had"):
        check(checkpoint)
