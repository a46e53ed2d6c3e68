"""Paths: which files of a folder are the checkpoint, and how an index agrees with its shards."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantscope.containers.detect import open_path
from quantscope.containers.issues import severity_of
from quantscope.containers.records import ContainerIssue, Opened
from quantscope.errors import NotACheckpointError, UnreadableError
from safetensors.numpy import save_file


def _save(path: Path, *names: str, size: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.zeros(size, np.float32) for name in names}, path)
    return path


def _index(folder: Path, weight_map: Mapping[str, Any], **metadata: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


def _open(path: Path) -> Opened:
    opened, sources = open_path(str(path))
    sources.close()
    return opened


def _names(opened: Opened) -> list[str]:
    return [file.name for file in opened.files]


def _tensors(opened: Opened) -> list[str]:
    return sorted(tensor.name for tensor in opened.tensors)


def _issue(opened: Opened, slug: str) -> ContainerIssue:
    (issue,) = [one for one in opened.issues if one.name == slug]
    return issue


def _grave(opened: Opened) -> set[str]:
    return {issue.name for issue in opened.issues if severity_of(issue) != "note"}


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two shards with two tensors each, and a right index."""
    folder = tmp_path / "ck"
    _save(folder / SHARDS[0], "a.weight", "b.weight")
    _save(folder / SHARDS[1], "c.weight", "d.weight")
    _index(
        folder,
        {
            "a.weight": SHARDS[0],
            "b.weight": SHARDS[0],
            "c.weight": SHARDS[1],
            "d.weight": SHARDS[1],
        },
        total_size=64,
    )
    return folder


# ---- which files ---------------------------------------------------------------------------


def test_a_file_opens_alone(tmp_path: Path) -> None:
    path = _save(tmp_path / "x.safetensors", "a")
    _save(tmp_path / "y.safetensors", "b")
    opened = _open(path)
    assert (opened.kind, _names(opened), _tensors(opened)) == ("file", ["x.safetensors"], ["a"])
    assert opened.files[0].path == str(path)


def test_the_pool_reads_the_bytes_of_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    array = np.arange(10, dtype=np.float32)
    save_file({"a": array}, path)
    opened, sources = open_path(str(path))
    with sources:
        (tensor,) = opened.tensors
        data = sources.read_at(tensor.file_id, tensor.byte_offset, tensor.nbytes)
    assert data == array.tobytes()


def test_an_index_opens_all_its_shards_as_file_and_as_folder(sharded: Path) -> None:
    for path, kind in ((sharded, "folder"), (sharded / "model.safetensors.index.json", "index")):
        opened = _open(path)
        assert (opened.kind, _names(opened)) == (kind, list(SHARDS))
        assert _tensors(opened) == ["a.weight", "b.weight", "c.weight", "d.weight"]
        assert not opened.issues
        assert opened.index["metadata"]["total_size"] == 64


def test_a_single_file_wins_over_shards_and_strangers(tmp_path: Path) -> None:
    _save(tmp_path / "model.safetensors", "a")
    _save(tmp_path / "oracle.safetensors", "z", size=999)
    for name in SHARDS:
        _save(tmp_path / name, "b")
    _save(tmp_path / "model.fp16.safetensors", "a")
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"GGUF" + bytes(64))
    opened = _open(tmp_path)
    assert _names(opened) == ["model.safetensors"]
    assert opened.variants == (
        "model-00001-of-00002.safetensors",
        "model-Q4_K_M.gguf",
        "model.fp16.safetensors",
        "oracle.safetensors",
    )
    assert not opened.issues


def test_shards_without_index_are_one_set_and_missing_ones_are_told(tmp_path: Path) -> None:
    for name, tensor in zip(SHARDS, ("a", "b"), strict=True):
        _save(tmp_path / name, tensor)
    _save(tmp_path / "consolidated.safetensors", "tok_embeddings.weight", size=500)
    opened = _open(tmp_path)
    assert _names(opened) == list(SHARDS)
    assert opened.variants == ("consolidated.safetensors",)
    assert not _grave(opened)
    (tmp_path / SHARDS[0]).unlink()
    opened = _open(tmp_path)
    issue = _issue(opened, "set-incomplete")
    assert (issue.kind, issue.data["missing"]) == ("IDX-SHARD", [1])
    assert _tensors(opened) == ["b"]


def test_shards_of_the_usual_name_win_over_larger_ones(tmp_path: Path) -> None:
    for name in SHARDS:
        _save(tmp_path / name, name)
        _save(tmp_path / name.replace("model", "extra"), name, size=999)
    opened = _open(tmp_path)
    assert _names(opened) == list(SHARDS)
    assert opened.variants == ("extra-00001-of-00002.safetensors",)


def test_a_name_in_two_shards_of_a_set_is_told(tmp_path: Path) -> None:
    for name in SHARDS:
        _save(tmp_path / name, "same")
    opened = _open(tmp_path)
    assert _issue(opened, "set-tensor-twice").data["files"] == list(SHARDS)
    assert len(opened.tensors) == 1


def test_files_with_other_tensors_are_one_set_and_with_the_same_are_alternatives(
    tmp_path: Path,
) -> None:
    _save(tmp_path / "part_one.safetensors", "a")
    _save(tmp_path / "part_two.safetensors", "b", size=100)
    opened = _open(tmp_path)
    assert _names(opened) == ["part_one.safetensors", "part_two.safetensors"]
    _save(tmp_path / "part_one.safetensors", "a", "b")
    opened = _open(tmp_path)
    assert _names(opened) == ["part_two.safetensors"]
    assert opened.variants == ("part_one.safetensors",)


def test_gptq_names_lead_and_the_rest_is_beside(tmp_path: Path) -> None:
    _save(tmp_path / "gptq_model-4bit-128g.safetensors", "a.qweight")
    _save(tmp_path / "aaa.safetensors", "a.weight", size=500)
    opened = _open(tmp_path)
    assert _names(opened) == ["gptq_model-4bit-128g.safetensors"]
    assert opened.variants == ("aaa.safetensors",)


def test_an_adapter_alone_is_opened_and_beside_a_model_is_a_variant(tmp_path: Path) -> None:
    _save(tmp_path / "adapter_model.safetensors", "lora_A.weight", size=100)
    assert _names(_open(tmp_path)) == ["adapter_model.safetensors"]
    _save(tmp_path / "weights.safetensors", "a")
    opened = _open(tmp_path)
    assert _names(opened) == ["weights.safetensors"]
    assert opened.variants == ("adapter_model.safetensors",)


def _gguf(path: Path, size: int, *, split: tuple[int, int, int] | None = None) -> None:
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(path), "llama")
    name = "t"
    if split:
        writer.add_uint16("split.no", split[0])
        writer.add_uint16("split.count", split[1])
        writer.add_int32("split.tensors.count", split[2])
        name = f"t{split[0]}"
    writer.add_tensor(name, np.zeros(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_of_several_ggufs_the_largest_is_opened_but_never_a_projector(tmp_path: Path) -> None:
    _gguf(tmp_path / "m-Q4_0.gguf", 64)
    _gguf(tmp_path / "m-Q8_0.gguf", 128)
    _gguf(tmp_path / "mmproj-m-F16.gguf", 512)
    opened = _open(tmp_path)
    assert _names(opened) == ["m-Q8_0.gguf"]
    assert opened.variants == ("m-Q4_0.gguf", "mmproj-m-F16.gguf")


def test_a_stray_safetensors_file_gives_way_to_a_gguf(tmp_path: Path) -> None:
    _gguf(tmp_path / "m-Q4_0.gguf", 8)
    _save(tmp_path / "oracle.safetensors", "a", size=999)
    opened = _open(tmp_path)
    assert _names(opened) == ["m-Q4_0.gguf"]
    assert opened.variants == ("oracle.safetensors",)


def test_a_corrupt_shard_leaves_the_others_open(sharded: Path) -> None:
    (sharded / SHARDS[0]).write_bytes(b"\xff" * 100)
    opened = _open(sharded)
    assert [file.parsed for file in opened.files] == [False, True]
    assert _tensors(opened) == ["c.weight", "d.weight"]
    assert "st-header-too-large" in _grave(opened)
    assert "index-tensor-missing" not in _grave(opened)


def test_a_pipe_in_place_of_a_shard_is_told_and_does_not_wait(sharded: Path) -> None:
    (sharded / SHARDS[0]).unlink()
    os.mkfifo(sharded / SHARDS[0])
    opened = _open(sharded)
    assert "named pipe" in _issue(opened, "file-unreadable").message
    assert _tensors(opened) == ["c.weight", "d.weight"]


# ---- nothing to open ----------------------------------------------------------------------


def test_a_folder_without_weights_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpointError, match="empty folder") as caught:
        open_path(str(tmp_path))
    assert caught.value.exit_code == 4
    (tmp_path / "README.md").write_text("hello")
    with pytest.raises(NotACheckpointError):
        open_path(str(tmp_path))
    _save(tmp_path / "unet" / "diffusion_pytorch_model.safetensors", "a")
    with pytest.raises(NotACheckpointError) as caught:
        open_path(str(tmp_path))
    assert "unet" in caught.value.hint


def test_other_files_and_devices_are_no_checkpoint(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(NotACheckpointError):
        open_path(str(text))
    config = tmp_path / "config.json"
    config.write_text("{}")
    with pytest.raises(NotACheckpointError):
        open_path(str(config))
    with pytest.raises(UnreadableError, match="does not exist"):
        open_path(str(tmp_path / "absent"))
    with pytest.raises(UnreadableError, match="neither"):
        open_path("/dev/null")


@pytest.mark.parametrize(
    ("data", "slug"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "pt-lfs-pointer"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "pt-legacy-pickle"),
        (b"", "pt-empty-file"),
        (b"garbage garbage", "pt-unknown"),
    ],
    ids=["lfs", "legacy", "empty", "garbage"],
)
def test_a_folder_with_only_pickles_or_pointers_opens_unparsed(
    data: bytes, slug: str, tmp_path: Path
) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(data)
    opened = _open(tmp_path)
    assert [file.parsed for file in opened.files] == [False]
    assert [issue.name for issue in opened.issues] == [slug]


# ---- split GGUF -----------------------------------------------------------------------------


def _part(no: int, count: int = 3) -> str:
    return f"m-{no:05d}-of-{count:05d}.gguf"


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Three parts with one tensor each."""
    for no in range(3):
        _gguf(tmp_path / _part(no + 1), 64, split=(no, 3, 3))
    return tmp_path


def test_a_split_set_opens_by_any_part_and_by_its_folder(split: Path) -> None:
    for name in ("", *(_part(no) for no in (1, 2, 3))):
        opened = _open(split / name)
        assert opened.kind == ("split" if name else "folder")
        assert _names(opened) == [_part(1), _part(2), _part(3)]
        assert _tensors(opened) == ["t0", "t1", "t2"]
        assert not opened.issues


def test_parts_that_are_missing_empty_or_broken_are_told(split: Path) -> None:
    (split / _part(2)).write_bytes(b"")
    opened = _open(split)
    assert _issue(opened, "gg-split-empty").kind == "GG-SPLIT"
    assert "gg-empty-file" in _grave(opened)
    (split / _part(2)).write_bytes(b"xxxx" * 10)
    assert "gg-split-unreadable" in _grave(_open(split))
    (split / _part(2)).unlink()
    opened = _open(split / _part(3))
    assert _issue(opened, "gg-split-missing").data["part"] == 2
    assert _tensors(opened) == ["t0", "t2"]


def test_parts_that_disagree_are_told(split: Path) -> None:
    _gguf(split / _part(3), 64, split=(2, 4, 3))
    issue = _issue(_open(split), "gg-split-count")
    assert (issue.message, issue.file) == (
        "split.count differs: 3,3,4 in the parts, 3 in the names",
        _part(3),
    )
    _gguf(split / _part(3), 64, split=(1, 3, 3))
    assert _grave(_open(split)) == {"gg-split-no", "gg-split-duplicate"}
    _gguf(split / _part(3), 64, split=(2, 3, 4))
    issue = _issue(_open(split), "gg-split-tensors")
    assert (issue.data["declared"], issue.data["held"]) == (4, 3)
    _gguf(split / _part(3), 64)
    assert "gg-split-keys" in _grave(_open(split))


def test_a_part_under_another_name_is_told(tmp_path: Path) -> None:
    _gguf(tmp_path / "renamed.gguf", 64, split=(0, 3, 3))
    assert _issue(_open(tmp_path / "renamed.gguf"), "gg-split-name").kind == "GG-SPLIT"


def test_a_first_part_without_tensors_is_lawful(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(str(tmp_path / _part(1, 2)), "llama")
    writer.add_uint16("split.no", 0)
    writer.add_uint16("split.count", 2)
    writer.add_int32("split.tensors.count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    _gguf(tmp_path / _part(2, 2), 64, split=(1, 2, 1))
    opened = _open(tmp_path)
    assert _tensors(opened) == ["t1"]
    assert not opened.issues


# ---- Hugging Face cache ------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """models--org--name with two snapshots whose files are links into blobs."""
    repo = tmp_path / "models--org--name"
    blobs = repo / "blobs"
    _save(blobs / ("a" * 64), "a")
    _save(blobs / ("b" * 64), "b")
    (blobs / ("c" * 64)).write_text('{"model_type": "llama"}')
    for revision, blob in (("1" * 40, "a" * 64), ("2" * 40, "b" * 64)):
        snapshot = repo / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{blob}")
        (snapshot / "config.json").symlink_to(f"../../blobs/{'c' * 64}")
        (snapshot / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"ab"[revision[0] == "2"]: "model.safetensors"}})
        )
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("2" * 40)
    return repo


def test_a_cache_folder_opens_the_snapshot_of_main(cache: Path) -> None:
    opened = _open(cache)
    assert (_tensors(opened), opened.revision) == (["b"], "2" * 40)
    assert opened.files[0].path == str(cache / "blobs" / ("b" * 64))
    assert opened.files[0].name == "model.safetensors"
    assert opened.configs[0].data == {"model_type": "llama"}
    assert not opened.issues


def test_a_snapshot_opens_with_its_revision(cache: Path) -> None:
    opened = _open(cache / "snapshots" / ("1" * 40))
    assert (_tensors(opened), opened.revision) == (["a"], "1" * 40)
    assert not opened.issues
    opened = _open(cache / "snapshots" / ("1" * 40) / "model.safetensors")
    assert (_tensors(opened), opened.revision) == (["a"], "1" * 40)


def test_a_blob_opens_by_its_content(cache: Path) -> None:
    assert _tensors(_open(cache / "blobs" / ("a" * 64))) == ["a"]


def test_a_ref_cannot_lead_out_of_the_cache(cache: Path) -> None:
    _save(cache.parent / "evil" / "model.safetensors", "evil")
    (cache / "refs" / "main").write_text("../../evil")
    opened = _open(cache)
    assert _tensors(opened) == ["a"]
    assert "snapshot-choice" in {issue.name for issue in opened.issues}


def test_a_snapshot_link_into_the_blobs_of_another_repository_is_outside(cache: Path) -> None:
    other = cache.parent / "models--org--other" / "blobs" / ("d" * 64)
    _save(other, "a")
    link = cache / "snapshots" / ("1" * 40) / "model.safetensors"
    link.unlink()
    link.symlink_to(other)
    opened = _open(cache / "snapshots" / ("1" * 40))
    assert "index-name-outside" in _grave(opened)


def test_a_link_to_another_disk_in_a_plain_folder_is_followed_with_a_note(tmp_path: Path) -> None:
    path = _save(tmp_path / "disk" / "x.safetensors", "a")
    folder = tmp_path / "ck"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(path)
    opened = _open(folder)
    assert _tensors(opened) == ["a"]
    assert [issue.name for issue in opened.issues] == ["symlink-outside"]


def test_a_loop_of_links_in_a_folder_is_an_issue(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    opened = _open(tmp_path)
    assert "loop of symbolic links" in _issue(opened, "file-unreadable").message


# ---- the real set ----------------------------------------------------------------------------


@pytest.mark.real
def test_every_real_folder_opens_with_nothing_above_a_note(real_set: Path) -> None:
    folders = sorted(path for path in real_set.iterdir() if path.is_dir())
    assert len(folders) > 50
    for folder in folders:
        opened = _open(folder)
        assert not _grave(opened), (folder.name, opened.issues)
        assert opened.tensors, folder.name
        assert all(file.parsed for file in opened.files)
        assert "oracle.safetensors" not in _names(opened)


@pytest.mark.real
def test_the_real_split_set_opens_by_each_part(real_set: Path) -> None:
    parts = sorted((real_set / "gguf-split-q4_k_m").glob("*.gguf"))
    whole = _open(real_set / "gguf-q4_k_m")
    assert len(parts) == 3
    for part in parts:
        opened = _open(part)
        assert not opened.issues
        assert _tensors(opened) == _tensors(whole)


def test_a_torch_file_of_a_usual_name_leads_other_safetensors_files(tmp_path: Path) -> None:
    """HQQ saves qmodel.pt; tensors of any size beside it are something else."""
    shutil.copy(
        Path(__file__).parent / "data" / "hqq-variants-pt" / "qmodel.pt", tmp_path / "qmodel.pt"
    )
    _save(tmp_path / "extra.safetensors", "a", size=1 << 18)
    assert [file.name for file in _open(tmp_path).files] == ["qmodel.pt"]
