"""A draft in one of the formats, as bytes in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from quantscope.report.builder import Draft
from quantscope.report.canonical import canonical_bytes

Form = Literal["json", "markdown", "sarif", "html"]


def rendered(draft: Draft, form: Form) -> Iterable[bytes]:
    """Bytes of a report; JSON comes as a stream, the other formats in one piece."""
    if form == "json":
        return draft.chunks()
    report = draft.report()
    if form == "markdown":
        from quantscope.report.markdown import markdown

        return (markdown(report).encode("utf-8"),)
    if form == "html":
        from quantscope.report.html import html_page

        return (html_page(report).encode("utf-8"),)
    from quantscope.report.sarif import rule_texts, sarif

    return (canonical_bytes(sarif(report, rule_texts())),)
