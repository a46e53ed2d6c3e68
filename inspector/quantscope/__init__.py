"""quantscope: what a quantized checkpoint declares, what its bytes say, and where the two part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantscope.api import Report, inspect, open_checkpoint

__version__ = "0.1.0"

__all__ = ["Report", "__version__", "inspect", "open_checkpoint"]


def __getattr__(name: str) -> Any:
    """The Python API, imported at its first use."""
    if name in ("Report", "inspect", "open_checkpoint"):
        from quantscope import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
