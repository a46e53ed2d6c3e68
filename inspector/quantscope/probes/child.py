"""The child process of a logits check: a request in on stdin, progress and one result out."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import msgspec

from quantscope.errors import QuantscopeError
from quantscope.parity.child import Channel, cap_memory, described, jobs_from_stdin, own_stdout


def main() -> int:
    """Serve requests until stdin closes."""
    channel = own_stdout()
    cap_memory(int(os.environ.get("QUANTSCOPE_PARITY_MEMORY", "0")))
    jobs = jobs_from_stdin()
    channel.send("started", os.getpid())
    while True:
        line = jobs.get()
        if line is None:
            return 0
        _serve(json.loads(line), channel)


def _serve(job: dict[str, Any], channel: Channel) -> None:
    from quantscope.probes.measure import LogitsCheck
    from quantscope.probes.model import ProbeRequest

    try:
        request = msgspec.convert(job, ProbeRequest)
        check = LogitsCheck(
            request,
            channel.step,
            # The fourth value is what a stopped run keeps.
            lambda side: channel.send("progress", [side.label, 1, 1, msgspec.to_builtins(side)]),
        )
        channel.send("result", check.run())
    except MemoryError as problem:
        channel.send("error", {"reason": "out_of_memory", "message": str(problem)})
    except QuantscopeError as problem:
        hint = f" ({problem.hint})" if problem.hint else ""
        channel.send("error", {"reason": "refused", "message": problem.message + hint})
    except Exception as problem:  # boundary: whatever the model's code raises is a result
        channel.send("error", described(problem))


if __name__ == "__main__":
    sys.exit(main())
