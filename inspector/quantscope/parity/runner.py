"""The parent's side of the child process: start, caps, time limit, stop, and what it means when the child dies.

A kernel may segfault, hang, exhaust memory or print to the terminal; none of that may reach the program that asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from quantscope.errors import CancelledError
from quantscope.parity.model import Failure

POLL_S = 0.05
STDERR_KEPT = 16384
START_TIMEOUT_S = 60.0
GRACE_S = 2.0

CHILD_COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "quantscope.parity.child")
"""`-P` keeps the working folder out of the module path: it may be a checkpoint with a file called numpy.py."""

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
}


class ChildFailedError(Exception):
    """The child could not finish a job; `failure` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Worker:
    """One child process that serves jobs; started again after it died.

    Args:
        memory_bytes: cap on private memory of the child; three quarters of the machine's by default.
        command: how to start it.
        environment: more variables for it.
    """

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        command: Sequence[str] = CHILD_COMMAND,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._memory = default_memory() if memory_bytes is None else memory_bytes
        self._command = tuple(command)
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stderr = _Tail()
        self.starts = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @property
    def stderr_tail(self) -> str:
        """The end of what the child and its libraries printed."""
        return self._stderr.text()

    def run(
        self,
        job: dict[str, Any],
        *,
        timeout_s: float,
        on_step: Callable[[str, int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Any:
        """Serve one job and give its answer.

        Args:
            job: a JSON document for the child.
            timeout_s: wall time after which the child is killed.
            on_step: receives (stage, done, total).
            cancelled: polled at least every 50 ms.

        Raises:
            ChildFailedError: the job raised, or the child died, hung or could not be started.
            CancelledError: the job was stopped; the child is gone.
        """
        deadline = time.monotonic() + timeout_s
        self._start(deadline, cancelled)
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(job).encode("utf-8") + b"\n")
            process.stdin.flush()
        except OSError:
            raise ChildFailedError(self._autopsy()) from None
        while True:
            message = self._next(deadline, timeout_s, cancelled)
            kind, value = message["kind"], message["value"]
            if kind == "progress" and on_step is not None:
                on_step(*value)
            elif kind == "error":
                raise ChildFailedError(
                    Failure(
                        reason=value["reason"],
                        message=value["message"] or value["reason"],
                        stderr_tail=self.stderr_tail,
                    )
                )
            elif kind in ("result", "probe"):
                return value

    def close(self) -> None:
        """End the child, gently first."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        _kill(process)

    def _start(self, deadline: float, cancelled: Callable[[], bool] | None) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._messages = queue.SimpleQueue()
        self._stderr = _Tail()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={
                    **os.environ,
                    **_QUIET,
                    **self._environment,
                    "QUANTSCOPE_PARITY_MEMORY": str(self._memory),
                },
                start_new_session=True,
            )
        except OSError as problem:
            raise ChildFailedError(
                Failure(reason="did_not_start", message=f"the child process: {problem}")
            ) from None
        self.starts += 1
        threading.Thread(
            target=_pump_messages, args=(self._process.stdout, self._messages), daemon=True
        ).start()
        threading.Thread(
            target=self._stderr.pump, args=(self._process.stderr,), daemon=True
        ).start()
        limit = min(deadline, time.monotonic() + START_TIMEOUT_S)
        if self._next(limit, START_TIMEOUT_S, cancelled)["kind"] != "started":
            raise ChildFailedError(
                Failure(reason="bad_reply", message="the child process did not say that it started")
            )

    def _next(
        self, deadline: float, timeout_s: float, cancelled: Callable[[], bool] | None
    ) -> dict[str, Any]:
        while True:
            if cancelled is not None and cancelled():
                self._end_now()
                raise CancelledError("stopped")
            if time.monotonic() > deadline:
                tail = self.stderr_tail
                self._end_now()
                raise ChildFailedError(
                    Failure(
                        reason="timed_out",
                        message=f"no answer within {timeout_s:g} s; the child process was killed",
                        stderr_tail=tail,
                    )
                )
            try:
                message = self._messages.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if message is None:
                raise ChildFailedError(self._autopsy())
            if not isinstance(message, dict) or not {"kind", "value"} <= message.keys():
                self._end_now()
                raise ChildFailedError(
                    Failure(reason="bad_reply", message="the child process sent no message")
                )
            return message

    def _end_now(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)

    def _autopsy(self) -> Failure:
        """What an ended child's exit status says."""
        process, self._process = self._process, None
        if process is None:
            return Failure(reason="crashed", message="the child process is gone")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        _kill(process)
        self._stderr.wait(GRACE_S)
        return described_exit(process.returncode, self.stderr_tail)


def described_exit(code: int | None, stderr_tail: str) -> Failure:
    """A dead child's exit status in words."""
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if name == "SIGKILL":
            return Failure(
                reason="killed",
                message="the child process was killed from outside (the system does that when memory runs out)",
                signal=name,
                stderr_tail=stderr_tail,
            )
        told = {
            "SIGSEGV": "a memory fault in the kernel or its library",
            "SIGBUS": "a memory fault in the kernel or its library",
            "SIGILL": "an instruction that this processor does not have",
            "SIGFPE": "an arithmetic fault",
            "SIGABRT": "the library ended itself",
        }.get(name, "ended by a signal")
        return Failure(
            reason="crashed",
            message=f"the child process crashed: {name}, {told}",
            signal=name,
            stderr_tail=stderr_tail,
        )
    if "MemoryError" in stderr_tail or "bad_alloc" in stderr_tail:
        return Failure(
            reason="out_of_memory",
            message="the child process ran out of the memory it was given",
            exit_code=code,
            stderr_tail=stderr_tail,
        )
    return Failure(
        reason="crashed",
        message=f"the child process ended with status {code} before it answered",
        exit_code=code,
        stderr_tail=stderr_tail,
    )


def default_memory() -> int:
    """Three quarters of the machine's memory; 0 (no cap) where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    except (AttributeError, OSError, ValueError):
        return 0


class _Tail:
    """The last bytes of a stream, read by a thread so that the child never blocks on it."""

    def __init__(self) -> None:
        self._data = b""
        self._lock = threading.Lock()
        self._done = threading.Event()

    def pump(self, stream: IO[bytes]) -> None:
        for piece in iter(lambda: stream.read1(4096), b""):  # type: ignore[attr-defined]
            with self._lock:
                self._data = (self._data + piece)[-STDERR_KEPT:]
        self._done.set()

    def wait(self, seconds: float) -> None:
        self._done.wait(seconds)

    def text(self) -> str:
        with self._lock:
            return self._data.decode("utf-8", errors="backslashreplace")


def _pump_messages(stream: IO[bytes], messages: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in stream:
        try:
            messages.put(json.loads(line))
        except ValueError:
            messages.put({"text": line[:200]})
    messages.put(None)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a child and whatever it started."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (AttributeError, OSError):
            with contextlib.suppress(OSError):
                process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()
