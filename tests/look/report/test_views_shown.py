"""Views on the page: what they keep and drop, and copies beside what stays."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from jaxdata.dataset.manifest import read_manifest
from jaxdata.storage import open_store
from tests.dedup.planted import find, made, prose
from tests.look.report.conftest import attacks, report

ATTACK = " ".join(attacks())


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
