"""The page of a rule as text, for the terminal and for the documentation alike."""

from __future__ import annotations

import textwrap

from quantscope.closest import closest_hint
from quantscope.errors import UsageError
from quantscope.report.words import SEVERITY_WORDS
from quantscope.rules.base import Rule
from quantscope.rules.catalogue import catalogue

HEADINGS = (
    ("What it checks", "checks"),
    ("Why that is bad", "why"),
    ("Evidence", "evidence"),
    ("What it does not prove", "proves_not"),
)


def find(code: str) -> Rule:
    """A rule by its code or its name.

    Raises:
        UsageError: there is none; the hint names the closest codes.
    """
    rules = catalogue()
    if code.upper() in rules:
        return rules[code.upper()]
    for rule in rules.values():
        if rule.name == code:
            return rule
    names = [*rules, *(rule.name for rule in rules.values())]
    hint = closest_hint(code, names, "`quantscope rules` lists them")
    raise UsageError(f"no rule is called {code}", hint=hint)


def render(code: str, width: int = 96) -> str:
    """The page of a rule as plain text."""
    rule = find(code)
    lines = [f"{rule.code}  {rule.name}", _facts(rule), ""]
    for heading, key in HEADINGS:
        lines += [heading, *_wrapped(getattr(rule.page, key), width), ""]
    lines += ["Example", f"  quantscope samples DIR; quantscope scan DIR/{rule.page.sample}"]
    if rule.page.reports:
        lines += ["", "Public reports of the kind", *_wrapped(", ".join(rule.page.reports), width)]
    return "\n".join(lines) + "\n"


def markdown(code: str) -> str:
    """The page of a rule as Markdown."""
    rule = find(code)
    lines = [f"# {rule.code} {rule.name}", "", _facts(rule), ""]
    for heading, key in HEADINGS:
        lines += [f"## {heading}", "", getattr(rule.page, key), ""]
    lines += [
        "## Example",
        "",
        "```",
        "quantscope samples DIR",
        f"quantscope scan DIR/{rule.page.sample}",
        "```",
    ]
    if rule.page.reports:
        lines += ["", "## Public reports of the kind", ""]
        lines += [f"- {report}" for report in rule.page.reports]
    return "\n".join(lines) + "\n"


def table() -> str:
    """All rules as a Markdown table."""
    lines = ["| code | name | most severe | fault kind | reads |", "|---|---|---|---|---|"]
    for rule in catalogue().values():
        lines.append(
            f"| [{rule.code}]({rule.code}.md) | {rule.name} | {SEVERITY_WORDS[rule.severity]} | {rule.kind or ''} | {rule.needs} |"
        )
    return "# Rules\n\n" + "\n".join(lines) + "\n"


def _facts(rule: Rule) -> str:
    kind = f" · fault kind {rule.kind}" if rule.kind else ""
    return f"At most: {SEVERITY_WORDS[rule.severity]}{kind} · reads: {rule.needs}"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width - 2, initial_indent="  ", subsequent_indent="  ")
