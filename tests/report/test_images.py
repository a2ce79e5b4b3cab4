"""The pictures of the README: made by the command, small, and readable in light and dark."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from jaxdata.testing import write_dataset
from tests.conftest import ROOT
from tests.readmes import TOP, of
from tests.report.chromium import Page
from tests.report.conftest import report

IMAGES = ROOT / ".github" / "images"
NUMBER = re.compile(r"\d[\d,.]*[kM]?")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures as the README's config makes them, of other documents in the same sources."""
    folder = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(4)
    sources = {}
    for name, (count, longest) in {
        "code": (300, 9_000),
        "docs": (4_000, 250),
        "meta": (800, 4_000),
    }.items():
        lengths = numbers.integers(2, longest, count)
        sources[f"train/{name}"] = [numbers.integers(1, 250, length) for length in lengths]
    write_dataset(folder / "data", sources)
    (folder / "pictures.yaml").write_text(of("report").blocks("yaml")[0])
    made = ("--dataset", folder / "data", "-o", folder / "r.html", "--images", folder / "images")
    report(folder / "pictures.yaml", *made)
    return folder / "images"


def words(image: Path) -> set[str]:
    """The texts of a picture, without numbers."""
    texts = ElementTree.parse(image).iter("{http://www.w3.org/2000/svg}text")
    return {NUMBER.sub("0", "".join(text.itertext())) for text in texts}


def test_the_readme_shows_what_the_command_makes(made: Path) -> None:
    shown = set(re.findall(r"\]\(\.github/images/([\w.]+)\)", TOP.text))
    assert shown == {"batch.svg", "curriculum.svg", "packing.svg"}
    assert {image.name for image in IMAGES.iterdir()} == shown
    for name in shown:
        assert (IMAGES / name).stat().st_size < 60_000
        assert words(IMAGES / name) & words(made / name), name
    assert {"code", "docs", "meta", "asked for"} <= words(IMAGES / "curriculum.svg")
    assert words(IMAGES / "curriculum.svg") == words(made / "curriculum.svg")
    assert words(IMAGES / "packing.svg") == words(made / "packing.svg")


@pytest.mark.parametrize("name", ["batch.svg", "curriculum.svg", "packing.svg"])
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
