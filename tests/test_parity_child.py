"""Whatever a kernel does to its process, the caller lives and says what happened."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import parity_builder
import pytest
from parity_plugin import write_plugin
from quantscope.errors import CancelledError, UsageError
from quantscope.parity.model import ParityResult, Settings
from quantscope.parity.run import backends, run_checkpoint, run_parity
from quantscope.parity.runner import ChildFailedError, Worker, described_exit

TENSOR = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = write_plugin(tmp_path_factory.mktemp("plugin"))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder) + (os.pathsep + before if before else "")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("faulty_kernels", None)
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(parity_builder.gptq(tmp_path_factory.mktemp("gptq") / "model"))


def check(checkpoint: str, kernel: str, **settings: object) -> ParityResult:
    wanted = Settings(max_columns=64, **settings)  # type: ignore[arg-type]
    return run_parity(checkpoint, TENSOR, f"faulty:{kernel}", settings=wanted)


def test_a_third_party_backend_is_found_and_holds(plugin: Path, checkpoint: str) -> None:
    result = check(checkpoint, "plain")
    assert (result.status, result.outcome, result.execution_proof) == ("executed", "held", "proved")
    assert result.readout is not None
    assert result.readout.complete


def test_a_backend_that_does_not_load_is_a_row_with_its_reason(plugin: Path) -> None:
    state = next(state for state in backends() if state.name == "broken")
    assert "libbroken.so" in str(state.error)
    assert not state.usable
    with pytest.raises(UsageError, match=r"libbroken\.so"):
        run_parity("nowhere", "x", "broken")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("kernel", "reason", "signal"),
    [
        ("segfault", "crashed", "SIGSEGV"),
        ("abort", "crashed", "SIGABRT"),
        ("killed", "killed", "SIGKILL"),
    ],
)
def test_a_dead_child_is_a_result_that_names_its_signal(
    plugin: Path, checkpoint: str, kernel: str, reason: str, signal: str
) -> None:
    result = check(checkpoint, kernel)
    assert result.status == "failed"
    assert result.outcome is None
    assert result.failure is not None
    assert (result.failure.reason, result.failure.signal) == (reason, signal)
    assert result.execution_proof == "unproven"


def test_a_hanging_kernel_is_ended_at_the_time_limit(plugin: Path, checkpoint: str) -> None:
    started = time.monotonic()
    result = check(checkpoint, "hang", timeout_s=4.0)
    assert result.failure is not None
    assert result.failure.reason == "timed_out"
    assert time.monotonic() - started < 30


@pytest.mark.skipif(sys.platform != "linux", reason="the cap on private memory is Linux's")
def test_a_kernel_beyond_its_memory_is_a_result(plugin: Path, checkpoint: str) -> None:
    result = check(checkpoint, "memory", memory_bytes=1 << 30)
    assert result.failure is not None
    assert result.failure.reason == "out_of_memory", result.failure


def test_an_exception_is_a_result_with_its_words(plugin: Path, checkpoint: str) -> None:
    result = check(checkpoint, "raises")
    assert result.failure is not None
    assert result.failure.reason == "raised"
    assert "RuntimeError: shape [3] does not fit" in result.failure.message
    assert "Traceback" in result.failure.stderr_tail


def test_an_exit_without_an_answer_names_the_status(plugin: Path, checkpoint: str) -> None:
    result = check(checkpoint, "exits")
    assert result.failure is not None
    assert (result.failure.reason, result.failure.exit_code) == ("crashed", 7)


def test_what_a_library_prints_reaches_neither_stream(
    plugin: Path, checkpoint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = check(checkpoint, "chatty")
    assert result.outcome == "held"
    streams = capfd.readouterr()
    assert "noise" not in streams.out + streams.err
    assert "noise from C" in result.stderr_tail
    assert "noise on stderr" in result.stderr_tail


def test_the_child_is_told_to_stay_off_the_network(plugin: Path, checkpoint: str) -> None:
    failure = check(checkpoint, "offline").failure
    assert failure is not None
    assert failure.message == "RuntimeError: HF_HUB_OFFLINE=1"


def test_stopping_kills_the_child_at_once(plugin: Path, checkpoint: str) -> None:
    asked: list[float] = []

    def cancelled() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 40

    started = time.monotonic()
    with pytest.raises(CancelledError):
        run_parity(
            checkpoint,
            TENSOR,
            "faulty:hang",
            settings=Settings(max_columns=16),
            cancelled=cancelled,
        )
    assert time.monotonic() - started < 30
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert not gaps or min(gaps) < 0.2


def test_after_a_crash_the_next_tensor_gets_a_new_child(
    plugin: Path, tmp_path: Path, checkpoint: str
) -> None:
    with Worker() as worker:
        job = {"kind": "probe", "backends": ["reference"]}
        assert worker.run(job, timeout_s=60)
        with pytest.raises(ChildFailedError):
            worker.run({"kind": "no such job"}, timeout_s=60)
        assert worker.run(job, timeout_s=60), "an exception does not end the child"
        assert worker.starts == 1
        assert worker._process is not None
        worker._process.kill()
        worker._process.wait()
        assert worker.run(job, timeout_s=60)
        assert worker.starts == 2


def test_modules_in_the_working_folder_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working folder may be a checkpoint that somebody sent."""
    for name in ("numpy", "msgspec", "torch", "gguf", "json"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(3)\n"
        )
    monkeypatch.chdir(tmp_path)
    with Worker() as worker:
        assert worker.run({"kind": "probe", "backends": ["reference"]}, timeout_s=60)
    assert not (tmp_path / "ran").exists()


def test_a_child_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    with (
        Worker(command=[str(tmp_path / "nothing")]) as worker,
        pytest.raises(ChildFailedError) as got,
    ):
        worker.run({"kind": "probe"}, timeout_s=5)
    assert got.value.failure.reason == "did_not_start"


def test_a_child_that_talks_nonsense_is_a_failure() -> None:
    command = [sys.executable, "-c", "print('hello'); import time; time.sleep(60)"]
    with Worker(command=command) as worker, pytest.raises(ChildFailedError) as got:
        worker.run({"kind": "probe"}, timeout_s=20)
    assert got.value.failure.reason == "bad_reply"


def test_a_child_that_says_nothing_is_ended() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = time.monotonic()
    with Worker(command=command) as worker, pytest.raises(ChildFailedError) as got:
        worker.run({"kind": "probe"}, timeout_s=1.0)
    assert got.value.failure.reason == "timed_out"
    assert time.monotonic() - started < 20


def test_the_child_ends_when_its_parent_is_gone() -> None:
    worker = Worker()
    worker.run({"kind": "probe", "backends": ["reference"]}, timeout_s=60)
    process = worker._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(10) == 0
    worker.close()


def test_exit_statuses_in_words() -> None:
    assert described_exit(-9, "").reason == "killed"
    assert "memory runs out" in described_exit(-9, "").message
    assert described_exit(-11, "").signal == "SIGSEGV"
    assert "instruction" in described_exit(-4, "").message
    assert described_exit(1, "MemoryError\n").reason == "out_of_memory"
    assert (
        described_exit(1, "terminate called after throwing std::bad_alloc").reason
        == "out_of_memory"
    )


def test_a_run_over_a_checkpoint_goes_on_after_a_crash(plugin: Path, checkpoint: str) -> None:
    run = run_checkpoint(
        checkpoint, "faulty:segfault", keep=False, settings=Settings(max_columns=16)
    )
    assert run.coverage.layers_failed == run.coverage.layers_asked == 1
    assert run.partial is None
