"""Who made a checkpoint, from what, with what: every value with the place that states it, or `not stated`.

Nothing is guessed: a tool's name in the metadata is what the file says of itself, no proof of origin.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from quantscope.checkpoint import Checkpoint
from quantscope.containers.source import ByteSource
from quantscope.errors import QuantscopeError
from quantscope.model import Source
from quantscope.report.inputs import file_digest, leaf_value
from quantscope.report.schema import NOT_STATED, Stated

IDENTITY_KEYS: tuple[str, ...] = (
    "model_revision",
    "adapter_revision",
    "base_model",
    "architecture",
    "producer",
    "producer_version",
    "format_version",
    "quantized_by",
    "file_type",
    "recipe",
    "calibration",
    "tokenizer_sha256",
    "chat_template_sha256",
    "model_library_version",
)
"""Every key of `identity`; each is in every report."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json")
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")

_CALIBRATION_KEYS = ("dataset", "calibration_dataset", "nsamples", "seqlen", "iters")
_IMATRIX_PREFIX = "quantize.imatrix."

Identity = dict[str, Stated | Literal["not stated"]]


def identity_of(checkpoint: Checkpoint) -> Identity:
    """Every identity key of one checkpoint."""
    found: Identity = dict.fromkeys(IDENTITY_KEYS, NOT_STATED)
    for key, stated in _statements(checkpoint):
        if found[key] == NOT_STATED:
            found[key] = stated
    return found


def merged_identity(identities: Sequence[Identity], paths: Sequence[str]) -> Identity:
    """One identity for several inputs: equal values once, others as a list in the order of the inputs."""
    if len(identities) == 1:
        return identities[0]
    merged: Identity = {}
    for key in IDENTITY_KEYS:
        stated = [identity[key] for identity in identities]
        if all(value == stated[0] for value in stated):
            merged[key] = stated[0]
            continue
        values = [value if isinstance(value, str) else value.value for value in stated]
        sources = [
            f"{path}: {value if isinstance(value, str) else value.source}"
            for path, value in zip(paths, stated, strict=True)
        ]
        merged[key] = Stated(value=values, source="; ".join(sources))
    return merged


def _statements(checkpoint: Checkpoint) -> Iterator[tuple[str, Stated]]:
    if checkpoint.opened.revision:
        yield "model_revision", Stated(value=checkpoint.opened.revision, source="path#snapshots")
    yield from _from_sections(checkpoint)
    yield from _from_metadata(checkpoint)
    yield from _from_model_config(checkpoint)
    yield from _from_files(checkpoint)


def _from_sections(checkpoint: Checkpoint) -> Iterator[tuple[str, Stated]]:
    for section in checkpoint.declarations.sections:
        quantizer = section.get("meta", "quantizer")
        names = quantizer if isinstance(quantizer, list) else [quantizer]
        text = next((name for name in names if isinstance(name, str) and name), None)
        if text is not None:
            source = section.source("meta", "quantizer")
            yield from _producer(*_split_version(text), source)
        for key, tool in (("autoround_version", "auto-round"), ("autoawq_version", "autoawq")):
            version = section.get(key)
            if isinstance(version, str):
                yield from _producer(tool, version, section.source(key))
        producer = section.get("producer")
        if isinstance(producer, dict):
            source = section.source("producer")
            yield from _producer(producer.get("name"), producer.get("version"), source)
        provider = section.get("provider")
        if isinstance(provider, str):
            yield from _producer(provider, None, section.source("provider"))
        version = section.get("version")
        if section.method == "compressed-tensors" and isinstance(version, str):
            yield (
                "format_version",
                _stated(f"compressed-tensors {version}", section.source("version")),
            )
        calibration = {
            key: section.get(key) for key in _CALIBRATION_KEYS if section.get(key) is not None
        }
        if calibration:
            yield "calibration", _stated(calibration, section.source())
        base = section.get("model_name_or_path")
        if isinstance(base, str) and base:
            yield "base_model", _stated(base, section.source("model_name_or_path"))
    yield from _producer_beside(checkpoint)


def _producer_beside(checkpoint: Checkpoint) -> Iterator[tuple[str, Stated]]:
    """`producer` beside the quantization section of hf_quant_config.json (ModelOpt)."""
    config = checkpoint.declarations.configs.get("hf_quant_config.json")
    data = config.data if config is not None else None
    producer = data.get("producer") if isinstance(data, dict) else None
    if isinstance(producer, dict):
        source = Source("hf_quant_config.json", "/producer")
        yield from _producer(producer.get("name"), producer.get("version"), source)


def _from_metadata(checkpoint: Checkpoint) -> Iterator[tuple[str, Stated]]:
    declared = checkpoint.declarations
    for key, tool in (("auto_gptq_version", "auto-gptq"),):
        for source, value in declared.metadata(key):
            yield from _producer(tool, value, source)
    for target, key in (
        ("architecture", "general.architecture"),
        ("quantized_by", "general.quantized_by"),
        ("file_type", "general.file_type"),
        ("format_version", "general.quantization_version"),
        ("base_model", "general.base_model.0.repo_url"),
        ("base_model", "general.base_model.0.name"),
        ("base_model", "general.source.repo_url"),
    ):
        for source, value in declared.metadata(key):
            yield target, _stated(value, source)
    for file in declared.files:
        imatrix = {
            key: value for key, value in file.metadata.items() if key.startswith(_IMATRIX_PREFIX)
        }
        if imatrix:
            yield "calibration", _stated(imatrix, Source(file.name, _IMATRIX_PREFIX + "*"))
    for source, value in declared.metadata("tokenizer.chat_template"):
        if isinstance(value, str):
            yield "chat_template_sha256", _stated(_text_digest(value), source)


def _from_model_config(checkpoint: Checkpoint) -> Iterator[tuple[str, Stated]]:
    model = checkpoint.declarations.model

    def written(key: str) -> Source:
        return Source("config.json", f"/{key}")

    architectures = model.get("architectures")
    if isinstance(architectures, list) and architectures:
        yield "architecture", _stated(architectures, written("architectures"))
    for target, key in (
        ("base_model", "_name_or_path"),
        ("model_revision", "_commit_hash"),
        ("model_library_version", "transformers_version"),
    ):
        value = model.get(key)
        if isinstance(value, str) and value:
            shown = f"transformers {value}" if key == "transformers_version" else value
            yield target, _stated(shown, written(key))


def _from_files(checkpoint: Checkpoint) -> Iterator[tuple[str, Stated]]:
    for config in checkpoint.opened.configs:
        if config.name == "recipe.yaml" and config.sha256 is not None:
            value = {"file": config.name, "sha256": config.sha256, "stages": _stages(config.data)}
            yield "recipe", Stated(value=value, source=config.name)
    root = checkpoint.opened.root
    yield from _digest_of_first("tokenizer_sha256", root, TOKENIZER_FILES)
    yield from _digest_of_first("chat_template_sha256", root, TEMPLATE_FILES)
    config_file = checkpoint.declarations.configs.get("tokenizer_config.json")
    data = config_file.data if config_file is not None else None
    template = data.get("chat_template") if isinstance(data, dict) else None
    if isinstance(template, str):
        source = Source("tokenizer_config.json", "/chat_template")
        yield "chat_template_sha256", _stated(_text_digest(template), source)


def _digest_of_first(key: str, root: str, names: Iterable[str]) -> Iterator[tuple[str, Stated]]:
    for name in names:
        path = os.path.join(root, name)
        if not os.path.isfile(path):
            continue
        try:
            with ByteSource(path, name=name) as source:
                yield key, Stated(value=file_digest(source), source=name)
        except QuantscopeError:
            continue
        return


def _stages(data: Any) -> list[str]:
    return sorted(str(key) for key in data)[:16] if isinstance(data, dict) else []


def _producer(name: Any, version: Any, source: Source) -> Iterator[tuple[str, Stated]]:
    if isinstance(name, str) and name:
        yield "producer", _stated(name, source)
        if isinstance(version, str | int | float) and version != "":
            yield "producer_version", _stated(str(version), source)


def _split_version(text: str) -> tuple[str, str | None]:
    name, mark, version = text.partition(":")
    return name, version if mark else None


def _stated(value: Any, source: Source) -> Stated:
    return Stated(value=leaf_value(value), source=str(source))


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
