"""The child process of a logits check: stopped, killed, hung, refused, missing; and hostile configs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.cli import main
from quantscope.errors import CancelledError, MissingExtraError
from quantscope.probes import run as probe_run
from quantscope.probes.config import ModelBuildError, config_of
from quantscope.probes.model import ProbeRequest, SideRequest, TokenRequest
from quantscope.probes.run import ProbeFailedError, ProbeStoppedError, run_probe

RANDOM = TokenRequest(source="random", targets=8)


def request(path: Path, **fields: Any) -> ProbeRequest:
    side = SideRequest(label="own", path=str(path))
    return ProbeRequest(sides=(side,), tokens=RANDOM, **fields)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 in GPTQ planes; skips without torch."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from probe_models import QWEN, gptq, random_model

    folder = tmp_path_factory.mktemp("child")
    gptq(random_model(QWEN), folder)
    return folder


def child_that(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """The real child, whose check does something else."""
    script = (
        "import os, signal, sys, quantscope.probes.measure as m, quantscope.probes.child as c\n"
        f"def run(self):\n {body}\n"
        "m.LogitsCheck.run = run\nsys.exit(c.main())"
    )
    monkeypatch.setattr(probe_run, "CHILD_COMMAND", (sys.executable, "-c", script))
    monkeypatch.setattr(probe_run, "missing", lambda: None)


@pytest.mark.torch
def test_a_check_in_the_child_gives_a_whole_result_with_progress(tiny: Path) -> None:
    stages: list[str] = []
    result = run_probe(request(tiny), progress=lambda p: stages.append(p.stage))
    assert result.outcome == "held"
    assert {"own", "self_before", "planted", "base_after"} <= set(stages)
    assert result.peak_rss_bytes > 0
    assert result.cpu_seconds > 0


@pytest.mark.torch
def test_a_stopped_check_keeps_the_sides_that_were_finished(tiny: Path) -> None:
    stages: list[str] = []
    sides = (
        SideRequest(label="own", path=str(tiny)),
        SideRequest(label="other", path=str(tiny), reading={"zero_convention": "as_is"}),
    )
    with pytest.raises(ProbeStoppedError) as found:
        run_probe(
            ProbeRequest(sides=sides, tokens=RANDOM),
            progress=lambda p: stages.append(p.stage),
            cancelled=lambda: "planted" in stages,
        )
    assert [side.label for side in found.value.done] == ["own", "other"]
    assert isinstance(found.value, CancelledError)
    assert found.value.exit_code == 130


def test_a_killed_child_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, "os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ProbeFailedError, match="killed from outside") as found:
        run_probe(request(tmp_path))
    assert found.value.failure.reason == "killed"
    assert found.value.exit_code == 4


def test_a_crashing_child_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, "os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(ProbeFailedError, match="SIGSEGV"):
        run_probe(request(tmp_path))


def test_a_hung_child_is_ended_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, "signal.pause()")
    with pytest.raises(ProbeFailedError, match="no answer within") as found:
        run_probe(request(tmp_path, timeout_s=3.0))
    assert found.value.failure.reason == "timed_out"


def test_a_child_out_of_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, "return bytes(8 << 30)")
    with pytest.raises(ProbeFailedError) as found:
        run_probe(request(tmp_path, memory_bytes=1 << 30))
    assert found.value.failure.reason == "out_of_memory"


def test_without_the_extra_it_says_how_to_install_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe_run, "missing", lambda: "torch")
    with pytest.raises(MissingExtraError, match="needs torch") as found:
        run_probe(request(tmp_path))
    assert "the extra `probe`" in found.value.hint
    folder = write_checkpoint(tmp_path / "c", {"a.weight": np.zeros((4, 4), np.float32)}, {})
    assert main.run(["probe", str(folder)]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert "needs torch" in told.err
    assert "the extra `probe`" in told.err


def test_no_other_command_needs_the_extra() -> None:
    import subprocess

    code = (
        "import sys, quantscope.cli.main, quantscope.probes.run, quantscope.probes.for_report, "
        "quantscope.probes.text, quantscope.probes.measure\n"
        "sys.exit(any(n in sys.modules for n in ('torch', 'transformers', 'tokenizers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def hostile(folder: Path, config: dict[str, Any]) -> Path:
    tensors = {"model.layers.0.mlp.up_proj.weight": np.zeros((32, 32), np.float32)}
    return write_checkpoint(folder, tensors, config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; .* show 1 layers"),
        ({"num_layers": 2}, "num_layers is 2"),
        ({"num_local_experts": 10**7}, "no model has so many"),
        ({"hidden_size": 2**40}, "no model has such a size"),
        ({"vocab_size": -5}, "no model has such a size"),
        ({"text_config": {"model_type": "qwen2", "head_dim": 2**30}}, "no model has such a size"),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": {"a": 1}}, "names no model_type"),
    ],
)
def test_counts_that_no_model_has_are_refused_before_anything_is_built(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = hostile(tmp_path, {**CONFIG, **change})
    with Checkpoint.open(str(folder)) as checkpoint, pytest.raises(ModelBuildError, match=message):
        config_of(checkpoint)


def test_keys_that_run_code_or_choose_kernels_never_reach_transformers(tmp_path: Path) -> None:
    bad = {
        "auto_map": {"AutoModelForCausalLM": "evil.Evil"},
        "trust_remote_code": True,
        "attn_implementation": "someone/kernel",
        "_attn_implementation": "someone/kernel",
        "quantization_config": {"quant_method": "evil"},
        "nested": {"auto_map": {"AutoConfig": "evil.Evil"}, "kept": [{"auto_map": 1, "a": 2}]},
    }
    folder = hostile(tmp_path, {**CONFIG, **bad})
    with Checkpoint.open(str(folder)) as checkpoint:
        assert config_of(checkpoint) == {**CONFIG, "nested": {"kept": [{"a": 2}]}}


@pytest.mark.torch
@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "wide"},
        {"num_attention_heads": 0},
        {"rope_parameters": [[[["x"]]]]},
        {"rope_parameters": {"rope_type": "no such"}},
        {"hidden_act": "__import__"},
        {"layer_types": {"a": []}},
        {"model_type": "no_such_model"},
        {"model_type": "../../evil"},
        {"model_type": "clip_vision_model"},
        {"intermediate_size": None},
        {"pad_token_id": 10**6},
        {"max_position_embeddings": 2**24},
    ],
)
def test_junk_in_a_config_is_a_clear_error_and_never_a_crash(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    pytest.importorskip("transformers")
    from quantscope.probes.measure import LogitsCheck

    folder = hostile(tmp_path, {**CONFIG, **change})
    with pytest.raises(ModelBuildError) as found:
        LogitsCheck(request(folder), lambda stage, done, total: None).run()
    assert len(found.value.message) < 600


@pytest.mark.torch
def test_code_beside_a_checkpoint_is_never_imported(tiny: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "c"
    shutil.copytree(tiny, folder)
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\n")
    config = json.loads((folder / "config.json").read_text())
    for kind in ("qwen2", "evil"):
        config |= {
            "model_type": kind,
            "trust_remote_code": True,
            "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"},
        }
        (folder / "config.json").write_text(json.dumps(config))
        if kind == "qwen2":
            assert run_probe(request(folder)).outcome == "held"
        else:
            with pytest.raises(ProbeFailedError, match="model_type 'evil'"):
                run_probe(request(folder))
        assert not marker.exists()


@pytest.mark.torch
def test_a_device_that_is_not_there_is_refused(tiny: Path) -> None:
    with pytest.raises(ProbeFailedError, match="torch has no device 'nowhere'"):
        run_probe(request(tiny, device="nowhere"))


@pytest.mark.torch
def test_the_command_gives_one_document_and_its_exit_code(
    tiny: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from probe_models import ids_file

    words = ["probe", str(tiny), "--tokens", ids_file(tmp_path), "--json", "-"]
    assert main.run([*words, "--reading", "zero_convention=as_is"]) == 0
    told = capfdbinary.readouterr()
    document = json.loads(told.out)
    assert document["outcome"] == "held"
    assert [side["label"] for side in document["sides"]] == [
        "as the bytes say",
        "zero_convention=as_is",
    ]
    assert b"passes over" in told.err
    assert (
        main.run(["probe", str(tiny), "--tokens", ids_file(tmp_path), "--against", str(tiny)]) == 1
    )
    told = capfdbinary.readouterr()
    assert b"inconclusive" in told.out
    assert b"weights_differ" in told.out
    assert main.run(["probe", str(tiny)]) == 4
    assert b"no tokenizer.json" in capfdbinary.readouterr().err
    assert main.run(["probe", str(tiny), "--tokens", "x", "--text", "y"]) == 64
