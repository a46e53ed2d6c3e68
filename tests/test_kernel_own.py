"""The project's own kernel: one source, run as host code, interpreted, and compiled for devices that are not here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from quantscope.parity.model import Settings
from quantscope.parity.run import run_checkpoint
from quantscope_plugins.kernels import fixtures, own_compile, own_source
from quantscope_plugins.kernels.own import HostBuild

FOLDERS = (
    "autogptq-w4g128-asym",
    "auto-round-w4g128-asym-autogptq",
    "gptqmodel-w4g128-asym-v1",
    "gptqmodel-w4g128-asym-v2",
    "gptqmodel-w4g128-sym",
    "gptqmodel-w4g128-sym-descact",
    "autoawq-gemm-g128",
    "gptqmodel-awq-gemm-g128-asym",
    "llmcompressor-w4a16-asym-g128",
    "llmcompressor-w4a16-sym-g128",
    "llmcompressor-w4a16-sharded",
    "llmcompressor-kv-fp8-w4a16",
)

needs_compiler = pytest.mark.skipif(own_compile.host_compiler() is None, reason="no C++ compiler")


@pytest.mark.real
@needs_compiler
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_host_build_holds_with_proof_on_real_files(real_set: Path, folder: str) -> None:
    run = run_checkpoint(str(real_set / folder), "own:cuda_cpp@cpu", sample=2, keep=False)
    for result in run.results:
        assert result.outcome == "held", (result.tensor, result.reason)
        assert result.execution_proof == "proved"
        assert result.execution.method == "counter in the kernel"
        assert result.readout is not None
        assert result.readout.complete
        assert not any(control.state == "missed" for control in result.controls)
        assert "this is the project's own kernel" in result.limits[0]


@needs_compiler
@pytest.mark.parametrize(
    "fixture",
    [
        fixtures.gptq("minus_one"),
        fixtures.gptq("as_is"),
        fixtures.awq_gemm(),
        fixtures.row_packed("ct_pack"),
        fixtures.symmetric("ct_pack"),
    ],
    ids=lambda fixture: fixture.name,
)
def test_the_host_build_reads_known_words_exactly(fixture: object) -> None:
    from quantscope.parity.protocol import Fixture

    assert isinstance(fixture, Fixture)
    kernel = HostBuild()
    prepared = kernel.prepare(fixture.raw, "f32")
    x = np.eye(fixture.raw.shape[1], dtype=np.float32)
    assert (fixture.weights == kernel.run(prepared, x, "f32").T).all()


@needs_compiler
def test_half_scales_are_widened_like_numpy_does(tmp_path: Path) -> None:
    """Every finite half, subnormals and both signs, through the source's own conversion."""
    source = tmp_path / "half.cpp"
    source.write_text(
        own_source.HOST_SHIM
        + own_source.CUDA_SOURCE
        + "\n#include <cstdio>\nint main() { for (unsigned int i = 0; i < 65536; ++i) {"
        + ' union { float f; unsigned int u; } v; v.f = quantscope_half(i); printf("%u\\n", v.u); } }\n'
    )
    program = tmp_path / "half"
    compiler = own_compile.host_compiler()
    assert compiler is not None
    subprocess.run([compiler, "-O1", "-o", str(program), str(source)], check=True)
    lines = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.split()
    got = np.array(lines, dtype=np.uint32).view(np.float32)
    expected = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.isfinite(expected)
    assert (got[finite].view(np.uint32) == expected[finite].view(np.uint32)).all()
    assert (np.isnan(got) == np.isnan(expected)).all()


def test_without_a_compiler_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_compile, "host_compiler", lambda: None)
    refusal = HostBuild().missing()
    assert refusal is not None
    assert refusal.reason == "compiler_missing"


def test_the_source_needs_no_barrier_and_no_shared_memory() -> None:
    """What lets one text run on a device and on a host."""
    assert "__syncthreads" not in own_source.CUDA_SOURCE
    assert "__shared__" not in own_source.CUDA_SOURCE
    assert "#include" not in own_source.CUDA_SOURCE


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("capability", own_compile.CAPABILITIES)
def test_the_cuda_source_compiles_to_a_cubin(capability: int) -> None:
    assert own_compile.nvcc_cubin(capability).nbytes > 1000


@pytest.mark.torch
@pytest.mark.parametrize("capability", own_compile.CAPABILITIES)
def test_nvrtc_takes_the_cuda_source(capability: int) -> None:
    """What a user's torch compiles with: no driver is needed for that."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    source = own_source.CUDA_SOURCE.encode()
    error, program = nvrtc.nvrtcCreateProgram(source, b"w4a16.cu", 0, [], [])
    assert int(error) == 0
    options = [f"--gpu-architecture=sm_{capability}".encode()]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(error) != 0:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        pytest.fail(log.decode())
    error, size = nvrtc.nvrtcGetCUBINSize(program)
    assert int(error) == 0
    assert size > 1000


@pytest.mark.torch
@pytest.mark.parametrize("capability", own_compile.CAPABILITIES)
def test_the_triton_source_compiles_with_tensor_core_products_from_sm_80(capability: int) -> None:
    pytest.importorskip("triton")
    made = _compiled(capability, 0)
    assert made["nbytes"] > 10_000
    if capability >= own_compile.TENSOR_CORES_FROM:
        assert made["products"] >= 4
    else:
        assert made["products"] == 0


@pytest.mark.torch
@pytest.mark.parametrize("layout", [1, 2])
def test_the_other_layouts_compile_too(layout: int) -> None:
    pytest.importorskip("triton")
    assert _compiled(80, layout)["products"] >= 4


def _compiled(capability: int, layout: int) -> dict[str, int]:
    """In a process of its own: an interpreted triton cannot compile."""
    import json

    code = (
        "import json; from quantscope_plugins.kernels.own_compile import triton_cubin; "
        f"print(json.dumps(triton_cubin({capability}, {layout})._asdict()))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.torch
@pytest.mark.real
@pytest.mark.parametrize(
    "folder", ["autogptq-w4g128-asym", "autoawq-gemm-g128", "llmcompressor-w4a16-sym-g128"]
)
def test_the_interpreter_equals_the_reference_within_the_bound(real_set: Path, folder: str) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    run = run_checkpoint(
        str(real_set / folder),
        "own:triton@cpu",
        tensors=["model.layers.0.self_attn.k_proj"],
        keep=False,
        settings=Settings(max_columns=32),
    )
    result = run.results[0]
    assert result.outcome == "held", result.reason
    assert result.readout is not None
    assert result.readout.complete
    assert result.execution_proof == "not_applicable", "an interpreter is no compiled kernel"
    assert not result.executes_kernel
