"""Sample checkpoints: small real ones, and copies with one fault each, made by one deterministic script."""

from __future__ import annotations

from quantscope.samples.library import (
    faults,
    list_samples,
    make_sample,
    manifest,
    sample_path,
    write_samples,
)
from quantscope.samples.sample import Expected, Sample

__all__ = [
    "Expected",
    "Sample",
    "faults",
    "list_samples",
    "make_sample",
    "manifest",
    "sample_path",
    "write_samples",
]
