"""`extract`: small copies that official loaders open and that show the same finding."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors
from checkpoint_builder import read_safetensors_values, write_checkpoint
from quantscope.cli import main
from report_checkpoints import config, write_gptq, write_liar

MODULES = tuple(f"model.layers.{i}.mlp.up_proj" for i in range(10))
MODULE = MODULES[4]


def extract(path: Path, name: str, target: Path, code: int = 0) -> Path:
    assert main.run(["extract", str(path), "--tensor", name, "-o", str(target)]) == code
    return target


def test_planes_are_copied_byte_for_byte_with_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path / "c", MODULES)
    target = extract(tmp_path / "c", MODULE, tmp_path / "r")
    before = read_safetensors_values(tmp_path / "c" / "model.safetensors")
    with safetensors.safe_open(target / "model.safetensors", framework="np") as copy:
        assert sorted(copy.keys()) == sorted(n for n in before if n.startswith(MODULE))
        metadata = copy.metadata()
        assert metadata.pop("quantscope_extract").endswith("stored tensors")
        assert metadata == {"format": "pt"}
        assert all(np.array_equal(copy.get_tensor(name), before[name]) for name in copy.keys())  # noqa: SIM118
    assert (target / "config.json").read_bytes() == (tmp_path / "c" / "config.json").read_bytes()
    assert sum(file.stat().st_size for file in target.iterdir()) < 100_000
    assert "same finding: QZ002" in capsys.readouterr().err
    assert main.run(["scan", str(target), "--quiet"]) == 2


def test_the_folder_must_be_new_or_empty(tmp_path: Path) -> None:
    write_gptq(tmp_path / "c", MODULES[:1])
    assert (
        main.run(
            ["extract", str(tmp_path / "c"), "--tensor", MODULES[0], "-o", str(tmp_path / "c")]
        )
        == 4
    )


def test_a_finding_about_siblings_brings_them_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A width that differs between q, k and v shows only where all of them are there."""
    write_gptq(tmp_path / "c", MODULES[:1])
    names = tuple(f"model.layers.0.self_attn.{n}_proj" for n in "qkv")
    planes = write_gptq(tmp_path / "c", names)
    tensors: dict[str, object] = {}
    for number, (name, module) in enumerate(planes.items()):
        tensors |= module.tensors(name, minus_one=number == 1)
    write_checkpoint(tmp_path / "c", tensors, config(None))
    main.run(["extract", str(tmp_path / "c"), "--tensor", names[0], "-o", str(tmp_path / "r")])
    err = capsys.readouterr().err
    assert "same finding:" in err or "NOT in the copy" in err


@pytest.mark.real
def test_a_block_tensor_becomes_a_gguf_that_the_package_reads(
    real_set: Path, tmp_path: Path
) -> None:
    source = next((real_set / "gguf-q4_k_m").glob("*.gguf"))
    target = extract(source, "blk.0.attn_q.weight", tmp_path / "r") / "reproducer.gguf"
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(target)
    (tensor,) = after.tensors
    original = next(t for t in before.tensors if t.name == tensor.name)
    assert tensor.tensor_type == original.tensor_type
    assert tensor.shape.tolist() == original.shape.tolist()
    assert np.array_equal(tensor.data, original.data)
    assert after.fields["general.architecture"].contents() == "llama"
    assert "tokenizer.ggml.tokens" not in after.fields
    assert target.stat().st_size < 100_000


@pytest.mark.real
def test_big_endian_stays_big_endian(real_set: Path, tmp_path: Path) -> None:
    from quantscope.checkpoint import Checkpoint
    from quantscope.report.container_writers import gguf_chunks

    source = next((real_set / "gguf-f16-bigendian").glob("*.gguf"))
    with Checkpoint.open(str(source)) as checkpoint:
        stored = checkpoint.opened.tensors[:2]
        data = b"".join(gguf_chunks(checkpoint.file(0), stored, checkpoint.sources))
    target = tmp_path / "x.gguf"
    target.write_bytes(data)
    after = gguf.GGUFReader(target)
    assert after.endianess == gguf.GGUFEndian.BIG
    assert [t.name for t in after.tensors] == [t.name for t in stored]


@pytest.mark.real
@pytest.mark.parametrize(
    "folder",
    [
        "gptqmodel-w4g128-sym-descact",
        "autoawq-gemm-g128",
        "llmcompressor-nvfp4",
        "llmcompressor-w4a16-sharded",
        "bitsandbytes-nf4-dq",
        "mlx-q4-g64",
        "modelopt-nvfp4",
        "torchao-int8wo",
        "quanto-qint4",
    ],
)
def test_a_copy_decodes_to_the_same_weights(folder: str, real_set: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    target = extract(real_set / folder, name, tmp_path / "r")
    arrays = []
    for number, path in enumerate((real_set / folder, target)):
        file = tmp_path / f"{number}.npy"
        assert main.run(["decode", str(path), "--tensor", name, "--out", str(file)]) == 0
        arrays.append(np.load(file))
    assert np.array_equal(*arrays)
    with safetensors.safe_open(target / "model.safetensors", framework="np") as copy:
        assert list(copy.keys())


CONTAINER = ("QC", "QH")


def _faulty(sample: Path) -> list[tuple[str, str]]:
    """Codes of findings on a tensor of a sample that are no container's fault, with the tensor."""
    from quantscope.checkpoint import Checkpoint
    from quantscope.rules.catalogue import judge
    from quantscope.session.pipeline import inspect

    with Checkpoint.open(str(sample)) as checkpoint:
        findings = judge(inspect(checkpoint)).findings
        if any(finding.code.startswith(CONTAINER) for finding in findings):
            return []
        names = {tensor.name for tensor in checkpoint.grouping.tensors}
        found = {}
        for finding in findings:
            own = [n for n in (finding.subject.tensor, *finding.members) if n in names]
            if finding.severity != "note" and own:
                found.setdefault(own[0], finding.code)
        return list(found.items())


def test_every_faulty_sample_gives_a_small_copy_with_its_finding(
    every_sample: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = 0
    for sample in every_sample:
        for number, (name, code) in enumerate(_faulty(sample)):
            target = extract(sample, name, tmp_path / f"{sample.name}-{number}")
            assert f"same finding: {code}" in capsys.readouterr().err, sample.name
            size = sum(file.stat().st_size for file in target.iterdir())
            assert size < 100_000, (sample.name, name, size)
            for file in target.glob("*.safetensors"):
                with safetensors.safe_open(file, framework="np") as copy:
                    assert list(copy.keys()), sample.name
            for file in target.glob("*.gguf"):
                assert gguf.GGUFReader(file).tensors, sample.name
            copies += 1
    assert copies > 40


def test_a_fault_of_the_container_is_said_to_stay_behind(
    every_sample: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = next(path for path in every_sample if path.name == "index-omits")
    extract(sample, "model.layers.0.self_attn.k_proj.weight", tmp_path / "r", code=1)
    assert "the fault is in the container" in capsys.readouterr().err
    truncated = next(path for path in every_sample if path.name == "st-truncated")
    words = ["extract", str(truncated), "-o", str(tmp_path / "t"), "--tensor"]
    assert main.run([*words, "model.layers.1.self_attn.v_proj.weight"]) == 4
