"""Small plots as inline SVG, styled by classes alone."""

from __future__ import annotations

from collections.abc import Sequence

from quantscope.report.inert_markup import plain_html

WIDTH, HEIGHT = 640, 120
LABEL_WIDTH, ROW_HEIGHT = 150, 20


def histogram(counts: Sequence[int], lowest: int) -> str:
    """Counts per code as bars; the height is the share of the most frequent one.

    Args:
        counts: counts, lowest code first.
        lowest: the code of the first bar.
    """
    highest = max(counts, default=0) or 1
    step = WIDTH / max(1, len(counts))
    parts = [
        f'<rect class="b" x="{i * step:.2f}" y="{HEIGHT - h:.2f}" width="{max(0.5, step - 1):.2f}" '
        f'height="{h:.2f}"><title>code {lowest + i}: {count}</title></rect>'
        for i, count in enumerate(counts)
        if (h := HEIGHT * count / highest) > 0
    ]
    every = max(1, len(counts) // 16)
    labels = [
        f'<text x="{i * step + step / 2:.2f}" y="{HEIGHT + 14}" text-anchor="middle">{lowest + i}</text>'
        for i in range(0, len(counts), every)
    ]
    axis = f'<line class="a" x1="0" y1="{HEIGHT}" x2="{WIDTH}" y2="{HEIGHT}"/>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 18}" width="{WIDTH}" height="{HEIGHT + 18}" role="img" '
        f'aria-label="histogram of codes">{"".join(parts)}{axis}{"".join(labels)}</svg>'
    )


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars of shares from 0 to 1, each with a label and its words."""
    room = WIDTH - LABEL_WIDTH - 170
    parts = []
    for number, (label, share, words) in enumerate(rows):
        y = number * ROW_HEIGHT
        parts.append(
            f'<text x="0" y="{y + 14}">{plain_html(label, 24)}</text>'
            f'<rect class="t" x="{LABEL_WIDTH}" y="{y + 4}" width="{room}" height="12"/>'
            f'<rect class="b" x="{LABEL_WIDTH}" y="{y + 4}" width="{room * min(1.0, share):.2f}" height="12"/>'
            f'<text x="{LABEL_WIDTH + room + 8}" y="{y + 14}">{plain_html(words, 40)}</text>'
        )
    height = max(1, len(rows)) * ROW_HEIGHT
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="share of bytes read">{"".join(parts)}</svg>'
    )
