"""The colours of the page: words can be read on their ground, in light and in dark."""

from __future__ import annotations

import re

import pytest

from jaxdata.notebook import COLORS
from jaxdata.report.templating import text_of

LIGHT, DARK = (
    dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part))
    for part in text_of("colors.css").split("@media")
)


def luminance(color: str) -> float:
    """Of WCAG 2.2."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colors", [LIGHT, DARK])
def test_words_stand_out(colors: dict[str, str]) -> None:
    for words in ("ink", "muted"):
        for ground in ("surface", "ground"):
            assert contrast(colors[words], colors[ground]) >= 4.5, (words, ground)


@pytest.mark.parametrize("colors", [LIGHT, DARK])
def test_each_source_has_a_color(colors: dict[str, str]) -> None:
    found = [colors[f"c{number}"] for number in range(len(COLORS))]
    assert len(set(found)) == len(COLORS)
    assert all(contrast(color, colors["surface"]) > 1.9 for color in found)


def test_notebooks_have_the_colors_of_the_page() -> None:
    assert tuple(LIGHT[f"c{number}"] for number in range(len(COLORS))) == COLORS
