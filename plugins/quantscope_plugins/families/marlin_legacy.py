"""GPTQ in the Marlin order (`checkpoint_format` marlin): planes B and s, no zeros.

Source: AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_marlin.py. Tile order in `marlin_tile`.
"""

from __future__ import annotations

from typing import ClassVar

from quantscope_plugins.families.marlin_tile import MarlinTile


class MarlinLegacy(MarlinTile):
    """Legacy GPTQ Marlin, 4 bits."""

    name: ClassVar[str] = "marlin_legacy"
    title: ClassVar[str] = "GPTQ Marlin, legacy (B and s in 16x16 tiles, zero fixed at 8)"
    codes_suffix: ClassVar[str] = "B"
    scales_suffix: ClassVar[str] = "s"
