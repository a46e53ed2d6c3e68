"""AWQ in the Marlin order (`version` marlin): qweight and scales, no zeros.

Source: AutoAWQ, awq/modules/linear/marlin.py. Tile order in `marlin_tile`.
"""

from __future__ import annotations

from typing import ClassVar

from quantscope_plugins.families.marlin_tile import MarlinTile


class AwqMarlin(MarlinTile):
    """AWQ Marlin, 4 bits."""

    name: ClassVar[str] = "awq_marlin"
    title: ClassVar[str] = "AWQ Marlin (qweight in 16x16 tiles, zero fixed at 8)"
    codes_suffix: ClassVar[str] = "qweight"
    scales_suffix: ClassVar[str] = "scales"
