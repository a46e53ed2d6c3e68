"""Families and rules from other distributions: found, used, and harmless where they fail."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.cli import main
from quantscope.decode.parts import Window
from quantscope.decode.window import decode_window
from quantscope.errors import QuantscopeError
from quantscope.families.guard import FamilyFailedError
from quantscope.families.registry import FamilyRegistry
from quantscope.report.builder import build
from quantscope.session.pipeline import inspect
from safetensors.numpy import load_file

DATA = Path(__file__).parent / "data"
GOOD, BROKEN = DATA / "example_plugin", DATA / "example_plugin_broken"

WHILE_GROUPING = ("signature", "group")
WHILE_SCANNING = ("claims", "candidates", "equations", "undecodable", "evidence", "value_mask")
LAZY = ("group", "claims", "candidates", "evidence")


def installed(project: Path, target: Path) -> Path:
    """What an installer leaves of a pure project: its package and a dist-info with its entry points."""
    told = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    for package in project.glob("quantscope_*"):
        shutil.copytree(
            package, target / package.name, ignore=shutil.ignore_patterns("__pycache__")
        )
    info = target / f"{told['name'].replace('-', '_')}-{told['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {told['version']}\n"
    )
    lines = []
    for group, points in told["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return target


def run(target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line tool with a folder of installed distributions."""
    return subprocess.run(
        [sys.executable, "-m", "quantscope", *words],
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Path, Any]:
    """A checkpoint of GPTQModel's planes and of tiny8's, and the weights of tiny8."""
    rng = np.random.default_rng(5)
    codes = rng.integers(-128, 128, (16, 24)).astype(np.int8)
    scale = (np.abs(rng.standard_normal(16)) + 0.1).astype(np.float32)
    tensors: dict[str, Any] = dict(load_file(DATA / "gptqmodel-v2" / "model.safetensors"))
    tensors |= {"extra.proj.tiny_codes": codes, "extra.proj.tiny_scale": scale}
    config = json.loads((DATA / "gptqmodel-v2" / "config.json").read_text())
    folder = write_checkpoint(tmp_path / "mixed", tensors, config)
    return folder, codes.astype(np.float32) * scale[:, None]


@pytest.fixture
def third_parties(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both example packages importable, none registered."""
    monkeypatch.syspath_prepend(str(GOOD))
    monkeypatch.syspath_prepend(str(BROKEN))
    yield
    for name in [n for n in sys.modules if n.startswith(("quantscope_tiny", "quantscope_broken"))]:
        del sys.modules[name]


def registered(monkeypatch: pytest.MonkeyPatch, family: Any) -> FamilyRegistry:
    """The families of this distribution and one more, as if an entry point had given it."""
    own = FamilyRegistry.from_entry_points()
    registry = FamilyRegistry([*own, family], own.records)
    monkeypatch.setattr(FamilyRegistry, "from_entry_points", classmethod(lambda cls: registry))
    return registry


def test_an_installed_family_is_listed_recognises_and_decodes(
    mixed: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, weights = mixed
    target = installed(GOOD, tmp_path / "site")
    plugins = json.loads(run(target, "plugins", "--json", "-").stdout)["plugins"]
    (tiny,) = (p for p in plugins if p["name"] == "tiny8")
    assert tiny["distribution"] == "quantscope-tiny"
    assert tiny["error"] is None
    assert any(p["group"] == "quantscope.rules" and p["error"] is None for p in plugins)
    told = run(target, "show", str(folder), "--tensor", "extra.proj.weight")
    assert told.returncode == 0, told.stderr
    assert "tiny8" in told.stdout
    out = tmp_path / "w.npy"
    done = run(target, "decode", str(folder), "--tensor", "extra.proj.weight", "--out", str(out))
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(out).view(np.uint32), weights.view(np.uint32))


def test_without_its_package_the_same_file_is_unrecognised(mixed: tuple[Path, Any]) -> None:
    folder, _ = mixed
    with Checkpoint.open(str(folder)) as checkpoint:
        names = {tensor.name for tensor in checkpoint.grouping.unrecognised}
    assert "extra.proj.tiny_codes" in names


def test_pip_installs_the_example(tmp_path: Path) -> None:
    if not all(importlib.util.find_spec(name) for name in ("pip", "hatchling")):
        pytest.skip("pip or hatchling is not installed here")
    project = shutil.copytree(GOOD, tmp_path / "project")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    command += [
        "--no-index",
        "--disable-pip-version-check",
        "--target",
        str(tmp_path / "site"),
        str(project),
    ]
    subprocess.run(command, check=True, timeout=120)
    assert "quantscope-tiny" in run(tmp_path / "site", "plugins").stdout


def test_a_rule_of_a_third_party_runs_and_has_a_page(tmp_path: Path) -> None:
    tensors = {
        "a.tiny_codes": np.ones((4, 64), np.int8),
        "a.tiny_scale": np.array([1, 0, 1, 1], np.float32),
    }
    folder = write_checkpoint(tmp_path / "c", tensors, {})
    target = installed(GOOD, tmp_path / "site")
    found = run(target, "scan", str(folder), "--select", "XT", "--json", "-")
    assert found.returncode == 3, found.stderr
    (finding,) = json.loads(found.stdout)["findings"]
    assert (finding["code"], finding["subject"]["tensor"]) == ("XT001", "a.weight")
    assert "Scales of tiny8 that are zero" in run(target, "rule", "XT001").stdout


def test_families_that_do_not_load_are_named_and_the_rest_work(
    mixed: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, _ = mixed
    target = installed(BROKEN, installed(GOOD, tmp_path / "site"))
    listed = run(target, "plugins", "--json", "-")
    assert listed.returncode == 1
    assert not listed.stderr
    errors = {p["name"]: p["error"] for p in json.loads(listed.stdout)["plugins"] if p["error"]}
    assert errors == {
        "raises_on_import": "ImportError: this module never loads",
        "raises_in_init": "RuntimeError: no instance for you",
        "lacks_methods": "lacks a method of the family protocol",
        "other_api": "speaks api_version 99, this is 1",
        "takes_a_name": "a family called gptq is there already",
    }
    scanned = run(target, "scan", str(folder))
    assert (
        scanned.returncode
        == run(installed(GOOD, tmp_path / "good"), "scan", str(folder)).returncode
    )
    assert "raises_in_init of quantscope-broken: did not load: RuntimeError" in scanned.stdout
    assert "Traceback" not in scanned.stderr


@pytest.mark.parametrize("method", WHILE_GROUPING)
def test_a_family_that_fails_while_grouping_costs_its_own_tensors_only(
    method: str, mixed: tuple[Path, Any], third_parties: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantscope_broken.raises import raising

    folder, _ = mixed
    registered(monkeypatch, raising(method)())
    with Checkpoint.open(str(folder)) as checkpoint:
        (failure,) = checkpoint.grouping.failures
        assert (failure.family, failure.method) == ("tiny8", method)
        assert failure.error == f"ZeroDivisionError: {method} is broken"
        assert {t.family for t in checkpoint.grouping.tensors} == {"gptq"}
        inspection = inspect(checkpoint)
        why = {entry.what: entry.why for entry in build([inspection]).report().not_checked}
    assert why["family tiny8"] == f"failed in {method}: {failure.error}"
    assert main.run(["scan", str(folder)]) == 3


def outcome(folder: Path) -> dict[str, Any]:
    """What a scan says of the GPTQ tensors of the mixed checkpoint."""
    with Checkpoint.open(str(folder)) as checkpoint:
        inspection = inspect(checkpoint)
        return {
            s.tensor.name: (s.contract, s.exam.codes, s.evidence)
            for s in inspection.states
            if s.tensor.family == "gptq"
        }


@pytest.mark.parametrize(
    ("method", "lazily"),
    [(method, False) for method in WHILE_SCANNING]
    + [(method, True) for method in LAZY if method in WHILE_SCANNING],
)
def test_a_family_that_fails_on_its_tensors_is_named_in_the_scan(
    method: str,
    lazily: bool,
    mixed: tuple[Path, Any],
    third_parties: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from quantscope_broken.raises import raising

    folder, _ = mixed
    before = outcome(folder)
    registered(monkeypatch, raising(method, lazily=lazily)())
    assert outcome(folder) == before
    with Checkpoint.open(str(folder)) as checkpoint:
        inspection = inspect(checkpoint)
    (failure,) = inspection.failures
    assert (failure.family, failure.method, failure.count) == ("tiny8", method, 1)
    assert failure.tensor == "extra.proj.weight"
    capsys.readouterr()
    assert main.run(["scan", str(folder)]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert f"failed tiny8: failed in {method} for 1 tensor: ZeroDivisionError: {method} is" in said


def test_a_family_whose_parts_fail_is_named_although_its_sizes_fit(
    mixed: tuple[Path, Any], third_parties: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantscope_broken.raises import raising

    folder, _ = mixed
    before = outcome(folder)
    registered(monkeypatch, raising("parts")())
    assert outcome(folder) == before
    with Checkpoint.open(str(folder)) as checkpoint:
        (failure,) = inspect(checkpoint).failures
    assert (failure.method, failure.error) == ("parts", "ZeroDivisionError: parts is broken")
    assert main.run(["scan", str(folder)]) == 3


@pytest.mark.parametrize("method", ["parts", "combine", "decode"])
def test_a_failing_decode_is_an_error_with_its_cause(
    method: str,
    mixed: tuple[Path, Any],
    third_parties: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from quantscope_broken.raises import raising

    folder, _ = mixed
    registered(monkeypatch, raising(method)())
    assert main.run(["decode", str(folder), "--tensor", "extra.proj.weight"]) == 4
    said = capsys.readouterr().err
    assert f"{method} is broken" in said
    assert "extra.proj.weight" in said
    assert "Traceback" not in said


def test_a_failing_locate_is_an_error_that_names_the_family(
    mixed: tuple[Path, Any],
    third_parties: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from quantscope_broken.raises import raising

    folder, _ = mixed
    registered(monkeypatch, raising("locate")())
    words = ["bytes", str(folder), "--tensor", "extra.proj.weight", "--at", "1,2"]
    assert main.run(words) == 4
    said = capsys.readouterr().err
    assert "family tiny8 failed in locate (ZeroDivisionError: locate is broken)" in said
    with Checkpoint.open(str(folder)) as checkpoint:
        tensor = checkpoint.find("extra.proj.weight")
        family = checkpoint.family(tensor)
        (reading,) = family.candidates(tensor)
        with pytest.raises(FamilyFailedError):
            family.locate(tensor, reading, 0, 0)
        window = Window(range(2), range(3))
        assert decode_window(family, tensor, reading, window, checkpoint.reader()).shape == (2, 3)


def test_a_generator_that_fails_late_gives_no_half_of_a_grouping(
    mixed: tuple[Path, Any], third_parties: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantscope_broken.raises import raising

    folder, _ = mixed
    registered(monkeypatch, raising("group", lazily=True)())
    with Checkpoint.open(str(folder)) as checkpoint:
        assert [f.method for f in checkpoint.grouping.failures] == ["group"]
        assert not [t for t in checkpoint.grouping.tensors if t.family == "tiny8"]


def test_a_kernel_that_does_not_load_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = importlib.metadata.entry_points

    def with_broken(**wanted: str) -> object:
        found = list(points(**wanted))
        if wanted.get("group") == "quantscope.kernels":
            found.append(importlib.metadata.EntryPoint("nokernel", "os:sep", wanted["group"]))
        return found

    monkeypatch.setattr(importlib.metadata, "entry_points", with_broken)
    assert main.run(["plugins", "--json", "-"]) == 1
    plugins = json.loads(capsys.readouterr().out)["plugins"]
    assert [(p["name"], p["error"]) for p in plugins if p["error"]] == [("nokernel", "has no name")]


def test_typed_errors_of_a_family_pass_unchanged(third_parties: None) -> None:
    from quantscope.families.guard import GuardedFamily
    from quantscope_tiny.tiny8 import Tiny8

    class Refuses(Tiny8):
        def undecodable(self, tensor: Any) -> str | None:
            raise QuantscopeError("told apart")

    with pytest.raises(QuantscopeError, match="told apart") as caught:
        GuardedFamily(Refuses()).undecodable(None)  # type: ignore[arg-type]
    assert not isinstance(caught.value, FamilyFailedError)


def test_the_example_of_the_documentation_decodes(tmp_path: Path) -> None:
    text = (DATA.parents[1] / "docs" / "plugins.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], found)
    codes = np.arange(-60, 60, dtype=np.int8).reshape(6, 20)
    scale = np.linspace(0.1, 0.7, 6, dtype=np.float32)
    folder = write_checkpoint(tmp_path / "c", {"m.rows8": codes, "m.rows8_scale": scale}, {})
    registry = FamilyRegistry([found["Rows8"]()])
    with Checkpoint.open(str(folder), registry) as checkpoint:
        inspection = inspect(checkpoint)
        (state,) = inspection.states
        assert not inspection.failures
        assert state.reading is not None
        family, reader = checkpoint.family(state.tensor), checkpoint.reader()
        window = Window(range(1, 5), range(3, 20))
        decoded = decode_window(family, state.tensor, state.reading, window, reader)
        cell = family.locate(state.tensor, state.reading, 2, 7, reader)
        stored = checkpoint.sources[0].read_at(cell.bits[0].byte_offset, 1)
    np.testing.assert_array_equal(decoded, codes.astype(np.float32)[1:5, 3:] * scale[1:5, None])
    assert np.frombuffer(stored, np.int8)[0] == codes[2, 7]
