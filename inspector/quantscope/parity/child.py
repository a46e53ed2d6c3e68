"""The child process: jobs in on stdin, messages out, everything else that libraries print to stderr.

A line is one JSON document. In: a job. Out: `started`, `progress`, `result`, `probe`, `error`. When stdin closes
the process ends at once, so that it never outlives its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import Any

import msgspec


class Channel:
    """Messages to the parent, on a descriptor that no library writes to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, kind: str, value: Any) -> None:
        """One message, whole."""
        line = json.dumps({"kind": kind, "value": msgspec.to_builtins(value)}) + "\n"
        data = line.encode("utf-8")
        while data:
            data = data[os.write(self._descriptor, data) :]

    def step(self, stage: str, done: int, total: int) -> None:
        """Progress of the job."""
        self.send("progress", [stage, done, total])


def main() -> int:
    """Serve jobs until stdin closes."""
    channel = own_stdout()
    cap_memory(int(os.environ.get("QUANTSCOPE_PARITY_MEMORY", "0")))
    jobs = jobs_from_stdin()
    channel.send("started", os.getpid())
    while True:
        line = jobs.get()
        if line is None:
            return 0
        try:
            _serve(json.loads(line), channel)
        except MemoryError as problem:
            channel.send("error", {"reason": "out_of_memory", "message": str(problem)})
        except Exception as problem:  # boundary: whatever a kernel raises is a result
            channel.send("error", described(problem))


def _serve(job: dict[str, Any], channel: Channel) -> None:
    if job["kind"] == "probe":
        from quantscope.parity.probing import probe_all

        channel.send("probe", probe_all(job["backends"]))
        return
    from quantscope.checkpoint import Checkpoint
    from quantscope.parity.check import check_tensor, reading_from_json
    from quantscope.parity.model import Settings
    from quantscope.parity.probing import kernel_named
    from quantscope.parity.protocol import Weight

    settings = msgspec.convert(job["settings"], Settings)
    kernel = None if settings.emulate else kernel_named(job["backend"], job["kernel"])
    with Checkpoint.open(job["path"]) as checkpoint:
        tensor = checkpoint.find(job["tensor"])
        weight = Weight(tensor=tensor, reading=reading_from_json(job["reading"]))
        result = check_tensor(checkpoint, weight, job["backend"], kernel, settings, channel.step)
    channel.send("result", result)


def described(problem: Exception) -> dict[str, str]:
    """What a job raised, as an error message; the traceback goes to stderr."""
    text = f"{type(problem).__name__}: {problem}"
    memory = "out of memory" in text.lower() or "can't allocate memory" in text.lower()
    lines = traceback.format_exception(problem)
    sys.stderr.write("".join(lines)[-4000:])
    return {"reason": "out_of_memory" if memory else "raised", "message": text[:2000]}


def own_stdout() -> Channel:
    """Keep the real stdout for messages and send whatever else is printed to stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return Channel(descriptor)


def jobs_from_stdin() -> Any:
    """A queue of lines, filled by a thread; it ends the process when stdin closes."""
    import queue

    jobs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def pump() -> None:
        for line in sys.stdin.buffer:
            if line.strip() == b"stop":
                jobs.put(None)
                return
            jobs.put(line)
        os._exit(0)

    threading.Thread(target=pump, daemon=True).start()
    return jobs


def cap_memory(nbytes: int) -> None:
    """Limit private memory and core files where the system can; a device's reserved addresses do not count."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if nbytes > 0:
        limit = getattr(resource, "RLIMIT_DATA", resource.RLIMIT_AS)
        _, hard = resource.getrlimit(limit)
        ceiling = nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard)
        resource.setrlimit(limit, (ceiling, hard))


if __name__ == "__main__":
    sys.exit(main())
