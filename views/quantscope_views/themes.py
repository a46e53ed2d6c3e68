"""Three themes: dark and light from the Okabe-Ito palette, and one without colour.

Palette: M. Okabe and K. Ito, "Color Universal Design", 2008 (blue and orange, never green against red).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.style import Style
from textual.theme import Theme

_DARK_TONES = {
    "tone-dim": "#9aa4ad",
    "tone-strong": "#ffffff",
    "tone-head": "#56b4e9",
    "tone-rule": "#8b97a1",
    "tone-broken": "#ff7f3f",
    "tone-contradicts": "#e69f00",
    "tone-check": "#f0e442",
    "tone-note": "#9aa4ad",
    "tone-agrees": "#56b4e9",
    "tone-key": "#56b4e9",
    "tone-lit": "#ffffff",
    "tone-lit-background": "#0b4a6f",
    "tone-cursor": "#000000",
    "tone-cursor-background": "#e69f00",
    "tone-word-background": "#23313d",
    "tone-banner": "#000000",
    "tone-banner-background": "#f0e442",
    "tone-bar": "#56b4e9",
    "tone-number": "#e8e8e8",
    "tone-line-background": "#1d2b36",
}

_LIGHT_TONES = {
    "tone-dim": "#5a646d",
    "tone-strong": "#000000",
    "tone-head": "#005b8e",
    "tone-rule": "#66717a",
    "tone-broken": "#a13d00",
    "tone-contradicts": "#835600",
    "tone-check": "#6b6100",
    "tone-note": "#5a646d",
    "tone-agrees": "#005b8e",
    "tone-key": "#005b8e",
    "tone-lit": "#000000",
    "tone-lit-background": "#b9def2",
    "tone-cursor": "#ffffff",
    "tone-cursor-background": "#8a3500",
    "tone-word-background": "#e2e8ec",
    "tone-banner": "#000000",
    "tone-banner-background": "#f0e442",
    "tone-bar": "#005b8e",
    "tone-number": "#1a1a1a",
    "tone-line-background": "#dfe9f0",
}

_MONO_TONES = {
    name: {
        "tone-lit-background": "#404040",
        "tone-cursor": "#000000",
        "tone-cursor-background": "#ffffff",
        "tone-word-background": "#2a2a2a",
        "tone-banner": "#000000",
        "tone-banner-background": "#c8c8c8",
        "tone-line-background": "#303030",
        "tone-dim": "#a0a0a0",
        "tone-rule": "#a0a0a0",
        "tone-note": "#b0b0b0",
    }.get(name, "#f0f0f0")
    for name in _DARK_TONES
}

DARK = Theme(
    name="quantscope-dark",
    primary="#56b4e9",
    secondary="#0072b2",
    accent="#e69f00",
    warning="#e69f00",
    error="#ff7f3f",
    success="#56b4e9",
    foreground="#e8e8e8",
    background="#0d1216",
    surface="#131a20",
    panel="#1d2b36",
    dark=True,
    variables=_DARK_TONES,
)

LIGHT = Theme(
    name="quantscope-light",
    primary="#005b8e",
    secondary="#0072b2",
    accent="#8a3500",
    warning="#835600",
    error="#a13d00",
    success="#005b8e",
    foreground="#1a1a1a",
    background="#fbfbf8",
    surface="#f3f4f2",
    panel="#e2e8ec",
    dark=False,
    variables=_LIGHT_TONES,
)

MONO = Theme(
    name="quantscope-mono",
    primary="#d0d0d0",
    secondary="#b0b0b0",
    accent="#f0f0f0",
    warning="#f0f0f0",
    error="#f0f0f0",
    success="#d0d0d0",
    foreground="#f0f0f0",
    background="#0a0a0a",
    surface="#121212",
    panel="#2a2a2a",
    dark=True,
    variables=_MONO_TONES,
)

THEMES: tuple[Theme, ...] = (DARK, LIGHT, MONO)

DEFAULT_TONES: dict[str, str] = dict(_DARK_TONES)
"""Values of our variables under a theme that does not set them."""

CONTRAST_PAIRS: tuple[tuple[str, str], ...] = (
    ("tone-dim", "background"),
    ("tone-strong", "background"),
    ("tone-head", "background"),
    ("tone-rule", "background"),
    ("tone-broken", "background"),
    ("tone-contradicts", "background"),
    ("tone-check", "background"),
    ("tone-note", "background"),
    ("tone-agrees", "background"),
    ("tone-key", "background"),
    ("tone-number", "background"),
    ("foreground", "background"),
    ("foreground", "tone-line-background"),
    ("tone-lit", "tone-lit-background"),
    ("tone-cursor", "tone-cursor-background"),
    ("tone-banner", "tone-banner-background"),
    ("tone-contradicts", "tone-line-background"),
    ("tone-broken", "tone-line-background"),
    ("tone-dim", "tone-line-background"),
)
"""(text, ground) pairs that must keep a contrast of 4.5 to 1."""


def theme_name(wanted: str, no_color: bool) -> str:
    """The theme to start with; without colour always the monochrome one, which is never an ANSI theme."""
    if no_color:
        return MONO.name
    return wanted if wanted in {theme.name for theme in THEMES} else DARK.name


TONE_STYLES: Mapping[str, tuple[str, str, str]] = {
    "dim": ("tone-dim", "", ""),
    "strong": ("tone-strong", "", "bold"),
    "head": ("tone-head", "", ""),
    "rule": ("tone-rule", "", ""),
    "broken": ("tone-broken", "", "bold"),
    "contradicts": ("tone-contradicts", "", "bold"),
    "check": ("tone-check", "", "underline"),
    "note": ("tone-note", "", ""),
    "agrees": ("tone-agrees", "", ""),
    "key": ("tone-key", "", "bold"),
    "lit": ("tone-lit", "tone-lit-background", ""),
    "cursor": ("tone-cursor", "tone-cursor-background", "bold"),
    "cursor-word": ("foreground", "tone-word-background", ""),
    "banner": ("tone-banner", "tone-banner-background", "bold"),
    "bar": ("tone-bar", "", ""),
    "number": ("tone-number", "", ""),
    "line": ("", "tone-line-background", ""),
}
"""Tone to (text variable, ground variable, attributes); disputes are also bold, doubts also underlined."""


@lru_cache(maxsize=64)
def tone_style(tone: str, colours: tuple[str, str]) -> Style:
    """Style of a tone for resolved colours of text and ground; an empty one leaves what is there."""
    attributes = TONE_STYLES[tone][2]
    return Style(
        color=colours[0] or None,
        bgcolor=colours[1] or None,
        bold=True if "bold" in attributes else None,
        underline=True if "underline" in attributes else None,
    )


def tone_colours(tone: str, variables: Mapping[str, str]) -> tuple[str, str]:
    """The colours of a tone under the variables of a theme."""
    text, ground, _ = TONE_STYLES[tone]
    return variables.get(text, ""), variables.get(ground, "")
