"""The pictures of the README: made by the command, small, and readable in light and dark."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from jaxdata.base.wording import COLORS
from jaxdata.look.report.page import text_of
from tests.builders import dataset
from tests.conftest import ROOT
from tests.look.report.chromium import Page
from tests.look.report.conftest import log_of, report
from tests.readmes import TOP, of

IMAGES = ROOT / ".github" / "images"
NUMBER = re.compile(r"\d[\d,.]*[kM]?")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures as the README's config makes them, of other documents in the same sources."""
    folder = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(4)
    sources = {"code": (300, 9_000), "docs": (4_000, 250), "meta": (800, 4_000)}
    made = {
        name: [numbers.integers(1, 250, length) for length in numbers.integers(2, longest, count)]
        for name, (count, longest) in sources.items()
    }
    dataset(folder / "data", made)
    config = of("report").blocks("yaml")[0]
    assert "output: runs/pictures" in config
    config = config.replace("runs/pictures", str(folder / "run"))
    config = config.replace("jaxdata-demo/dataset", str(folder / "data"))
    (folder / "pictures.yaml").write_text(config)
    log_of(folder / "pictures.yaml", folder / "run", status="halted", reason="docs runs dry")
    asked = ("--step", 200, "-o", folder / "r.html", "--images", folder / "images")
    report(folder / "pictures.yaml", *asked)
    return folder / "images"


def words(image: Path) -> set[str]:
    """The texts of a picture, without numbers."""
    texts = ElementTree.parse(image).iter("{http://www.w3.org/2000/svg}text")
    return {NUMBER.sub("0", "".join(text.itertext())) for text in texts}


def test_the_readme_shows_what_the_command_makes(made: Path) -> None:
    shown = set(re.findall(r"\]\(\.github/images/([\w.]+)\)", TOP.text))
    assert shown == {"batch.svg", "epochs.svg", "packing.svg", "run.svg"}
    assert {image.name for image in IMAGES.iterdir()} == shown
    for name in shown:
        assert (IMAGES / name).stat().st_size < 60_000
        assert words(IMAGES / name) & words(made / name), name
    assert {"code", "docs", "meta", "asked for"} <= words(IMAGES / "run.svg")
    assert words(IMAGES / "run.svg") == words(made / "run.svg")
    assert words(IMAGES / "packing.svg") == words(made / "packing.svg")


@pytest.mark.parametrize("name", ["batch.svg", "epochs.svg", "packing.svg", "run.svg"])
def test_a_picture_is_data_and_nothing_else(made: Path, name: str) -> None:
    for image in (IMAGES / name, made / name):
        tree = ElementTree.parse(image)
        assert not [e for e in tree.iter() if "style" in e.attrib or e.tag.endswith("script")]
        assert tree.getroot().find("{http://www.w3.org/2000/svg}title") is not None
        text = image.read_text()
        assert "prefers-color-scheme: dark" in text
        assert set(re.findall(r"https?://[^\"]+", text)) <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
        }


@pytest.mark.parametrize("dark", [False, True])
def test_a_picture_has_its_own_ground(tab: Page, dark: bool) -> None:
    for image in sorted(IMAGES.iterdir()):
        tab.open(image, dark=dark)
        ground = tab.run("getComputedStyle(document.querySelector('rect')).fill")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 384) == dark, image


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
def test_words_and_sources_stand_out_in_light_and_in_dark(colors: dict[str, str]) -> None:
    for words in ("ink", "muted"):
        for ground in ("surface", "ground"):
            assert contrast(colors[words], colors[ground]) >= 4.5, (words, ground)
    found = [colors[f"c{number}"] for number in range(len(COLORS))]
    assert len(set(found)) == len(COLORS)
    assert all(contrast(color, colors["surface"]) > 1.9 for color in found)
    assert colors == DARK or tuple(found) == COLORS, "those of notebooks"
