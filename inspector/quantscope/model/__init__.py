"""Frozen models of what is known about a checkpoint and how it is known."""

from __future__ import annotations

from quantscope.model.claims import (
    CONTRACT_FIELDS,
    NOT_STATED,
    Basis,
    Candidate,
    Claim,
    Contract,
    Evidence,
    FieldState,
    Inferred,
    Json,
    Match,
    Sample,
    Source,
    Strength,
)
from quantscope.model.equations import Equation
from quantscope.model.findings import SEVERITIES, Finding, Severity, Subject, Suppressed, Who
from quantscope.model.readings import Arithmetic, GroupLevel, Packing, Reading, ScaleLevel
from quantscope.model.tensors import (
    BitSpan,
    Cell,
    Companion,
    LogicalTensor,
    Orphan,
    Plane,
    Role,
    Slice,
    Span,
)

__all__ = [
    "CONTRACT_FIELDS",
    "NOT_STATED",
    "SEVERITIES",
    "Arithmetic",
    "Basis",
    "BitSpan",
    "Candidate",
    "Cell",
    "Claim",
    "Companion",
    "Contract",
    "Equation",
    "Evidence",
    "FieldState",
    "Finding",
    "GroupLevel",
    "Inferred",
    "Json",
    "LogicalTensor",
    "Match",
    "Orphan",
    "Packing",
    "Plane",
    "Reading",
    "Role",
    "Sample",
    "ScaleLevel",
    "Severity",
    "Slice",
    "Source",
    "Span",
    "Strength",
    "Subject",
    "Suppressed",
    "Who",
]
