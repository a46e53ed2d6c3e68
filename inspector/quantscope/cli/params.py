"""Words of the command line that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class PairType(click.ParamType):  # type: ignore[type-arg]
    """`A,B`: two integers that are not negative."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """The two integers."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
            self.fail(f"{value!r} is not two numbers such as 17,131", param, ctx)
        return int(parts[0]), int(parts[1])


class RangeType(click.ParamType):  # type: ignore[type-arg]
    """`a:b`, half-open; either end may be left out; a single number is one row or column."""

    name = "a:b"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Start and stop, None where left out."""
        if isinstance(value, tuple):
            return value
        first, mark, last = str(value).partition(":")
        if not all(part == "" or part.isdecimal() for part in (first, last)) or value in ("", ":"):
            self.fail(f"{value!r} is no range such as 0:16", param, ctx)
        if not mark:
            return int(first), int(first) + 1
        return (int(first) if first else None), (int(last) if last else None)


class CodesType(click.ParamType):  # type: ignore[type-arg]
    """Rule codes or prefixes of them, separated by commas."""

    name = "codes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Codes in capitals."""
        if isinstance(value, tuple):
            return value
        codes = tuple(part.strip().upper() for part in str(value).split(",") if part.strip())
        for code in codes:
            known = code[:2].isalpha() and code[2:].isdecimal() if len(code) > 2 else code.isalpha()
            if not known or len(code) > 5:
                self.fail(
                    f"{code!r} is no rule code such as QZ001, nor a prefix of one", param, ctx
                )
        return codes


class ReadingType(click.ParamType):  # type: ignore[type-arg]
    """`field=value,...` in contract field names."""

    name = "field=value,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, str]:
        """Values by field."""
        if isinstance(value, dict):
            return value
        fields: dict[str, str] = {}
        for part in str(value).split(","):
            key, mark, text = part.partition("=")
            if not mark or not key.strip() or not text.strip():
                self.fail(f"{part!r} is not field=value", param, ctx)
            if key.strip() in fields:
                self.fail(f"{key.strip()} is given twice", param, ctx)
            fields[key.strip()] = text.strip()
        return fields


PAIR = PairType()
RANGE = RangeType()
CODES = CodesType()
READING = ReadingType()


def path_argument(function: F) -> F:
    """The PATH of one checkpoint."""
    return click.argument("path", type=click.Path(path_type=str))(function)


def tensor_option(function: F) -> F:
    """`--tensor NAME`, required."""
    return click.option(
        "--tensor",
        required=True,
        metavar="NAME",
        help="Logical name, module, or a stored plane's name.",
    )(function)


def scope_options(function: F) -> F:
    """`--deep`, `--sample N`, `--headers-only`."""
    for option in (
        click.option("--headers-only", is_flag=True, help="Read nothing but headers."),
        click.option(
            "--sample",
            type=click.IntRange(min=1),
            metavar="N",
            help="Groups of codes to read a tensor (1024).",
        ),
        click.option("--deep", is_flag=True, help="Read every byte of quantized tensors."),
    ):
        function = option(function)
    return function


def rule_options(function: F) -> F:
    """`--select`, `--ignore`, `--baseline`."""
    for option in (
        click.option(
            "--baseline",
            type=click.Path(path_type=str),
            metavar="FILE",
            help="Findings that are accepted: quantscope.toml, or a report.",
        ),
        click.option(
            "--ignore", type=CODES, multiple=True, help="Rule codes or prefixes to leave out."
        ),
        click.option("--select", type=CODES, multiple=True, help="Rule codes or prefixes to run."),
    ):
        function = option(function)
    return function


def json_option(function: F) -> F:
    """`--json FILE`, `-` for stdout."""
    return click.option(
        "--json",
        "json_file",
        type=click.Path(path_type=str, allow_dash=True),
        metavar="FILE",
        help="Write one JSON document; - is stdout.",
    )(function)
