"""`quantscope samples DIR`: writes the sample checkpoints, good and faulty."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from quantscope.cli import diagnostics, output, tables
from quantscope.cli.diagnostics import ExitCode
from quantscope.errors import UnreadableError
from quantscope.report.words import SEVERITY_WORDS, count_words

if TYPE_CHECKING:
    from quantscope.samples.sample import Sample


@click.command("samples", short_help="Writes the sample checkpoints.")
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="DIR")
@click.option("--list", "names_only", is_flag=True, help="Name the samples, write nothing.")
def command(folder: Path | None, names_only: bool) -> int:
    """Write every sample into DIR, one folder each, with a MANIFEST.json of what must be found.

    Nothing that is there already is touched.
    """
    from quantscope.samples.library import list_samples, write_samples

    found = list_samples()
    if names_only == (folder is not None):
        raise click.UsageError("give either DIR or --list")
    if folder is None:
        rows = [
            (s.name, "faulty" if s.make is not None else "good", f"{s.what}{_finds(s)}")
            for s in found
        ]
        output.write_text("\n".join(tables.wrapped(("name", "kind", "what"), rows)))
        return ExitCode.OK
    taken = [sample.name for sample in found if (folder / sample.name).exists()]
    if taken or (folder / "MANIFEST.json").exists():
        raise UnreadableError(
            f"{folder} holds {taken[0] if taken else 'MANIFEST.json'} already",
            hint="give an empty or new folder",
            source=str(folder),
        )
    written = write_samples(folder)
    output.write_text("\n".join(diagnostics.inert(str(path)) for path in written))
    diagnostics.message(f"wrote {count_words(len(written), 'sample')} to {folder}")
    return ExitCode.OK


def _finds(sample: Sample) -> str:
    """What a scan says of a sample, where that is anything above a note."""
    told = [
        f"{SEVERITY_WORDS[e.severity]} {e.code}" for e in sample.expected if e.severity != "note"
    ]
    return f"; a scan says {', '.join(dict.fromkeys(told))}" if told else ""


def samples() -> list[Path]:
    """Folders of the samples that are shipped ready made.

    Raises:
        UsageError: this installation holds none.
    """
    from quantscope.samples.library import shipped_folder

    return sorted(path for path in shipped_folder().iterdir() if path.is_dir())
