"""The console entry: the table of commands, the version, and every exit code that is not a result."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import click

from quantscope.cli import diagnostics
from quantscope.cli.diagnostics import ExitCode
from quantscope.cli.lazy import Entry, LazyGroup
from quantscope.errors import QuantscopeError

_PATH_COMMAND = "PATH"

COMMANDS: dict[str, Entry] = {
    "open": Entry("quantscope.cli.open_app", "the app, at a tensor, a tab or a byte"),
    "demo": Entry("quantscope.cli.demo", "the app on a bundled sample"),
    "list": Entry("quantscope.cli.listing", "stored and logical tensors as a plain table"),
    "scan": Entry("quantscope.cli.scan", "findings, by rule, worst first"),
    "show": Entry("quantscope.cli.show", "one tensor: contract, equations, zero point"),
    "decode": Entry("quantscope.cli.decode", "weights or codes of a window, to text or .npy"),
    "bytes": Entry("quantscope.cli.bytes_at", "hex and nibbles with their meaning"),
    "compare": Entry("quantscope.cli.compare", "two checkpoints: contract, zeros, values"),
    "parity": Entry("quantscope.cli.parity", "a real kernel against the reference"),
    "probe": Entry("quantscope.cli.probe", "logits, KL and NLL under readings"),
    "evidence": Entry("quantscope.cli.evidence", "checks a strict evidence file"),
    "report": Entry("quantscope.cli.report", "a report as JSON, Markdown, SARIF or HTML"),
    "recheck": Entry("quantscope.cli.recheck", "what of a report still holds for these bytes"),
    "extract": Entry("quantscope.cli.extract", "a minimal reproducer of one tensor"),
    "rules": Entry("quantscope.cli.rules", "the catalogue of rules"),
    "rule": Entry("quantscope.cli.rule", "one rule's page"),
    "samples": Entry("quantscope.cli.samples", "writes the sample checkpoints"),
    "plugins": Entry("quantscope.cli.plugins", "families, rules, kernels and what failed to load"),
    "serve": Entry("quantscope.cli.serve", "the app in a browser"),
    _PATH_COMMAND: Entry("quantscope.cli.open_path", "opens the app on a path"),
}

_LIBRARIES = ("click", "gguf", "msgspec", "numpy", "rich", "safetensors", "textual", "torch")


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    path_command=_PATH_COMMAND,
    invoke_without_command=True,
    no_args_is_help=False,
    subcommand_metavar="PATH | COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, help="The version; with --verbose, of libraries too.")
@click.option("--verbose", is_flag=True, help="More about the version.")
@click.pass_context
def cli(ctx: click.Context, version: bool, verbose: bool) -> None:
    """What a quantized checkpoint declares, what its bytes say, and where the two part.

    `quantscope PATH` opens the app on a file or a folder, or scans it where stdout is no terminal. Without a
    path the app offers what was open before.
    """
    if version:
        from quantscope.cli.output import write_text

        write_text("\n".join(version_lines(verbose)))
        ctx.exit(ExitCode.OK)
    if verbose:
        raise click.UsageError("--verbose goes with --version", ctx)
    if ctx.invoked_subcommand is None:
        if not (sys.stdout.isatty() and sys.stdin.isatty()):
            raise click.UsageError("give a path or a command", ctx)
        from quantscope.cli.open_app import open_app

        ctx.exit(open_app(None))


def version_lines(verbose: bool) -> list[str]:
    """The version, and with `verbose` Python, platform and libraries, none of them imported."""
    from quantscope import __version__

    lines = [f"quantscope {__version__}"]
    if verbose:
        import importlib.metadata
        import platform

        lines += [f"python {platform.python_version()}", f"platform {platform.platform()}"]
        for name in _LIBRARIES:
            try:
                lines.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                lines.append(f"{name} not installed")
    return lines


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code; nothing but KeyboardInterrupt's code escapes."""
    try:
        result = cli.main(args=list(arguments), prog_name="quantscope", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as problem:
        return _usage(problem)
    except click.FileError as problem:
        diagnostics.message(f"quantscope: {problem.format_message()}")
        return ExitCode.COULD_NOT_RUN
    except click.ClickException as problem:
        diagnostics.lines(f"quantscope: {problem.format_message()}")
        return problem.exit_code
    except (click.Abort, KeyboardInterrupt):
        diagnostics.message("quantscope: interrupted; nothing of this run is reported")
        return ExitCode.INTERRUPTED
    except QuantscopeError as problem:
        return diagnostics.error(problem)
    except BrokenPipeError:
        _discard_stdout()
        return ExitCode.OK
    except OSError as problem:
        name = f"{problem.filename}: " if problem.filename else ""
        diagnostics.message(f"quantscope: {name}{problem.strerror or problem}")
        return ExitCode.COULD_NOT_RUN
    except (Exception, RecursionError) as problem:  # the last boundary: becomes exit code 70
        return diagnostics.internal(problem, arguments)
    return result if isinstance(result, int) else ExitCode.OK


def main() -> None:
    """Entry point of the console script."""
    # A checkpoint is hundreds of thousands of objects that all stay: the collector need not look every 700.
    gc.set_threshold(20_000)
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        _discard_stdout()
    sys.exit(int(code))


def _usage(problem: click.UsageError) -> int:
    if problem.ctx is not None:
        diagnostics.lines(problem.ctx.get_usage())
    diagnostics.lines(f"quantscope: {_usage_words(problem)}")
    return ExitCode.USAGE


def _usage_words(problem: click.UsageError) -> str:
    """What is wrong, and where the words belong if another order would be right."""
    text = problem.format_message()
    if problem.ctx is None:
        return text
    root = problem.ctx.find_root()
    if (
        isinstance(problem, click.NoSuchOption)
        and isinstance(root.command, LazyGroup)
        and root.command.commands_with(root, problem.option_name)
    ):
        return root.command.misplaced(root, problem.option_name)
    if problem.ctx.info_name == _PATH_COMMAND and "unexpected extra argument" in text:
        return f"{text}; a command comes first: `quantscope COMMAND PATH`"
    return text


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own flush at exit stays quiet."""
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(sink)
