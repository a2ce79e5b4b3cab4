"""Views on the page: what they keep and drop, and copies beside what stays."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

import jaxdata
from jaxdata.dataset.manifest import read_manifest
from jaxdata.storage import open_store
from tests.converter.here import convert_here
from tests.dedup.planted import find, made, prose
from tests.look.report.chromium import Page
from tests.look.report.conftest import attacks, report
from tests.look.report.test_kinds_of_data import text_of

ATTACK = " ".join(attacks(9)[:-1])  # conversions refuse half a surrogate pair


def shown(*arguments: object) -> str:
    """The text of the part about views, and nothing if there is none."""
    page = Path(str(arguments[-1]))
    report(*arguments)
    return page.read_text().partition('<section id="views"')[2].partition("</section>")[0]


def words(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", html)))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hostile texts with near copies, in one source and in validation."""
    texts = [f"{prose(1)} {ATTACK}", f"{prose(1)} {ATTACK} <b>Another</b> end.", prose(2), prose(2)]
    held_out = [f"{prose(3)} {ATTACK} held out"]
    sources = {"train/web": [*texts, f"{prose(3)} {ATTACK}"], "val/web": held_out}
    made_here = made(tmp_path_factory.mktemp("views"), sources)
    find(made_here, against=["val"], prefer="first", overlap=0)
    return made_here


def test_the_account_is_that_of_the_manifest(dataset: Path, tmp_path: Path) -> None:
    part = words(shown(dataset, "-o", tmp_path / "r.html"))
    view = read_manifest(open_store(str(dataset))).sources["train/web"].views["d1"]
    source, kept = view.account.source, view.account.kept
    assert (source.documents, kept.documents) == (5, 2)
    assert f"train/web d1 5 2 {source.tokens:,} {kept.tokens:,}" in part
    assert set(view.account.dropped) == {"exact copy", "near copy", "near copy in val"}
    for reason, lost in view.account.dropped.items():
        assert f"dropped documents {reason} {lost.documents:,} {lost.tokens:,}" in part
    assert "train/web d1 2 3" in part  # three clusters of two


def test_examples_beside_what_stays_are_escaped(dataset: Path, tmp_path: Path) -> None:
    html = shown(dataset, "-o", tmp_path / "r.html")
    tags = set(re.findall(r"<(\w+)", html))
    assert not tags & {"script", "img", "svg", "iframe", "base", "style", "b"}
    assert not re.search(r"<[^>]* (style|on\w+)=", html)
    assert "<mark>&lt;b&gt;Another&lt;/b&gt; end.</mark>" in html
    part = words(html)
    assert "train/web:1 left out by view d1: near copy" in part
    assert "stays: val/web:0" in part
    assert re.findall(r"<mark>([^<]*)</mark>", html)[-1] == "held out"


def test_the_view_that_a_run_reads(dataset: Path, tmp_path: Path) -> None:
    jaxdata.select(dataset, "above", where="tokens > 3", sources=["web"])
    run = {"dataset": str(dataset), "documents": "d1", "pack": {"seq_len": 64}}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    part = words(shown(tmp_path / "run.yaml", "-o", tmp_path / "r.html"))
    assert "train/web d1 read here 5 2" in part
    assert "train/web above 5 5" in part


def test_a_joined_source_has_the_names_of_its_dataset(dataset: Path, tmp_path: Path) -> None:
    """A survivor in `train/web` is one of that dataset, whatever else a config calls web."""
    other = made(tmp_path, {"train/other": [prose(7)] * 3})
    sources = {
        "mine": {"dataset": str(dataset), "source": "web"},
        "web": {"dataset": str(other), "source": "other"},
    }
    run = {"sources": sources, "pack": {"seq_len": 64}, "curriculum": {"mix": {"mine": 1}}}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    html = shown(tmp_path / "run.yaml", "-o", tmp_path / "r.html")
    assert "train/mine d1" in words(html)
    assert "&lt;b&gt;Another&lt;/b&gt; end." in html


def test_a_view_of_an_earlier_generation(tmp_path: Path) -> None:
    data = made(tmp_path, {"train/web": [prose(1), prose(1)]})
    find(data)
    made(tmp_path / "more", {})
    lines = tmp_path / "more.jsonl"
    lines.write_text(json.dumps({"text": prose(4)}) + "\n")
    convert_here(str(lines), output=data, source="web", tokenizer="bytes", workers=1, append=True)
    part = words(shown(data, "-o", tmp_path / "r.html"))
    assert "train/web d1 of an earlier generation 2 1" in part
    assert "left out by view" not in part


def test_without_views_there_is_no_part(tmp_path: Path) -> None:
    data = made(tmp_path, {"train/web": [prose(1)]})
    assert shown(data, "-o", tmp_path / "r.html") == ""
    assert "Views and copies" not in text_of(tmp_path / "r.html")


def test_a_browser_shows_both_and_fetches_nothing(dataset: Path, tmp_path: Path, tab: Page) -> None:
    report(dataset, "-o", tmp_path / "r.html")
    for width in (390, 1180):
        tab.open(tmp_path / "r.html", width=width)
        assert tab.run("document.documentElement.scrollWidth") <= width
        assert tab.requests == [(tmp_path / "r.html").as_uri()]
        assert not tab.messages
        tops = tab.run(
            "[...document.querySelector('.pair').children].map((e) => "
            "e.getBoundingClientRect().top)"
        )
        assert (tops[0] == tops[1]) == (width > 390), "side by side where there is room"
    assert tab.run("document.querySelectorAll('#views img, #views svg, #views script').length") == 0
    search = "document.getElementById('search')"
    tab.run(f"{search}.value = 'no such text'; {search}.dispatchEvent(new Event('input'))")
    assert not tab.run("document.querySelector('#views article').hidden"), "it is no sample"
