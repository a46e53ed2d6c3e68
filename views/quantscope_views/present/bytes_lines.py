"""The Bytes tab as lines: hex with nibbles as cells, codes beside, planes, position, value, histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from quantscope.model import Reading

from quantscope_views.lines import (
    Line,
    Span,
    cells,
    cut_end,
    cut_middle,
    fit,
    line,
    rule,
    wrap,
)
from quantscope_views.present.bytes_model import CURSOR, ByteLine, BytesPage, CodeCell, PlaneStrip
from quantscope_views.present.bytes_strips import PIECES
from quantscope_views.present.histogram import bar_line, bin_labels, count_text
from quantscope_views.present.words import (
    count_words,
    fixed_words,
    number_words,
    offset_words,
)

TONE_OF_MARK = ("plain", "cursor-word", "lit", "cursor")
SHORT_TITLE = 10
"""Cells that a plane's name has at least."""
MIN_BYTE_LINES = 3
"""Lines of bytes that a pane shows at least, before it shows how codes are spread."""
FIXED_LINES = 13
"""Lines of the pane that are not bytes of codes, at most."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes a line and how many lines fit."""

    line_bytes: int
    lines: int


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """Cells before the bytes of a line."""

    label: int
    offset: int

    @property
    def total(self) -> int:
        """Column of the gap before the first byte."""
        return self.label + self.offset


def margin_of(kind: str, shape: tuple[int, int], last_offset: int) -> Margin:
    """Room for the label (a field, or row and column) and for offsets up to the last."""
    label = max(8, 2 + len(str(shape[1]))) if kind == "struct" else 2 + len(str(shape[1]))
    if kind == "flat":
        label = max(label, 2 + len(f"{shape[0] - 1},{shape[1] - 1}"))
    return Margin(label=label, offset=max(6, len(f"{last_offset:x}")) + 1)


def page_margin(page: BytesPage) -> Margin:
    """The margin of a page."""
    last = max((found.byte_offset for found in page.lines), default=0)
    return margin_of(page.kind, page.shape, last)


def fit_page(width: int, height: int, reading: Reading, in_grid: bool, margin: Margin) -> Fit:
    """Bytes a line and lines for a pane.

    Args:
        width: cells.
        height: lines.
        reading: the reading shown.
        in_grid: whether codes run down the lines, so that only one word's codes stand beside them.
        margin: cells before the bytes.
    """
    bits = max(1, reading.bit_width or 8)
    wide = 7 if _is_valued(reading) else (2 if bits <= 4 else 3)
    lines = max(MIN_BYTE_LINES, height - FIXED_LINES)
    for line_bytes in (32, 16, 8):
        codes = 32 // bits if in_grid else line_bytes * 8 // bits
        if margin.total + 3 * line_bytes + 2 + codes * wide <= width:
            return Fit(line_bytes=line_bytes, lines=lines)
    return Fit(line_bytes=8 if width >= margin.total + 24 else 4, lines=lines)


def _is_valued(reading: Reading) -> bool:
    return reading.bit_width == 8 and not reading.element[1:].isdigit()


def page_lines(
    page: BytesPage, width: int, height: int, *, ascii_only: bool, active: str = "codes"
) -> list[Line]:
    """All lines of the pane.

    Args:
        page: what was read.
        width: cells.
        height: lines that the pane has.
        ascii_only: marks in ASCII.
        active: `codes`, or the role of the plane that arrows move in.
    """
    mark = "-" if ascii_only else "─"
    below = _strip_lines(page, width, mark, active)
    below.append(rule(f"cursor: out {page.row}, in {page.col}", width, mark=mark))
    below += _position_lines(page, width)
    below += _value_lines(page, width)
    room = height - 1 - len(below) - min(MIN_BYTE_LINES, len(page.lines))
    if room < 0 and page.strips:
        below.pop(0)
    below += _histogram_lines(page, width, mark, ascii_only, room)
    first, count = _lines_shown(page, height - 1 - len(below))
    beside = _beside(page, width)
    shown = page.lines[first : first + count]
    return [
        _heading(page, width, beside),
        *(_byte_line(found, page, width, beside) for found in shown),
        *below,
    ]


def _plane_title(title: str, room: int) -> str:
    """Name and dtype of the plane, or type and block; shape and number of blocks only where there is room."""
    if cells(title) > room:
        title = title.partition(" [")[0].partition(" of ")[0]
    return cut_middle(title, room)


def line_at(lines: Sequence[Line], page: BytesPage, index: int) -> ByteLine | None:
    """The line of bytes that a painted line shows; None for one that shows none."""
    if not 0 <= index < len(lines):
        return None
    about = lines[index].about
    return next((found for found in page.lines if _line_about(found, page) == about), None)


def _lines_shown(page: BytesPage, room: int) -> tuple[int, int]:
    """First and number of the lines of bytes that there is room for, those of the cursor among them."""
    count = max(min(MIN_BYTE_LINES, len(page.lines)), min(room, len(page.lines)))
    at = [i for i, found in enumerate(page.lines) if found.has_cursor] or [0]
    first = min(at[0], max(at[-1] - count + 1, 0)) if at[-1] - at[0] < count else at[0]
    if first <= at[0] and at[-1] < count:
        first = 0
    return max(0, min(first, len(page.lines) - count)), count


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Which codes of each line stand beside its bytes, the same places in every line."""

    first: int = 0
    count: int | None = None
    """None: all of them."""
    wide: int = 0
    """Cells of the widest."""


def _beside(page: BytesPage, width: int) -> Beside:
    """Codes around the cursor where not all fit."""
    rows = [found.codes for found in page.lines if found.codes]
    cursor = next((found.codes for found in page.lines if found.has_cursor and found.codes), None)
    if not rows or cursor is None:
        return Beside()
    wide = max(len(code.text) for codes in rows for code in codes)
    most, room = max(map(len, rows)), _codes_room(page, width)
    if (wide + 1) * most + 1 <= room or (wide == 1 and most + 3 <= room):
        return Beside(wide=wide)
    at = next((i for i, code in enumerate(cursor) if code.mark == CURSOR), 0)
    count = max(1, (room - 2) // (wide + 1))
    return Beside(first=max(0, min(at - count // 2, len(cursor) - count)), count=count, wide=wide)


def _codes_room(page: BytesPage, width: int) -> int:
    full = max((len(found.data) for found in page.lines), default=0)
    return width - page_margin(page).total - 3 * full - 1


def _codes_title(page: BytesPage, beside: Beside, room: int) -> str:
    """Which codes stand beside the cursor's bytes: those shown, where not all are."""
    cursor = next((found.codes for found in page.lines if found.has_cursor and found.codes), ())
    shown = cursor[beside.first :][: beside.count]
    if beside.count is None or not shown:
        return page.codes_title
    cols = [code.col for code in shown]
    run = cols == list(range(cols[0], cols[0] + len(cols)))
    where = f"in {cols[0]}..{cols[-1]}" if run else f"in {cols[0]}.."
    words = f"out {page.row}, {where}"
    return words if cells(words) <= room else where


def _heading(page: BytesPage, width: int, beside: Beside) -> Line:
    label = "field" if page.kind == "struct" else "in"
    margin = page_margin(page)
    left = " " + fit(label, margin.label - 1) + fit("offset", margin.offset)
    line_bytes = max((len(found.data) for found in page.lines), default=0)
    title = _plane_title(page.plane, max(0, 3 * line_bytes - 1))
    room = max(0, width - margin.total - 3 * line_bytes - 2)
    return line(
        (left, "head"),
        " ",
        (fit(title, 3 * line_bytes + 1), "head"),
        (cut_end(_codes_title(page, beside, room), room), "head"),
    )


def _byte_line(found: ByteLine, page: BytesPage, width: int, beside: Beside) -> Line:
    margin = page_margin(page)
    spans = [
        Span("=" if found.has_cursor else " ", "key"),
        Span(fit(found.label, margin.label - 1), "strong" if page.kind == "struct" else "plain"),
        Span(fit(f"{found.byte_offset:x}", margin.offset), "dim"),
    ]
    spans += hex_spans(found.data, found.marks)
    full = max((len(other.data) for other in page.lines), default=0)
    spans.append(Span(" " * (3 * (full - len(found.data)))))
    codes = found.codes[beside.first :][: beside.count]
    if codes:
        spans += code_spans(codes, _codes_room(page, width), beside.wide)
    elif not found.codes:
        spans.append(Span(" " + found.meaning, "dim"))
    return Line(spans=tuple(spans), about=_line_about(found, page))


def _line_about(found: ByteLine, page: BytesPage) -> tuple[str, ...]:
    return (
        f"{page.file} bytes {offset_words(found.byte_offset)} to "
        f"{offset_words(found.byte_offset + len(found.data) - 1)}",
    )


def hex_spans(data: bytes, marks: bytes) -> list[Span]:
    """Bytes as hex digits, three cells a byte and one before, the cursor's nibbles in brackets.

    Brackets take the gaps between bytes; inside a byte the other digit moves into the gap.
    """
    digits = data.hex()
    chars: list[tuple[str, str]] = [(" ", "plain")] * (3 * len(data) + 1)
    for i, digit in enumerate(digits):
        chars[3 * (i // 2) + 1 + i % 2] = (digit, TONE_OF_MARK[marks[i]])
    for first, last in _cursor_runs(marks):
        byte, low = divmod(first, 2)
        if low:
            chars[3 * byte], chars[3 * byte + 1] = chars[3 * byte + 1], ("[", "cursor")
        else:
            chars[3 * byte] = ("[", "cursor")
        byte, low = divmod(last, 2)
        if low:
            chars[3 * byte + 3] = ("]", "cursor")
        else:
            chars[3 * byte + 3], chars[3 * byte + 2] = chars[3 * byte + 2], ("]", "cursor")
    spans: list[Span] = []
    for char, tone in chars:
        if spans and spans[-1].tone == tone:
            spans[-1] = Span(spans[-1].text + char, tone)
        else:
            spans.append(Span(char, tone))
    return spans


def _cursor_runs(marks: bytes) -> list[tuple[int, int]]:
    """First and last nibble of every run under the cursor."""
    runs: list[tuple[int, int]] = []
    for i, mark in enumerate(marks):
        if mark != CURSOR:
            continue
        if runs and runs[-1][1] == i - 1:
            runs[-1] = (runs[-1][0], i)
        else:
            runs.append((i, i))
    return runs


def code_spans(codes: Sequence[CodeCell], room: int, wide: int = 0) -> list[Span]:
    """Codes beside their bytes: spaced where they fit, closed up where digits, cut where neither fits.

    Args:
        codes: at least one.
        room: cells.
        wide: cells of the widest code of all lines, so that columns stand under each other.
    """
    wide = max(wide, *(len(code.text) for code in codes))
    if (wide + 1) * len(codes) + 1 <= room:
        return _spaced(codes, wide)
    if wide == 1 and len(codes) + 3 <= room:
        spans = [Span(" ")]
        for code in codes:
            bracketed = f"[{code.text}]" if code.mark == CURSOR else code.text
            spans.append(Span(bracketed, TONE_OF_MARK[code.mark]))
        return spans
    at = next((i for i, code in enumerate(codes) if code.mark == CURSOR), 0)
    count = max(1, (room - 2) // (wide + 1))
    first = max(0, min(at - count // 2, len(codes) - count))
    return _spaced(codes[first : first + count], wide)


def _spaced(codes: Sequence[CodeCell], wide: int) -> list[Span]:
    spans: list[Span] = []
    closing = False
    for code in codes:
        cursor = code.mark == CURSOR
        gap = "[" if cursor else "]" if closing else " "
        spans.append(Span(gap, "cursor" if gap != " " else "plain"))
        spans.append(Span(fit(code.text, wide, right=True), TONE_OF_MARK[code.mark]))
        closing = cursor
    spans.append(Span("]" if closing else " ", "cursor" if closing else "plain"))
    return spans


def _strip_lines(page: BytesPage, width: int, mark: str, active: str) -> list[Line]:
    """Planes that the element uses, two beside each other where that fits."""
    if not page.strips:
        return []
    blocks = [_strip_block(strip, active, SHORT_TITLE, page.file) for strip in page.strips]
    lines: list[Line] = [rule("planes of this element, bytes in place", width, mark=mark)]
    widest = max(sum(cells(span.text) for span in block) for block in blocks)
    half = width // 2
    room = half - 1 if widest <= half - 1 else width
    title = max(SHORT_TITLE, *(cells(strip.title) for strip in page.strips))
    title = min(title, max(SHORT_TITLE, room - widest + SHORT_TITLE))
    blocks = [_strip_block(strip, active, title, page.file) for strip in page.strips]
    if widest <= half - 1:
        for i in range(0, len(blocks), 2):
            left = blocks[i]
            used = sum(cells(span.text) for span in left)
            spans = [*left, Span(" " * (half - used))]
            if i + 1 < len(blocks):
                spans += blocks[i + 1]
            lines.append(
                Line(
                    spans=tuple(spans),
                    about=tuple(strip_about(s, page) for s in page.strips[i : i + 2]),
                )
            )
        return lines
    return lines + [
        Line(spans=tuple(block), about=(strip_about(strip, page),))
        for block, strip in zip(blocks, page.strips, strict=True)
    ]


def _strip_block(strip: PlaneStrip, active: str, title: int, file: str) -> list[Span]:
    is_active = strip.role == active
    return [
        Span("=" if is_active else " ", "key"),
        Span(fit(cut_middle(strip.title, title), title + 1), "strong" if is_active else "head"),
        Span(f"{strip.byte_offset:x} ", "dim"),
        *hex_spans(strip.data[:4], strip.marks[:8]),
        Span(f"= {strip.value}", "number"),
        Span(f" {strip.note}", "dim"),
        Span(f"  {cut_middle(strip.file, 36)}" if strip.file != file else "", "dim"),
    ]


def strip_about(strip: PlaneStrip, page: BytesPage) -> str:
    """How the value of a strip is known."""
    return (
        f"{strip.title}: {count_words(len(strip.data), 'byte')} at {offset_words(strip.byte_offset)} of "
        f"{strip.file or page.file} ({strip.data[:16].hex(' ')}) read as {strip.note or 'stored'}: {strip.value}"
    )


def _position_lines(page: BytesPage, width: int) -> list[Line]:
    """File, byte and bits, then the group; the file stands beside the group where the first line is full."""
    about = position_about(page)
    first, second = [f" {page.file}  {page.word}"], f" {page.group.words}"
    if cells(first[0]) > width:
        first = [f" {page.word}"]
        room = width - cells(second) - 3
        second += f"   {cut_middle(page.file, room)}" if room >= 12 else ""
    if cells(first[0]) > width:
        pieces = page.word.split(PIECES)
        first = [f" {'+ ' if i else ''}{piece}" for i, piece in enumerate(pieces)]
    texts = [piece for text in (*first, second) for piece in _folded(text, width)]
    return [line(text, about=about) for text in texts]


def _folded(text: str, width: int) -> list[str]:
    """A line folded at spaces where it is too long; what follows stands further in."""
    if cells(text) <= width:
        return [text]
    pieces = wrap(text.strip(), width - 3)
    return [" " + pieces[0], *("   " + piece for piece in pieces[1:])]


def position_about(page: BytesPage) -> tuple[str, ...]:
    """How the position is known."""
    lines = [f"out {page.row}, in {page.col} of [{page.shape[0]}, {page.shape[1]}]"]
    for span in page.bits:
        lines.append(
            f"{page.file}: {span.nbytes}-byte word at {offset_words(span.byte_offset)}, "
            f"bits {span.low_bit}..{span.low_bit + span.bit_width - 1}"
        )
    lines.append(page.group.words)
    if page.group.cut:
        lines.append("only the part shown is counted below")
    return tuple(lines)


def _value_lines(page: BytesPage, width: int) -> list[Line]:
    if page.error:
        return [line((text, "broken")) for text in _folded(f" not decoded: {page.error}", width)]
    shown, claimed = page.shown, page.claimed
    if shown is None:
        return []
    about = value_about(page)
    left = f" {shown.formula} = {fixed_words(shown.value)}"
    right, tone = "   as the file claims", "dim"
    if page.refused:
        right, tone = f"   file claims {', '.join(page.refused)}: does not fit", "contradicts"
    elif claimed is not None and claimed.formula != shown.formula:
        says = "as the file claims" if page.declared else "by custom"
        right, tone = f"   {says}: {fixed_words(claimed.value)}", "contradicts"
    elif not page.declared:
        right = "   by custom: nothing declares it"
    if cells(left) + cells(right) <= width:
        return [line((left, "strong"), (right, tone), about=about)]
    lines = [line((text, "strong"), about=about) for text in _folded(left, width)]
    last = lines[-1].spans
    if len(lines) > 1 and cells(lines[-1].text) + cells(right) <= width:
        return [*lines[:-1], line(*last, (right, tone), about=about)]
    return [*lines, line((right, tone), about=about)]


def value_about(page: BytesPage) -> tuple[str, ...]:
    """How the value is known."""
    lines = []
    if page.shown is not None:
        lines.append(
            f"as shown: {page.shown.formula} = {_exact(page.shown.value)} (exact float32 steps)"
        )
    if page.refused:
        claims = ", ".join(page.refused)
        lines.append(
            f"the file claims {claims}: the stored sizes rule that out; shown is what fits"
        )
    elif page.claimed is not None:
        says = "as the file claims" if page.declared else "by custom, nothing declares it"
        lines.append(f"{says}: {page.claimed.formula} = {_exact(page.claimed.value)}")
    lines += [strip_about(strip, page) for strip in page.strips]
    lines += position_about(page)
    return tuple(lines)


def _exact(value: float) -> str:
    """Every digit of a finite value."""
    return repr(value) if math.isfinite(value) else number_words(value)


def _histogram_lines(
    page: BytesPage, width: int, mark: str, ascii_only: bool, room: int
) -> list[Line]:
    """Bars, bins and counts, as much of it as there is room for; the mean goes last."""
    if not page.histogram or room < 1:
        return []
    if room < 4:
        return _mean_lines(page, width)
    count = len(page.histogram)
    cell = max(3, min(8, (width - 2) // count))
    about = (
        f"codes of {page.group.words}: {page.group_count} of them counted, "
        f"{count} bins of the stored code",
        "counts: " + ", ".join(map(str, page.histogram)),
    )
    head = " " + bin_labels(page.histogram_labels, cell)
    counts = " " + "".join(fit(count_text(n, cell), cell) for n in page.histogram)
    lines = [rule(f"codes of this group, {page.group_count}", width, mark=mark)]
    if room >= 5:
        lines.append(bar_line(page.histogram, cell, ascii_only, about))
    lines += [line((head, "dim"), about=about), line((counts, "number"), about=about)]
    return [*lines, *_mean_lines(page, width)]


def _mean_lines(page: BytesPage, width: int) -> list[Line]:
    words = []
    shown, claimed = page.shown, page.claimed
    if shown is not None and shown.mean is not None:
        text = f" mean(code-zero) {shown.mean:+.2f}"
        if claimed is not None and claimed.mean is not None and claimed != shown:
            text += f"  (claim: {claimed.mean:+.2f})"
        words.append(text)
    about = ["mean over this one group; one group alone decides nothing, see the Zero tab"]
    if page.end_codes is not None:
        words.append(f" codes at either end: {page.end_codes} of {page.group_count}")
        about.append(
            "end codes: those of the lowest and of the highest value that the format holds"
        )
    return [line(cut_end("   ".join(words), width), about=about)] if words else []
