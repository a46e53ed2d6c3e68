"""The report document: valid, canonical, repeatable, folded, and silent beyond its scope."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.cli import main
from quantscope.containers.source import ByteSource
from quantscope.evidence.gates import GATE_NAMES
from quantscope.model import Span
from quantscope.report import inputs, schema
from quantscope.report.builder import ReportOptions, build
from quantscope.report.canonical import canonical_bytes, canonical_chunks, non_finite
from quantscope.report.coverage import covered_bytes
from quantscope.report.names import expand_names, fold_names
from quantscope.report.redact import without_folders
from quantscope.session.inspection import Inspection
from quantscope.session.pipeline import Scope, inspect
from report_checkpoints import write_gptq, write_liar

VALIDATOR = jsonschema.Draft202012Validator(schema.json_schema())
MODULES = tuple(f"model.layers.{i}.mlp.up_proj" for i in range(12))


def document(path: Path, tmp_path: Path, *words: str) -> Any:
    target = tmp_path / "report.json"
    assert main.run(["report", str(path), "-o", str(target), *words]) == 0
    found = json.loads(target.read_bytes())
    VALIDATOR.validate(found)
    return found


# -- schema and canonical bytes --------------------------------------------------------------------


def test_the_shipped_schema_is_generated_from_the_models() -> None:
    assert schema.shipped_schema() == schema.schema_bytes()
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())


@pytest.mark.parametrize("mode", ["--headers-only", "--sample=1024", "--deep"])
def test_every_samples_report_validates(
    mode: str, every_sample: list[Path], tmp_path: Path
) -> None:
    for sample in every_sample:
        found = document(sample, tmp_path, mode)
        assert found["overall"] == "incomplete", sample.name
        assert sorted(found["gates"]) == sorted(GATE_NAMES)


def test_two_reports_of_every_sample_differ_in_run_alone(
    every_sample: list[Path], tmp_path: Path
) -> None:
    for sample in every_sample:
        first, second = (document(sample, tmp_path) for _ in range(2))
        assert {key for key in first if first[key] != second[key]} <= {"run"}, sample.name


@pytest.mark.real
def test_every_real_checkpoints_report_validates(real_set: Path, tmp_path: Path) -> None:
    for folder in sorted(real_set.iterdir()):
        found = document(folder, tmp_path)
        assert len(found["identity"]) >= 10, folder.name


def test_two_runs_differ_in_run_alone(tmp_path: Path) -> None:
    write_liar(tmp_path / "c", MODULES)
    first = document(tmp_path / "c", tmp_path)
    raw = (tmp_path / "report.json").read_bytes()
    second = document(tmp_path / "c", tmp_path)
    assert first.pop("run") != second.pop("run")
    assert first == second
    lines = raw.splitlines()
    again = (tmp_path / "report.json").read_bytes().splitlines()
    assert [
        a for a, b in zip(lines, again, strict=True) if a != b and not a.startswith(b'"run"')
    ] == []


def test_keys_are_sorted_and_the_stream_equals_the_whole(tmp_path: Path) -> None:
    write_gptq(tmp_path, MODULES)
    with Checkpoint.open(str(tmp_path)) as checkpoint:
        draft = build([inspect(checkpoint)])
        streamed = b"".join(draft.chunks())
        assert streamed == canonical_bytes(draft.report())

    def ordered(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        assert keys == sorted(keys)
        return dict(pairs)

    json.loads(streamed, object_pairs_hook=ordered)


def test_numbers_that_json_lacks_become_text_with_their_bits() -> None:
    (pattern,) = struct.unpack("<Q", struct.pack("<d", math.nan))
    assert non_finite(math.nan) == f"nan (0x{pattern:016x})"
    assert non_finite(-math.inf) == "-inf (0xfff0000000000000)"
    text = canonical_bytes({"a": [1.5, math.inf], "b": {"c": math.nan}}).decode()
    assert json.loads(text) == {
        "a": [1.5, "inf (0x7ff0000000000000)"],
        "b": {"c": non_finite(math.nan)},
    }


def test_active_characters_are_escaped_and_come_back() -> None:
    names = ["\x1b[31m", "\u202e", "\x9b", "\ud800", "é", "日本", "😀", "\U000e0001", 'q"\\']
    raw = canonical_bytes({"names": names})
    text = raw.decode("utf-8")
    names[3] = "\ufffd"  # half a surrogate pair is no text that strict readers take
    assert json.loads(text) == {"names": names}
    assert not any(mark in text for mark in ("\x1b", "\u202e", "\x9b"))
    assert "é" in text
    assert "日本" in text


def test_chunks_hold_one_item_of_a_stream_at_a_time() -> None:
    taken: list[int] = []

    def items() -> Any:
        for number in range(3):
            taken.append(number)
            yield {"n": number}

    chunks = canonical_chunks({"a": 1}, {"t": items()})
    seen = b""
    while b'{"n":0}' not in seen:
        seen += next(chunks)
    assert taken == [0]
    assert json.loads(seen + b"".join(chunks)) == {"a": 1, "t": [{"n": 0}, {"n": 1}, {"n": 2}]}


# -- folding ---------------------------------------------------------------------------------------


def test_equal_contracts_fold_and_numbers_become_extremes(tmp_path: Path) -> None:
    write_gptq(tmp_path / "c", MODULES)
    found = document(tmp_path / "c", tmp_path)
    (entry,) = found["tensors"]
    assert entry["count"] == 12
    assert entry["names"] == [f"{name}.weight" for name in MODULES]
    steps = {s["method"]: s for s in entry["contract"]["zero_convention"]["evidence"]}
    step = steps["code statistic"]
    assert step["tensors"] == 12
    assert step["numbers"]["mean_as_is"]["min"] < step["numbers"]["mean_as_is"]["max"]
    assert step["sample"]["examined"] == 12 * 256
    assert sum(entry["statistics"]["codes"]["histogram"]) == 12 * 64 * 256


def test_an_odd_one_out_is_an_entry_of_its_own(tmp_path: Path) -> None:
    planes = write_gptq(tmp_path / "c", MODULES)
    from checkpoint_builder import write_checkpoint
    from report_checkpoints import config

    tensors: dict[str, Any] = {}
    for number, (name, module) in enumerate(planes.items()):
        tensors |= module.tensors(name, minus_one=number == 5)
    write_checkpoint(tmp_path / "c", tensors, config())
    found = document(tmp_path / "c", tmp_path)
    assert sorted(entry["count"] for entry in found["tensors"]) == [1, 11]


@pytest.mark.slow
def test_a_report_of_100_000_tensors_is_under_5_megabytes(tmp_path: Path) -> None:
    header: dict[str, Any] = {}
    position = 0
    for layer in range(131):
        for expert in range(256):
            for name in ("gate_proj", "up_proj", "down_proj"):
                module = f"model.layers.{layer}.mlp.experts.{expert}.{name}"
                for suffix, dtype, shape, size in (
                    ("qweight", "I32", [8, 8], 256),
                    ("qzeros", "I32", [1, 1], 4),
                    ("scales", "F16", [1, 8], 16),
                ):
                    entry = {
                        "dtype": dtype,
                        "shape": shape,
                        "data_offsets": [position, position + size],
                    }
                    header[f"{module}.{suffix}"] = entry
                    position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (tmp_path / "c").mkdir()
    with open(tmp_path / "c" / "model.safetensors", "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + position)
    found = document(tmp_path / "c", tmp_path, "--headers-only")
    assert (tmp_path / "report.json").stat().st_size < 5_000_000
    assert found["scope"]["tensors_quantized"] == 100_608
    names = [n for e in found["tensors"] for n in expand_names(e["names"], e["names_form"])]
    assert len(set(names)) == 100_608


def test_names_fold_into_ranges_and_back() -> None:
    names = [f"a.{i}.b.{j}.c" for i in range(3, 40) for j in range(30) if (i, j) != (7, 7)]
    folded, form = fold_names(names)
    assert form == "ranges"
    assert len(folded) < 8
    assert sorted(expand_names(folded, form)) == sorted(names)
    assert fold_names(names[:10]) == (names[:10], "literal")
    odd = [*names, "x.{0..3}.y"]
    assert fold_names(odd) == (odd, "literal")
    padded = [f"a.{i:03d}" for i in range(600)]
    assert sorted(expand_names(*fold_names(padded))) == padded


# -- what was read ---------------------------------------------------------------------------------


def test_digests_are_those_of_hashlib(tmp_path: Path) -> None:
    write_gptq(tmp_path / "c")
    data = (tmp_path / "c" / "model.safetensors").read_bytes()
    found = document(tmp_path / "c", tmp_path)
    file = found["inputs"][0]["files"][0]
    ranges = inputs.expand_ranges(file["examined"]["ranges"])
    read = b"".join(data[start:stop] for start, stop in ranges)
    assert file["examined"]["sha256"] == hashlib.sha256(read).hexdigest()
    assert file["examined"]["bytes"] == len(read)
    assert file["sha256"] is None
    deep = document(tmp_path / "c", tmp_path, "--deep")["inputs"][0]["files"][0]
    assert deep["sha256"] == hashlib.sha256(data).hexdigest()
    config = (tmp_path / "c" / "config.json").read_bytes()
    assert found["inputs"][0]["config_files"][0]["sha256"] == hashlib.sha256(config).hexdigest()


def test_ranges_pack_into_strides_and_back() -> None:
    ranges = [(0, 8), (100, 104), (200, 204), (300, 304), (400, 404), (1000, 1001)]
    compact = inputs.compact_ranges(ranges)
    assert compact == [[0, 8], [100, 104, 100, 4], [1000, 1001]]
    assert inputs.expand_ranges(compact) == ranges


def test_range_digests_cross_blocks_and_gaps(tmp_path: Path) -> None:
    data = np.random.default_rng(3).integers(0, 256, 9 << 20, np.uint8).tobytes()
    path = tmp_path / "f.bin"
    path.write_bytes(data)
    ranges = [(5, 17), (40, 6 << 20), ((6 << 20) + 1, (6 << 20) + 9), (8 << 20, 9 << 20)]
    expected = hashlib.sha256(b"".join(data[a:b] for a, b in ranges)).hexdigest()
    with ByteSource(str(path)) as source:
        assert inputs.ranges_digest(source, ranges) == expected


@pytest.mark.parametrize("seed", range(20))
def test_covered_bytes_of_strided_spans(seed: int) -> None:
    generator = np.random.default_rng(seed)
    span = Span(file_id=0, byte_offset=13, nbytes=4, count=20, stride_bytes=18)
    cuts = sorted(generator.choice(500, 8, replace=False).tolist())
    ranges = list(zip(cuts[::2], cuts[1::2], strict=True))
    mine = {13 + 18 * i + b for i in range(20) for b in range(4)}
    expected = sum(position in mine for a, b in ranges for position in range(a, b))
    assert covered_bytes(span, np.array(ranges)) == expected


def test_a_file_that_changed_under_the_scan_is_named(tmp_path: Path) -> None:
    write_gptq(tmp_path)
    with Checkpoint.open(str(tmp_path)) as checkpoint:
        inspection = inspect(checkpoint)
        with open(tmp_path / "model.safetensors", "ab") as stream:
            stream.write(b"more")
        report = build([inspection]).report()
    assert report.inputs[0].files[0].error is not None
    assert report.inputs[0].files[0].examined is None


# -- scope by hand ---------------------------------------------------------------------------------


def test_a_report_on_one_tensor_claims_nothing_beyond(tmp_path: Path) -> None:
    write_liar(tmp_path / "c", MODULES)
    found = document(tmp_path / "c", tmp_path, "--tensor", MODULES[3])
    assert [entry["names"] for entry in found["tensors"]] == [[f"{MODULES[3]}.weight"]]
    assert found["scope"]["tensors_quantized"] == 1
    assert found["scope"]["selection"] == [f"tensor {MODULES[3]}"]
    for finding in found["findings"]:
        assert {finding["subject"]["tensor"], *finding["members"]} <= {f"{MODULES[3]}.weight", None}
        assert finding["count"] == 1
    assert any("11 other quantized tensors" in item["what"] for item in found["not_checked"])
    whole = document(tmp_path / "c", tmp_path)
    assert (
        found["scope"]["planes"]["codes"]["bytes_total"] * 12
        == (whole["scope"]["planes"]["codes"]["bytes_total"])
    )
    ranges = inputs.expand_ranges(found["inputs"][0]["files"][0]["examined"]["ranges"])
    assert sum(b - a for a, b in ranges) == sum(
        plane["spans"][0]["nbytes"] for plane in found["tensors"][0]["planes"]
    )


def test_a_report_on_one_finding_holds_its_tensors(tmp_path: Path) -> None:
    write_liar(tmp_path / "c", MODULES)
    found = document(tmp_path / "c", tmp_path, "--finding", "QZ002")
    assert [finding["code"] for finding in found["findings"]] == ["QZ002"]
    assert main.run(["report", str(tmp_path / "c"), "-o", "-", "--finding", "QZ999"]) == 64


def test_an_example_shows_both_values(tmp_path: Path) -> None:
    planes = write_liar(tmp_path / "c", MODULES[:1])[MODULES[0]]
    (finding,) = [f for f in document(tmp_path / "c", tmp_path)["findings"] if f["code"] == "QZ002"]
    example = finding["example"]
    row, col = example["row"], example["col"]
    assert example["code"] == int(planes.codes[col, row])
    assert example["stored_zero"] == int(planes.zeros[col // 64, row])
    assert example["as_inferred"] == float(planes.weights()[row, col])
    assert example["as_declared"] == float(planes.weights(shift=1)[row, col])


# -- paths and gates -------------------------------------------------------------------------------


def test_folders_of_this_machine_are_left_out_on_request(tmp_path: Path) -> None:
    metadata = {"made": f"from {tmp_path}/secret/base.safetensors"}
    write_gptq(tmp_path / "c", MODULES[:1], metadata=metadata)
    target = tmp_path / "report.json"
    words = ["report", str(tmp_path / "c"), "-o", str(target), "--redact-paths"]
    assert main.run(words) == 0
    raw = target.read_text()
    assert str(tmp_path) not in raw
    assert "from base.safetensors" in raw
    found = json.loads(raw)
    VALIDATOR.validate(found)
    assert found["inputs"][0]["path"] == "c"
    assert "config.json#/quantization_config/bits" in raw


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/bob/models/x.gguf is gone", "x.gguf is gone"),
        ("see C:\\Users\\bob\\x.gguf", "see x.gguf"),
        ("~/models/x", "x"),
        ("../up/x.gguf", "x.gguf"),
        ("config.json#/quantization_config/bits", "config.json#/quantization_config/bits"),
        ("I32 [K*b/32, N]", "I32 [K*b/32, N]"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("meta-llama/Llama-3", "meta-llama/Llama-3"),
    ],
)
def test_only_folders_of_a_machine_are_cut(text: str, expected: str) -> None:
    assert without_folders(text) == expected


def test_results_of_others_stay_claims(tmp_path: Path) -> None:
    write_gptq(tmp_path / "c", MODULES[:1])
    log = tmp_path / "kernel.log"
    log.write_text("kernel_pass: true\nmarlin gemm 12 us\n")
    found = document(tmp_path / "c", tmp_path, "--external", str(log))
    assert [entry["status"] for entry in found["external_evidence"]] == ["reported_unverified"]
    assert found["gates"]["kernel"]["status"] in ("skipped", "reported_unverified")
    assert found["gates"]["kernel"]["outcome"] is None


def test_a_float_base_executes_its_gates(tmp_path: Path) -> None:
    from checkpoint_builder import write_checkpoint

    planes = write_gptq(tmp_path / "c", MODULES[:1])[MODULES[0]]
    write_checkpoint(
        tmp_path / "base", {f"{MODULES[0]}.weight": planes.weights()}, {"model_type": "llama"}
    )
    found = document(tmp_path / "c", tmp_path, "--base", str(tmp_path / "base"))
    assert found["gates"]["numeric_reference"]["status"] == "executed"
    assert found["gates"]["kernel"]["status"] == "skipped"


def test_a_kernel_run_stands_in_the_report_and_the_reference_executes_no_gate(
    tmp_path: Path,
) -> None:
    write_gptq(tmp_path / "c", MODULES[:2])
    words = ["--with", "parity", "--tensor", MODULES[1]]
    found = document(tmp_path / "c", tmp_path, *words)
    (entry,) = found["parity"]
    assert entry["tensor"] == f"{MODULES[1]}.weight"
    assert entry["execution_proof"] == "not_applicable"
    assert entry["outcome"] == "held"
    assert {"comparison", "controls", "fingerprint"} <= set(entry)
    assert found["gates"]["kernel"]["status"] == "skipped"
    again = document(tmp_path / "c", tmp_path, *words)
    assert {key for key in found if found[key] != again[key]} <= {"run"}
    assert main.run(["report", str(tmp_path / "c"), "-o", "-", "--with", "nope"]) == 64


@pytest.mark.torch
def test_a_real_kernel_executes_its_gate_with_its_scope(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_gptq(tmp_path / "c", MODULES[:2])
    found = document(tmp_path / "c", tmp_path, "--with", "parity", "--backend", "torch")
    gate = found["gates"]["kernel"]
    assert gate["status"] == "executed"
    assert gate["outcome"] in ("held", "inconclusive")
    scope = gate["scope"]
    assert {"backend", "kernels", "devices", "dtypes", "seed", "bytes"} <= set(scope)
    assert scope["tensors"] == [2, 2]
    assert all(kernel.endswith("@cpu") for kernel in scope["kernels"])


def test_a_partial_inspection_says_how_far_it_got(tmp_path: Path) -> None:
    write_gptq(tmp_path, MODULES)
    with Checkpoint.open(str(tmp_path)) as checkpoint:
        asked = iter(range(1000))
        inspection = inspect(checkpoint, Scope(), cancelled=lambda: next(asked) > 60)
        assert isinstance(inspection, Inspection)
        report = build([inspection], ReportOptions(digests=False)).report()
    assert report.scope.partial is not None
    VALIDATOR.validate(msgspec.json.decode(canonical_bytes(report)))


# -- identity --------------------------------------------------------------------------------------


def test_the_revision_of_a_hugging_face_cache_is_its_snapshot(tmp_path: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "models--someone--model"
    write_gptq(tmp_path / "plain", MODULES[:1])
    (cache / "blobs").mkdir(parents=True)
    snapshot = cache / "snapshots" / revision
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted((tmp_path / "plain").iterdir())):
        blob = cache / "blobs" / f"{number:064x}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    found = document(snapshot, tmp_path)
    assert found["identity"]["model_revision"]["value"] == revision
    assert found["identity"]["adapter_revision"] == "not stated"
    assert found["scope"]["tensors_quantized"] == 1


def test_tokenizer_and_template_are_named_by_their_digests(tmp_path: Path) -> None:
    write_gptq(tmp_path / "c", MODULES[:1])
    (tmp_path / "c" / "tokenizer.json").write_text('{"model": {}}')
    (tmp_path / "c" / "chat_template.jinja").write_text("{{ messages }}")
    identity = document(tmp_path / "c", tmp_path)["identity"]
    for key, text in (("tokenizer", '{"model": {}}'), ("chat_template", "{{ messages }}")):
        digest = hashlib.sha256(text.encode()).hexdigest()
        assert identity[f"{key}_sha256"]["value"] == digest


@pytest.mark.real
@pytest.mark.parametrize(
    ("folder", "producer", "version"),
    [
        ("gptqmodel-w4g128-asym-v1", "gptqmodel", "7.7.0"),
        ("autogptq-w4g128-asym", "auto-gptq", "0.7.1"),
        ("auto-round-mxfp4", "auto-round", "0.16.1"),
        ("modelopt-fp8", "modelopt", "0.47.0"),
        ("bitsandbytes-nf4", None, None),
    ],
)
def test_the_producer_is_what_the_files_say(
    folder: str, producer: str | None, version: str | None, real_set: Path, tmp_path: Path
) -> None:
    identity = document(real_set / folder, tmp_path)["identity"]
    if producer is None:
        assert identity["producer"] == "not stated"
        return
    assert identity["producer"]["value"] == producer
    assert identity["producer_version"]["value"] == version
    assert "#" in identity["producer"]["source"]


@pytest.mark.real
def test_declarations_stand_with_file_and_key(real_set: Path, tmp_path: Path) -> None:
    for folder in sorted(real_set.iterdir()):
        expected = json.loads((folder / "EXPECTED.json").read_text())["declares"]
        found = document(folder, tmp_path, "--headers-only")
        stated = {
            leaf["at"]: leaf["value"]
            for entry in found["inputs"]
            for file in (*entry["files"], *entry["config_files"])
            for leaf in file["declarations"]
        }
        missing = [
            item["at"]
            for claims in expected.values()
            for item in claims
            if "*" not in item["at"] and not isinstance(item["value"], dict)
            if stated.get(item["at"], stated) != item["value"]
        ]
        assert missing == [], folder.name
