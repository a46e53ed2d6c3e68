"""The door through which the command line starts the app."""

from __future__ import annotations


def run(
    path: str | None,
    *,
    tensor: str | None = None,
    tab: str | None = None,
    at: tuple[int, int] | None = None,
    ascii_only: bool = False,
    restore: bool = True,
) -> int:
    """Run the app; see `quantscope_views.app.run_app`."""
    from quantscope_views.app import run_app

    return run_app(path, tensor=tensor, tab=tab, at=at, ascii=ascii_only, restore=restore)
