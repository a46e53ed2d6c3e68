"""ggml's own products on the bytes of GGUF files, where a package carries the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quantscope.parity.model import Settings
from quantscope.parity.run import run_checkpoint
from quantscope_plugins.kernels import gguf_blocks
from quantscope_plugins.kernels.ggml import activation_type, rounded_activations
from quantscope_plugins.kernels.ggml_library import Ggml, find_libraries

needs_library = pytest.mark.skipif(
    not find_libraries(), reason="no package with libggml (pywhispercpp, llama-cpp-python)"
)

FOLDERS = (
    "gguf-iq1_s-imat",
    "gguf-iq2_xxs-imat",
    "gguf-iq4_nl",
    "gguf-mxfp4",
    "gguf-nvfp4",
    "gguf-q2_k",
    "gguf-q4_0",
    "gguf-q4_1",
    "gguf-q4_k_m",
    "gguf-q5_0",
    "gguf-q5_k_m",
    "gguf-q6_k",
    "gguf-q8_0",
    "gguf-split-q4_k_m",
    "gguf-tq1_0",
)


@pytest.mark.real
@needs_library
@pytest.mark.parametrize("folder", FOLDERS)
def test_ggml_holds_with_proof_on_real_files(real_set: Path, folder: str) -> None:
    run = run_checkpoint(str(real_set / folder), "ggml:mul_mat@cpu", sample=3, keep=False)
    for result in run.results:
        assert result.outcome == "held", (result.tensor, result.reason)
        assert result.execution_proof == "proved", result.execution.reason
        assert len(result.execution.library_sha256) == 64
        assert result.readout is not None
        assert result.readout.complete, result.readout
        assert not any(control.state == "missed" for control in result.controls)
        assert any(control.state == "detected" for control in result.controls)


@needs_library
def test_codes_of_a_fixture_come_back_exactly() -> None:
    ggml = Ggml(find_libraries()[0])
    for fixture in (
        gguf_blocks.q4_0_fixture(),
        gguf_blocks.q8_0_fixture(),
        gguf_blocks.q4_k_fixture(),
    ):
        kind = gguf_blocks.type_id(fixture.raw.facts["type"])
        n_cols = fixture.raw.shape[1]
        x = np.eye(n_cols, dtype=np.float32)[:16] * 127
        y = ggml.multiply(fixture.raw.arrays["blocks"], kind, n_cols, x)
        assert np.abs(y / 127 - fixture.weights[:, :16].T).max() < 1e-6


@needs_library
@pytest.mark.parametrize("element", ["Q8_0", "Q4_0", "Q4_K"])
def test_rounded_activations_are_the_librarys_own_rounding(element: str) -> None:
    """Weights are known; a product over our rounding of x must equal the library's product."""
    fixture = {
        "Q8_0": gguf_blocks.q8_0_fixture,
        "Q4_0": gguf_blocks.q4_0_fixture,
        "Q4_K": gguf_blocks.q4_k_fixture,
    }[element]()
    n_cols = fixture.raw.shape[1]
    x = np.random.default_rng(11).standard_normal((5, n_cols)).astype(np.float32)
    ggml = Ggml(find_libraries()[0])
    y = ggml.multiply(fixture.raw.arrays["blocks"], gguf_blocks.type_id(element), n_cols, x)
    ours = rounded_activations(x, activation_type(element)) @ fixture.weights.T
    plain = x.astype(np.float64) @ fixture.weights.T
    size = (np.abs(x) @ np.abs(fixture.weights).T).max()
    assert np.abs(y - ours).max() / size < 1e-6
    assert np.abs(y - plain).max() / size > 1e-5


def test_a_block_of_zeros_stays_zero() -> None:
    x = np.zeros((1, 256), np.float32)
    for kind in ("Q8_0", "Q8_1", "Q8_K"):
        assert not rounded_activations(x, kind).any()


def test_without_the_library_the_reason_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quantscope_plugins.kernels import ggml

    monkeypatch.setattr(ggml, "find_libraries", lambda: ())
    refusal = ggml.MulMat("cpu").missing()
    assert refusal is not None
    assert refusal.reason == "package_missing"
    assert "pywhispercpp" in refusal.detail


@needs_library
@pytest.mark.real
def test_one_setting_decides_the_bytes_that_were_read(real_set: Path) -> None:
    settings = Settings(max_columns=32)
    run = run_checkpoint(
        str(real_set / "gguf-q8_0"), "ggml", sample=1, keep=False, settings=settings
    )
    result = run.results[0]
    assert result.kernel == "mul_mat"
    assert result.readout is not None
    assert result.readout.columns == 32
    assert result.readout.in_tensor == result.shape[0] * result.shape[1]
