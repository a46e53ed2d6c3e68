from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = '{"schema_version":1,"tensor":{"reference":[1,2],"candidate":[2,4]}}'
OVERFLOW = '{"schema_version":1,"tensor":{"reference":[-1e308],"candidate":[1e308]}}'
PACKING = (
    '{"schema_version":1,"uint4":{"codes":[0,1,2],"packed_bytes":[1,2],"logical_length":3,'
    '"scale":0.5,"zero_point":1,"rounding":"ties_to_even","layout":"low_first"}}'
)


def quantscope(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The console command in a process of its own."""
    program = "from quantscope.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "evidence", *arguments],
        capture_output=True,
        check=False,
        timeout=60,
    )


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "evidence.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_success_is_one_json_document_on_stdout_and_silence_on_stderr(tmp_path: Path) -> None:
    done = quantscope(write(tmp_path, GOOD))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"}\n")
    document = json.loads(done.stdout.decode("utf-8"))
    assert document["results"]["tensor"]["mse"] == 2.5
    assert "self_test" not in document
    assert list(document) == sorted(document)


@pytest.mark.parametrize(("text", "word"), [(OVERFLOW, b"numeric_error"), (PACKING, b"nibble")])
def test_numeric_and_packing_failure_are_exit_1_with_the_document(
    tmp_path: Path, text: str, word: bytes
) -> None:
    done = quantscope(write(tmp_path, text))
    assert done.returncode == 1
    assert word in done.stderr
    assert json.loads(done.stdout)["overall"] == "incomplete"


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", b"JSON"),
        (b"\xef\xbb\xbf" + GOOD.encode(), b"byte order mark"),
        (GOOD.replace("[2,4]", "[2,NaN]").encode(), b"$.tensor.candidate[1]"),
        (b'{"schema_version":1}', b"no group"),
        (b"[" * 100_000, b"deep"),
    ],
    ids=["empty", "bom", "nan", "no-group", "deep"],
)
def test_input_errors_are_exit_2_with_nothing_on_stdout(
    tmp_path: Path, data: bytes, word: bytes
) -> None:
    done = quantscope(write(tmp_path, data))
    assert (done.returncode, done.stdout) == (2, b"")
    assert word in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--self-test", "FILE"),
        ("FILE", "FILE"),
        ("--self",),
        ("--self-tes",),
        ("--selftest",),
        ("--self-test=yes",),
        ("-s",),
        ("--unknown", "FILE"),
    ],
)
def test_wrong_words_are_exit_2_with_nothing_on_stdout(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    path = write(tmp_path, GOOD)
    done = quantscope(*(path if word == "FILE" else word for word in arguments))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Usage" in done.stderr
    assert b"Traceback" not in done.stderr


def test_self_test_passes() -> None:
    done = quantscope("--self-test")
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    assert document["self_test"]["status"] == "passed"
    assert document["overall"] == "incomplete"
    assert document["input_sha256"] is None


def test_what_cannot_be_read_is_exit_2(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "fifo", "/dev/zero", "a\x1b[31mb"):
        done = quantscope(str(path))
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"\x1b" not in done.stderr
        assert b"Traceback" not in done.stderr


def test_hostile_keys_reach_no_terminal_raw(tmp_path: Path) -> None:
    hostile = "\\u001b]0;title\\u0007\\u202e"
    done = quantscope(write(tmp_path, f'{{"schema_version":1,"{hostile}":1}}'))
    assert done.returncode == 2
    assert done.stderr.decode().replace("\n", "").isprintable()
    claim = f'{{"schema_version":1,"external_evidence":{{"{hostile}\x7f\u009b":"{hostile}"}}}}'
    done = quantscope(write(tmp_path, claim))
    assert done.returncode == 0
    assert done.stdout.decode().replace("\n", "").isprintable()


def test_broken_pipe_is_no_traceback(tmp_path: Path) -> None:
    program = "from quantscope.cli.main import main; main()"
    path = write(tmp_path, GOOD)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program, "evidence", path],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert b"Traceback" not in done.stderr


def test_command_alone_keeps_its_exit_codes(tmp_path: Path) -> None:
    from click.testing import CliRunner
    from quantscope.cli.evidence import command

    runner = CliRunner()
    assert runner.invoke(command, [write(tmp_path, GOOD)]).exit_code == 0
    assert runner.invoke(command, [write(tmp_path, PACKING)]).exit_code == 1
    assert runner.invoke(command, []).exit_code == 2
    assert runner.invoke(command, ["--self-tes"]).exit_code == 2


def test_a_file_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quantscope.cli import evidence
    from quantscope.evidence.strict_json import EvidenceInputError

    monkeypatch.setattr(evidence, "MAX_INPUT_BYTES", 10)
    with pytest.raises(EvidenceInputError, match="more than 10 bytes"):
        evidence.read_input(write(tmp_path, GOOD))
    assert evidence.read_input(write(tmp_path, "0123456789")) == b"0123456789"
