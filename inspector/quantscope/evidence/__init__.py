"""Numeric evidence: the strict evidence file, its metrics, and what others report about a model."""

from __future__ import annotations
