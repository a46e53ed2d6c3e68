"""The only map from codes to built-in rules, third-party rules by entry point, and the judge."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec

from quantscope.errors import CancelledError
from quantscope.families.registry import PluginRecord, load_entry_points
from quantscope.model import Finding
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.builtin import BUILTIN
from quantscope.rules.consequences import without_consequences
from quantscope.rules.facts import Facts
from quantscope.rules.fold import fold, ordered
from quantscope.rules.suppress import Suppression, split_suppressed
from quantscope.session.inspection import Inspection

RULE_GROUP = "quantscope.rules"
MODE_RANK = {"headers": 0, "sample": 1, "deep": 2}


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """Rules by code, and where third-party ones came from or why they were left out."""

    rules: Mapping[str, Rule]
    records: tuple[PluginRecord, ...]


@cache
def load() -> Catalogue:
    """Built-in rules and those of entry points; a failing or doubling plugin becomes a record."""
    rules: dict[str, Rule] = {}
    for kind in BUILTIN:
        assert kind.code not in rules, kind.code
        rules[kind.code] = kind()
    records: list[PluginRecord] = []
    for loaded, record in load_entry_points(RULE_GROUP, _check_rule):
        if loaded is not None and loaded.code in rules:
            taken = f"code {loaded.code} is taken"
            records.append(msgspec.structs.replace(record, error=taken))
            continue
        if loaded is not None:
            rules[loaded.code] = loaded
        records.append(record)
    return Catalogue(rules=MappingProxyType(dict(sorted(rules.items()))), records=tuple(records))


def catalogue() -> Mapping[str, Rule]:
    """Every rule by its code, sorted."""
    return load().rules


def _check_rule(instance: Any) -> str | None:
    if not isinstance(instance, Rule):
        return "is no quantscope.rules.base.Rule"
    code = getattr(instance, "code", None)
    if (
        not isinstance(code, str)
        or len(code) != 5
        or not code[:2].isupper()
        or not code[2:].isdigit()
    ):
        return f"code {code!r} is not two capital letters and three digits"
    if not isinstance(getattr(instance, "page", None), Page):
        return f"{code} has no page"
    return None


def judge(
    inspection: Inspection,
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    suppressions: Iterable[Suppression] | None = None,
    rules: Mapping[str, Rule] | None = None,
) -> Inspection:
    """Run the rules on an inspection and put their findings in it, worst first.

    Args:
        inspection: the inspection, its checkpoint still open.
        select: codes or prefixes (`QZ`, `QZ001`) to run; all where empty.
        ignore: codes or prefixes to leave out.
        suppressions: findings that a person has accepted.
        rules: the rules to run; the catalogue by default.
    """
    facts = Facts(inspection)
    hits: list[Finding | Hit] = []
    run: list[str] = []
    skipped: list[tuple[str, str]] = []
    for code, rule in (catalogue() if rules is None else rules).items():
        if select and not _named(code, select):
            skipped.append((code, "not selected"))
        elif _named(code, ignore):
            skipped.append((code, "ignored on request"))
        elif MODE_RANK[rule.needs] > MODE_RANK[inspection.mode]:
            skipped.append((code, f"needs a {rule.needs} scan; this one read {_words(inspection)}"))
        else:
            found, failure = _run(rule, facts)
            hits += found
            run.append(code)
            if failure is not None:
                run.remove(code)
                skipped.append((code, failure))
    findings = fold(without_consequences(facts, hits))
    kept, suppressed = split_suppressed(findings, suppressions or ())
    return msgspec.structs.replace(
        inspection,
        findings=tuple(ordered([*inspection.findings, *kept])),
        rules_run=tuple(run),
        rules_skipped=tuple(skipped),
        suppressed=tuple(suppressed),
    )


def _named(code: str, words: Collection[str]) -> bool:
    return any(code.startswith(word.upper()) for word in words if word)


def _words(inspection: Inspection) -> str:
    return {"headers": "headers only", "sample": "a sample"}.get(inspection.mode, inspection.mode)


def _run(rule: Rule, facts: Facts) -> tuple[list[Finding | Hit], str | None]:
    try:
        return list(rule.check(facts)), None
    except CancelledError:
        raise
    except Exception as problem:  # one rule must not take the others down; it is named as skipped
        return [], f"failed: {type(problem).__name__}: {problem}"
