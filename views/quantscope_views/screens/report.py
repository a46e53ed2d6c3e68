"""Report: scope by hand, preview, format, where it goes."""

from __future__ import annotations

from typing import Any

from quantscope_views.place import Place
from quantscope_views.screens.base import BaseScreen


class ReportScreen(BaseScreen):
    """To be filled."""

    name_in_tabs = "report"

    def __init__(self, origin: Place) -> None:
        super().__init__()
        self._origin = origin


def export_json_now(app: Any) -> None:
    """Write a JSON report."""
