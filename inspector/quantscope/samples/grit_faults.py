"""Samples with GRIT descriptors: good, unreadable, unsound, dangling, contradicting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from quantscope.grit import grade as grades
from quantscope.grit import words
from quantscope.grit.descriptor import Descriptor, frame_of
from quantscope.samples.folder_edit import edit_gguf, edit_weights
from quantscope.samples.gguf_edit import STRING
from quantscope.samples.sample import Sample, faulty
from quantscope.samples.st_edit import StFile

MXFP4_GGUF, GPTQ = "smol-gguf-mxfp4", "smol-gptq-w4"
K = "blk.0.attn_k.weight"
ROW_MAJOR = 0x1000000000000001


def descriptor(canonical: str, **changed: int) -> Descriptor:
    """A sound descriptor of a grade, with fields changed."""
    fields: dict[str, Any] = {
        "magic": words.MAGIC,
        "hdr_bytes": words.HEADER_BYTES,
        "version": words.VERSION,
        "group_axis": 0,
        "frame_rsvd": 0,
        "note": 0,
        "placement_data": ROW_MAJOR,
        "placement_scale": ROW_MAJOR,
        "placement_meta": 0,
        "grade_id": grades.grade_id(canonical),
        **frame_of(canonical),
    }
    desc = Descriptor(**fields)
    if desc.has_aux:
        desc = msgspec.structs.replace(desc, placement_meta=ROW_MAJOR)
    return msgspec.structs.replace(desc, **changed)


MXFP4 = grades.REGISTRY["GRADE_MXFP4"]


def described(hex_text: str, tensor: str = K) -> Any:
    """A change that adds a descriptor to a GGUF file."""
    key = f"grit.desc.{tensor}"
    return lambda folder: edit_gguf(folder, lambda file: file.put(key, STRING, hex_text))


def of_planes(grade: str) -> Any:
    """A change that describes a safetensors module of several planes."""

    def change(file: StFile) -> None:
        name = "model.layers.0.self_attn.k_proj.qweight"
        file.metadata["__grit__"] = json.dumps({name: descriptor(grade, group_axis=1).pack().hex()})

    def make(folder: Path) -> None:
        edit_weights(folder, change)

    return make


GPTQ_GRADE = "grit1(e=u4,k0=128,s0=binary16,zp=u4,zpc=minus1,esr=ratiomaxabs)"
GPTQ_AS_IS = "grit1(e=u4,k0=128,s0=binary16,zp=u4,esr=ratiomaxabs)"

LABEL = ("QV012",)
"""The base is labelled Q8_0 by its producer and is MXFP4."""

SAMPLES: tuple[Sample, ...] = (
    faulty("grit-good", "a sound descriptor of one MXFP4 tensor: a note at --deep", MXFP4_GGUF,
           described(descriptor(MXFP4).pack().hex()), ("QR008", "note", K), follows=LABEL),
    faulty("grit-unreadable", "a descriptor of 60 bytes", MXFP4_GGUF,
           described(descriptor(MXFP4).pack().hex()[:-8]), ("QR001", "violation", K), follows=LABEL),
    faulty("grit-frame", "a reserved flag bit set", MXFP4_GGUF,
           described(descriptor(MXFP4, flags=0x40).pack().hex()), ("QR002", "violation", K), follows=LABEL),
    faulty("grit-grade", "k0 of 64 under the id of a grade with 32", MXFP4_GGUF,
           described(descriptor(MXFP4, k0=64).pack().hex()), ("QR003", "disagreement", K), follows=(*LABEL, "QR004", "QR006")),
    faulty("grit-sizes", "a two-level grade over MXFP4 blocks", MXFP4_GGUF,
           described(descriptor(grades.REGISTRY["GRADE_NVF4"]).pack().hex()),
           ("QR004", "violation", K), follows=(*LABEL, "QR006")),
    faulty("grit-dangling", "a descriptor of a tensor that is not stored", MXFP4_GGUF,
           described(descriptor(MXFP4).pack().hex(), "blk.7.attn_k.weight"),
           ("QR005", "disagreement", "blk.7"), follows=LABEL),
    faulty("grit-contradicts", "zero points declared as stored over stored + 1", GPTQ,
           of_planes(GPTQ_AS_IS), ("QR006", "disagreement", "k_proj")),
    faulty("grit-inexpressible", "four stored tensors behind one descriptor: a note", GPTQ,
           of_planes(GPTQ_GRADE), ("QR007", "note", "k_proj")),
)  # fmt: skip
