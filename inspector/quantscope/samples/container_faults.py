"""Samples with a fault of the container: headers, ranges, indexes, split sets, archives, configs."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

from quantscope.samples.folder_edit import (
    edit_gguf,
    edit_index,
    edit_json,
    edit_weights,
    gguf_path,
    weights,
)
from quantscope.samples.gguf_edit import U32, GgufFile, Key, Tensor, value_of
from quantscope.samples.sample import Sample, faulty
from quantscope.samples.st_edit import Entry, Header, StFile

GPTQ, SHARDED, GGUF, INT8 = (
    "smol-gptq-w4",
    "smol-ct-w4-sharded",
    "smol-gguf-q4_k_m",
    "smol-ct-int8",
)
K0 = "model.layers.0.self_attn.k_proj"


def keep(_: StFile) -> None:
    """No change to the tensors."""


def change_header(folder: Path, change: Any) -> None:
    """Change the header of the first file only."""
    edit_weights(folder, keep, change)


def st_header_json(folder: Path) -> None:
    path = weights(folder)[0]
    raw = bytearray(path.read_bytes())
    raw[40] = ord("}")
    path.write_bytes(bytes(raw))


def st_truncated(folder: Path) -> None:
    path = weights(folder)[0]
    path.write_bytes(path.read_bytes()[:-1])


def st_size(folder: Path) -> None:
    def change(header: Header) -> None:
        header[f"{K0}.scales"]["shape"] = [2, 63]

    change_header(folder, change)


def st_overlap(folder: Path) -> None:
    def change(header: Header) -> None:
        other = f"{K0}.qweight".replace("k_proj", "v_proj")
        header[f"{K0}.qweight"]["data_offsets"] = header[other]["data_offsets"]

    change_header(folder, change)


def shard_missing(folder: Path) -> None:
    weights(folder)[1].unlink()


def index_wrong_shard(folder: Path) -> None:
    first = weights(folder)[0].name

    def change(weight_map: dict[str, str]) -> None:
        name = next(n for n in weight_map if n.endswith("weight_packed") and weight_map[n] != first)
        weight_map[name] = first

    edit_index(folder, change)


def index_omits(folder: Path) -> None:
    def change(weight_map: dict[str, str]) -> None:
        for name in [n for n in weight_map if f"{K0}.weight" in n]:
            del weight_map[name]

    edit_index(folder, change)


def index_outside(folder: Path) -> None:
    def change(weight_map: dict[str, str]) -> None:
        name = next(n for n in weight_map if n.endswith("norm.weight"))
        weight_map[name] = "../../secret.safetensors"

    edit_index(folder, change)


def config_broken(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text()[:-40])


def config_huge(folder: Path) -> None:
    text = (folder / "config.json").read_text().rstrip().rstrip("}")
    (folder / "config.json").write_text(text + ', "padding": "' + "x" * (17 << 20) + '"}')


def hostile_name(folder: Path) -> None:
    def change(file: StFile) -> None:
        file.tensors["model.norm\x1b[2J\u202e.weight"] = file.tensors.pop("model.norm.weight")

    edit_weights(folder, change)


def pattern_bomb(folder: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["quantization_config"]["ignore"].append("re:(a+)+$")

    edit_json(folder, "config.json", change)


def unrecognised(folder: Path) -> None:
    def change(file: StFile) -> None:
        file.tensors["model.layers.0.mystery.blob"] = Entry(
            dtype="U8", shape=[64, 64], data=bytes(range(256)) * 16
        )

    edit_weights(folder, change)


def gg_header(folder: Path) -> None:
    edit_gguf(folder, lambda file: setattr(file, "version", 9))


def gg_truncated(folder: Path) -> None:
    path = gguf_path(folder)
    path.write_bytes(path.read_bytes()[:-4096])


def gg_region(folder: Path) -> None:
    def change(file: GgufFile) -> None:
        running = 0
        for number, tensor in enumerate(file.tensors):
            tensor.offset = running - (4096 if number > 4 else 0)
            running += len(tensor.data) + -len(tensor.data) % file.alignment

    edit_gguf(folder, change)


def gg_dims(folder: Path) -> None:
    def change(file: GgufFile) -> None:
        file.tensor("blk.0.attn_k.weight").dims = [2**31, 2**31, 2**31, 4]

    edit_gguf(folder, change)


def gg_alignment(folder: Path) -> None:
    edit_gguf(folder, lambda file: file.put("general.alignment", U32, 24))


def gg_duplicate(folder: Path) -> None:
    def change(file: GgufFile) -> None:
        first = file.tensor("blk.0.attn_k.weight")
        twin = Tensor(
            name=first.name, dims=first.dims, type_id=first.type_id, data=first.data[::-1]
        )
        file.tensors.append(twin)

    edit_gguf(folder, change)


def gg_type(folder: Path) -> None:
    edit_gguf(folder, lambda file: setattr(file.tensor("blk.0.attn_k.weight"), "type_id", 200))


def gg_split(folder: Path) -> None:
    """Two parts of which the second says that there are three."""
    path = gguf_path(folder)
    file = GgufFile.read(path)
    path.unlink()
    half = len(file.tensors) // 2
    for number, tensors in enumerate((file.tensors[:half], file.tensors[half:])):
        keys = list(file.keys) if number == 0 else []
        for name, type_id, value in (
            ("split.no", 2, number),
            ("split.count", 2, 2 + number),
            ("split.tensors.count", 5, len(file.tensors)),
        ):
            keys.append(Key(name=name, type_id=type_id, raw=value_of(type_id, value)))
        part = GgufFile(keys=keys, tensors=tensors)
        part.write(folder / f"smol-Q4_K_M-{number + 1:05d}-of-00002.gguf")


class _Storage:
    """Stands for a torch storage in a pickle written without torch."""

    def __init__(self, key: str, count: int) -> None:
        self.key, self.count = key, count


class _Global:
    """Pickles as a global of any module, which is not imported."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


def _torch_pickle(count: int, code: tuple[str, str] | None) -> bytes:
    """data.pkl of one float32 tensor `weight` of `count` elements, by hand in protocol 2."""
    out = io.BytesIO()

    def text(value: str) -> None:
        raw = value.encode()
        out.write(pickle.BINUNICODE + struct.pack("<I", len(raw)) + raw)

    def integer(value: int) -> None:
        out.write(pickle.BININT + struct.pack("<i", value))

    out.write(pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK)
    text("weight")
    out.write(pickle.GLOBAL + b"torch._utils\n_rebuild_tensor_v2\n" + pickle.MARK + pickle.MARK)
    text("storage")
    out.write(pickle.GLOBAL + b"torch\nFloatStorage\n")
    text("0")
    text("cpu")
    integer(count)
    out.write(pickle.TUPLE + pickle.BINPERSID)
    integer(0)
    integer(count)
    out.write(pickle.TUPLE1)
    integer(1)
    out.write(pickle.TUPLE1 + pickle.NEWFALSE)
    out.write(pickle.GLOBAL + b"collections\nOrderedDict\n" + pickle.EMPTY_TUPLE + pickle.REDUCE)
    out.write(pickle.TUPLE + pickle.REDUCE)
    if code is not None:
        text("surprise")
        out.write(pickle.GLOBAL + f"{code[0]}\n{code[1]}\n".encode())
    out.write(pickle.SETITEMS + pickle.STOP)
    return out.getvalue()


def _torch_zip(folder: Path, *, storage: bool, code: tuple[str, str] | None) -> None:
    for path in weights(folder):
        path.unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_STORED) as archive:
        stamp = (2020, 1, 1, 0, 0, 0)
        archive.writestr(zipfile.ZipInfo("model/data.pkl", stamp), _torch_pickle(64, code))
        archive.writestr(zipfile.ZipInfo("model/version", stamp), "3\n")
        if storage:
            archive.writestr(
                zipfile.ZipInfo("model/data/0", stamp), struct.pack("<64f", *range(64))
            )
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "recipe.yaml").unlink(missing_ok=True)


def torch_storage_missing(folder: Path) -> None:
    _torch_zip(folder, storage=False, code=None)


def torch_global(folder: Path) -> None:
    _torch_zip(folder, storage=True, code=("os", "system"))


def file_missing(folder: Path) -> None:
    """A link that leads nowhere, as an interrupted hub download leaves it."""
    path = weights(folder)[1]
    path.unlink()
    path.symlink_to(folder / "gone.safetensors")


SAMPLES: tuple[Sample, ...] = (
    faulty("st-header-json", "a byte of the header's JSON changed", GPTQ, st_header_json,
           ("QC001", "violation", "model.safetensors")),
    faulty("st-truncated", "the file's last byte cut off", GPTQ, st_truncated,
           ("QC002", "violation", "model.safetensors")),
    faulty("st-size", "scales declared one column narrower than stored", GPTQ, st_size,
           ("QC003", "violation", "k_proj.scales")),
    faulty("st-overlap", "k_proj and v_proj point to the same bytes", GPTQ, st_overlap,
           ("QC004", "violation", "v_proj.qweight")),
    faulty("shard-missing", "second of three shards deleted", SHARDED, shard_missing,
           ("QC005", "violation", "model.safetensors.index.json")),
    faulty("index-wrong-shard", "one tensor mapped to the first shard", SHARDED, index_wrong_shard,
           ("QC006", "violation", "weight_packed")),
    faulty("index-omits", "three tensors of a shard left out of the index", SHARDED, index_omits,
           ("QC007", "disagreement", "k_proj.weight")),
    faulty("file-missing", "second of three shards is a dangling link", SHARDED, file_missing,
           ("QC008", "violation", "model-00002-of-00003.safetensors")),
    faulty("torch-storage-missing", "torch archive without its storage", INT8, torch_storage_missing,
           ("QC009", "violation", "pytorch_model.bin")),
    faulty("config-broken", "config.json cut short", GPTQ, config_broken,
           ("QC010", "violation", "config.json")),
    faulty("index-outside", "a shard name that leaves the folder", SHARDED, index_outside,
           ("QH001", "violation", "index.json")),
    faulty("torch-global", "torch archive whose pickle names os.system", INT8, torch_global,
           ("QH002", "warning", "pytorch_model.bin")),
    faulty("config-huge", "config.json of 17 MB", GPTQ, config_huge,
           ("QH003", "warning", "config.json")),
    faulty("hostile-name", "a tensor name with an escape sequence and a bidi mark", GPTQ, hostile_name,
           ("QH004", "warning", "model.norm")),
    faulty("pattern-bomb", "an ignore pattern with nested repeats", SHARDED, pattern_bomb,
           ("QH005", "warning", "ignore")),
    faulty("unrecognised", "an unknown U8 matrix", GPTQ, unrecognised,
           ("QP007", "warning", "mystery.blob")),
    faulty("gg-header", "GGUF version 9", GGUF, gg_header, ("QC020", "violation", ".gguf")),
    faulty("gg-truncated", "GGUF cut by 4 KiB", GGUF, gg_truncated, ("QC021", "violation", "blk.1")),
    faulty("gg-region", "a tensor's region 4 KiB too short", GGUF, gg_region,
           ("QC022", "violation", "blk.")),
    faulty("gg-dims", "dimensions whose product overflows", GGUF, gg_dims,
           ("QC023", "violation", "blk.0.attn_k.weight")),
    faulty("gg-alignment", "general.alignment of 24", GGUF, gg_alignment,
           ("QC024", "violation", ".gguf")),
    faulty("gg-duplicate", "one tensor name twice with different bytes", GGUF, gg_duplicate,
           ("QC025", "violation", "blk.0.attn_k.weight")),
    faulty("gg-type", "type id 200", GGUF, gg_type, ("QC026", "disagreement", "blk.0.attn_k.weight")),
    faulty("gg-split", "two parts of which one counts three", GGUF, gg_split,
           ("QC027", "violation", "of-00002.gguf")),
)  # fmt: skip
