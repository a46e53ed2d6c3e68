"""The index of a sharded checkpoint: what it says against what the shards hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantscope.containers.detect import open_path
from quantscope.containers.issues import severity_of
from quantscope.containers.records import ContainerIssue, Opened
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


def test_a_missing_shard_is_named_with_its_tensors(sharded: Path) -> None:
    (sharded / SHARDS[1]).unlink()
    issue = _issue(_open(sharded), "index-shard-missing")
    assert (issue.kind, issue.data["count"]) == ("IDX-SHARD", 2)
    assert issue.data["tensors"] == ["c.weight", "d.weight"]


def test_a_name_in_the_wrong_shard_is_told_with_the_right_one(sharded: Path) -> None:
    _index(
        sharded,
        {"a.weight": SHARDS[1], "b.weight": SHARDS[0], "c.weight": SHARDS[1], "d.weight": SHARDS[1],
         "mtp.fc.weight": SHARDS[1]},
    )  # fmt: skip
    opened = _open(sharded)
    wrong = {issue.tensor: issue for issue in opened.issues if issue.name == "index-tensor-missing"}
    assert set(wrong) == {"a.weight", "mtp.fc.weight"}
    assert wrong["a.weight"].data["found_in"] == [SHARDS[0]]
    assert wrong["mtp.fc.weight"].data["found_in"] == []
    assert all(issue.kind == "IDX-MAP" for issue in wrong.values())
    assert _grave(opened) == {"index-tensor-missing"}


def test_tensors_that_the_index_forgot_are_told_and_listed(sharded: Path) -> None:
    _index(sharded, {"a.weight": SHARDS[0], "c.weight": SHARDS[1], "d.weight": SHARDS[1]})
    opened = _open(sharded)
    issue = _issue(opened, "index-tensor-omitted")
    assert (issue.tensor, issue.kind, severity_of(issue)) == (
        "b.weight",
        "IDX-OMIT",
        "disagreement",
    )
    assert "b.weight" in _tensors(opened)


def test_a_tensor_in_two_shards_is_told_and_the_mapped_copy_is_kept(sharded: Path) -> None:
    _save(sharded / SHARDS[0], "a.weight", "b.weight", "d.weight")
    opened = _open(sharded)
    assert _issue(opened, "index-tensor-twice").tensor == "d.weight"
    (kept,) = [tensor for tensor in opened.tensors if tensor.name == "d.weight"]
    assert opened.files[kept.file_id].name == SHARDS[1]


def test_a_total_size_that_differs_gives_the_numbers(sharded: Path) -> None:
    weight_map = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    _index(sharded, weight_map, total_size=80)
    issue = _issue(_open(sharded), "index-total-size")
    assert issue.data["declared_bytes"] == 80
    assert issue.data["mapped_bytes"] == 64
    assert issue.data["difference"] == 16
    assert issue.data["same_size_tensors"] == ["a.weight", "b.weight", "c.weight", "d.weight"]
    for lawful in ({}, {"total_size": 64.0}):
        _index(sharded, weight_map, **lawful)
        assert not _open(sharded).issues


def test_a_shard_that_the_index_forgot_is_told(sharded: Path) -> None:
    third = "model-00003-of-00003.safetensors"
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2)]
    for old, new in zip(SHARDS, names, strict=True):
        (sharded / old).rename(sharded / new)
    _save(sharded / third, "e.weight")
    _index(
        sharded,
        {"a.weight": names[0], "b.weight": names[0], "c.weight": names[1], "d.weight": names[1]},
    )
    issue = _issue(_open(sharded), "index-file-omitted")
    assert (issue.kind, severity_of(issue), issue.file) == ("IDX-OMIT", "disagreement", third)
    assert issue.data["new_tensors"] == ["e.weight"]


@pytest.mark.parametrize(
    ("name", "tensors", "told"),
    [
        ("extra.safetensors", ("a.weight_scale",), True),  # completes a module of the set
        ("layers.safetensors", ("model.layers.9.q.weight",), True),  # a layer that the set lacks
        ("oracle.safetensors", ("model.layers.0.q.weight",), False),  # restates a known module
        ("whole.safetensors", ("a.weight", "model.layers.0.q.weight_packed"), False),  # repeats
        ("vae.safetensors", ("decoder.conv.weight",), False),  # something else
        ("consolidated.safetensors", ("model.layers.9.q.weight",), False),  # another layout
        ("model.fp16.safetensors", ("model.layers.9.q.weight",), False),
        ("adapter_model.safetensors", ("model.layers.0.q.lora_A",), False),
    ],
)
def test_files_beside_an_index_are_told_only_where_they_belong_to_the_set(
    name: str, tensors: tuple[str, ...], told: bool, tmp_path: Path
) -> None:
    _save(tmp_path / SHARDS[0], "a.weight", "model.layers.0.q.weight_packed")
    _index(tmp_path, {"a.weight": SHARDS[0], "model.layers.0.q.weight_packed": SHARDS[0]})
    _save(tmp_path / name, *tensors)
    opened = _open(tmp_path)
    assert _grave(opened) == ({"index-file-omitted"} if told else set())
    assert opened.variants == (name,)


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "C:\\x.safetensors",
     "..\\secret.safetensors", "\\\\host\\x", "a\0b", ""],
    ids=["up", "absolute", "through", "drive", "backslash", "host", "zero", "empty"],
)  # fmt: skip
def test_shard_names_cannot_leave_the_folder(name: str, sharded: Path) -> None:
    _save(sharded.parent / "secret.safetensors", "secret")
    _index(sharded, {"a.weight": SHARDS[0], "secret": name})
    opened = _open(sharded)
    issue = _issue(opened, "index-name-outside")
    assert (severity_of(issue), issue.data["shard"]) == ("violation", name)
    assert _names(opened) == [SHARDS[0]]


def test_a_name_that_climbs_and_comes_back_is_refused_too(sharded: Path) -> None:
    (sharded / "sub").mkdir()
    _index(sharded, {"a.weight": SHARDS[0], "c.weight": f"sub/../{SHARDS[1]}"})
    opened = _open(sharded)
    assert "climbs" in _issue(opened, "index-name-outside").message
    assert _names(opened) == [SHARDS[0]]


def test_a_link_out_of_the_folder_is_not_followed_by_an_index(sharded: Path) -> None:
    outside = _save(sharded.parent / "secret.safetensors", "c.weight", "d.weight")
    (sharded / SHARDS[1]).unlink()
    (sharded / SHARDS[1]).symlink_to(outside)
    opened = _open(sharded)
    assert "outside of the folder" in _issue(opened, "index-name-outside").message
    assert _names(opened) == [SHARDS[0]]


def test_a_shard_in_a_subfolder_is_lawful(tmp_path: Path) -> None:
    _save(tmp_path / "sub" / "x.safetensors", "a")
    _index(tmp_path, {"a": "sub/x.safetensors"})
    opened = _open(tmp_path)
    assert _names(opened) == ["sub/x.safetensors"]
    assert not opened.issues


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("[]", "index-not-object"),
        ("{}", "index-not-object"),
        ('{"weight_map": []}', "index-not-object"),
        ('{"weight_map": {"a.weight": 5}}', "index-entry"),
        ('{"weight_map": {"a.weight": null}}', "index-entry"),
        ("{", "index-unreadable"),
        ("", "index-unreadable"),
        ("[" * 100_000, "index-unreadable"),
        ('{"weight_map": {"a.weight": "NAME", "a.weight": "NAME"}}', "index-duplicate-key"),
    ],
    ids=["list", "empty object", "map list", "number", "null", "cut", "empty", "deep", "twice"],
)  # fmt: skip
def test_an_odd_index_is_told_and_the_shards_open_all_the_same(
    text: str, slug: str, sharded: Path
) -> None:
    (sharded / "model.safetensors.index.json").write_text(text.replace("NAME", SHARDS[0]))
    opened = _open(sharded)
    assert slug in {issue.name for issue in opened.issues}
    assert opened.tensors


def test_an_index_whose_shards_are_all_gone_falls_back_to_the_single_file(tmp_path: Path) -> None:
    _index(tmp_path, {"a": SHARDS[0], "b": SHARDS[1]})
    _save(tmp_path / "model.safetensors", "a", "b")
    opened = _open(tmp_path)
    assert _names(opened) == ["model.safetensors"]
    assert _grave(opened) == {"index-shard-missing"}
    (tmp_path / "model.safetensors").unlink()
    opened = _open(tmp_path)
    assert not opened.files
    assert _grave(opened) == {"index-shard-missing"}


def test_an_index_may_name_the_single_file(tmp_path: Path) -> None:
    _save(tmp_path / "model.safetensors", "a", "b")
    _index(tmp_path, {"a": "model.safetensors", "b": "model.safetensors"}, total_size=32)
    opened = _open(tmp_path)
    assert _names(opened) == ["model.safetensors"]
    assert not opened.issues
