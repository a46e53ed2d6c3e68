"""quantscope: what a quantized checkpoint declares, what its bytes say, and where the two part."""

from __future__ import annotations

__version__ = "0.1.0"
