"""`python -m quantscope`."""

from __future__ import annotations

from quantscope.cli.main import main

main()
