"""Whose reading the value under the cursor is: the file's, custom's, or nobody's."""

from __future__ import annotations

from pathlib import Path

from quantscope.checkpoint import Checkpoint
from quantscope.samples import write_samples
from quantscope.session.pipeline import inspect
from quantscope_views.present.bytes_lines import (
    page_lines,
    value_about,
)
from quantscope_views.present.bytes_model import BytesPage, PageRequest
from quantscope_views.present.bytes_page import PageReader
from quantscope_views.present.reading_choice import choice_of

SAMPLES = Path(__file__).resolve().parents[1] / "sample_checkpoints"


def sample_page(folder: Path, name: str, row: int = 0) -> BytesPage:
    """The page of an element of a faulty sample's first k_proj."""
    checkpoint = Checkpoint.open(str(write_samples(folder / name, [name])[0]))
    states = inspect(checkpoint).states
    state = next(s for s in states if s.tensor.name == "model.layers.0.self_attn.k_proj.weight")
    choice = choice_of(state)
    assert choice is not None
    return PageReader(checkpoint, state, choice).read(
        PageRequest(row=row, col=0, height=6, line_bytes=16)
    )


def test_a_claim_that_the_sizes_rule_out_is_not_what_the_value_is_said_to_be(
    tmp_path: Path,
) -> None:
    page = sample_page(tmp_path, "gptq-declared-bits")
    text = "\n".join(line.text for line in page_lines(page, 80, 20, ascii_only=False))
    assert "file claims u8: does not fit" in text
    assert "as the file claims" not in text
    assert "as the file claims" not in "\n".join(value_about(page))
    sound = sample_page(tmp_path, "smol-w4-liar")
    text = "\n".join(line.text for line in page_lines(sound, 80, 20, ascii_only=False))
    assert "= -0.405273   as the file claims" in text


def test_a_value_that_is_no_number_is_written_one_way(tmp_path: Path) -> None:
    page = sample_page(tmp_path, "gptq-scale-nan", row=5)
    about = "\n".join(value_about(page))
    assert "= NaN (exact float32 steps)" in about
    assert "nan" not in about


def test_what_nothing_declares_is_not_what_the_file_claims(tmp_path: Path) -> None:
    page = sample_page(tmp_path, "mlx-no-config")
    text = "\n".join(line.text for line in page_lines(page, 80, 20, ascii_only=False))
    assert "by custom: nothing declares it" in text
    assert "as the file claims" not in text + "\n".join(value_about(page))
