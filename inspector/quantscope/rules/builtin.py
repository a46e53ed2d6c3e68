"""Every built-in rule, file by file."""

from __future__ import annotations

from quantscope.rules import (
    qb,
    qc_gguf,
    qc_safetensors,
    qd_fields,
    qd_schemes,
    qg,
    qh,
    qp_planes,
    qp_readings,
    qr,
    qs_companions,
    qs_form,
    qs_layout,
    qs_siblings,
    qs_values,
    qv_codes,
    qv_gguf_keys,
    qv_gguf_types,
    qw_ends,
    qw_exclusions,
    qw_layers,
    qz,
)
from quantscope.rules.base import Rule

BUILTIN: tuple[type[Rule], ...] = (
    *qb.RULES,
    *qc_safetensors.RULES,
    *qc_gguf.RULES,
    *qd_fields.RULES,
    *qd_schemes.RULES,
    *qg.RULES,
    *qh.RULES,
    *qp_readings.RULES,
    *qp_planes.RULES,
    *qr.RULES,
    *qs_values.RULES,
    *qs_form.RULES,
    *qs_layout.RULES,
    *qs_siblings.RULES,
    *qs_companions.RULES,
    *qv_codes.RULES,
    *qv_gguf_keys.RULES,
    *qv_gguf_types.RULES,
    *qw_exclusions.RULES,
    *qw_ends.RULES,
    *qw_layers.RULES,
    *qz.RULES,
)
