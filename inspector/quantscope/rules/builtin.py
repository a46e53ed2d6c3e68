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
    qp,
    qr,
    qs_companions,
    qs_form,
    qs_siblings,
    qs_values,
    qv_codes,
    qv_gguf,
    qw_exclusions,
    qw_structure,
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
    *qp.RULES,
    *qr.RULES,
    *qs_values.RULES,
    *qs_form.RULES,
    *qs_siblings.RULES,
    *qs_companions.RULES,
    *qv_codes.RULES,
    *qv_gguf.RULES,
    *qw_exclusions.RULES,
    *qw_structure.RULES,
    *qz.RULES,
)
