"""Copies planted in text are found as each way of looking should find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxdata.documents.converted_dataset import open_dataset
from tests.dedup.planted import dropped, find, made, prose

ORIGINAL = prose(1)
SENTENCES = ORIGINAL.split(". ")
COPIES = {
    "exact": ORIGINAL,
    "spaces": ORIGINAL.replace(". ", ".\n\n").replace(" of ", "  of "),
    "letters": ORIGINAL.upper().replace(".", "!"),
    "sentence": ". ".join(
        [*SENTENCES[:5], "A wholly new sentence stands here now", *SENTENCES[6:]]
    ),
    "half": ". ".join(SENTENCES[:6] + prose(2).split(". ")[:6]),
}
OTHERS = [prose(seed) for seed in range(100, 140)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies follow the original, others lie between them."""
    texts = [ORIGINAL, *OTHERS[:20], *COPIES.values(), *OTHERS[20:]]
    return made(tmp_path_factory.mktemp("planted"), {"train/web": texts})


def found(dataset: Path, **options: Any) -> dict[str, str]:
    """The reason for which each planted copy is dropped; nothing else may be."""
    find(dataset, prefer="first", **options)
    lost = dropped(dataset, "train/web")
    names = dict(enumerate(COPIES, start=21))
    assert {fate[1:] for fate in lost.values()} <= {("train/web", 0)}
    return {names[number]: fate[0] for number, fate in lost.items()}


@pytest.mark.parametrize(
    ("exact", "expected"),
    [
        ("none", ["exact"]),
        ("whitespace", ["exact", "spaces"]),
        ("letters", ["exact", "spaces", "letters"]),
    ],
)
def test_exact_copies_by_their_rule(dataset: Path, exact: str, expected: list[str]) -> None:
    assert found(dataset, exact=exact, near=False) == dict.fromkeys(expected, "exact copy")


def test_near_copies_too(dataset: Path) -> None:
    near = dict.fromkeys(["letters", "sentence"], "near copy")
    assert found(dataset) == {"exact": "exact copy", "spaces": "exact copy"} | near


def test_a_lower_threshold_finds_half_a_document(dataset: Path) -> None:
    assert "half" in found(dataset, threshold=0.25, bands=64, rows=2)


def test_a_higher_threshold_leaves_a_changed_sentence(dataset: Path) -> None:
    assert set(found(dataset, threshold=0.95)) == {"exact", "spaces", "letters"}


@pytest.mark.parametrize("of", ["bytes", "ids"])
def test_other_ngrams(dataset: Path, of: str) -> None:
    reasons = found(dataset, of=of, ngram=20)
    assert reasons["exact"] == "exact copy"
    assert reasons["sentence"] == "near copy"
    assert "half" not in reasons


def test_nothing_checked_is_as_other_tools_do(dataset: Path) -> None:
    assert set(found(dataset, threshold=0)) >= {"exact", "spaces", "letters", "sentence"}


def test_the_view_is_read_without_copies(dataset: Path) -> None:
    find(dataset, prefer="first", near=False)
    docs = open_dataset(dataset).source("train", "web", documents="d1")
    every = open_dataset(dataset).source("train", "web")
    assert len(docs) == len(every) - 2
    assert open_dataset(dataset).decode(docs[21]["tokens"]) == COPIES["letters"]


def test_texts_without_words(tmp_path: Path) -> None:
    texts = ["", "...", "", "?!", "日本語の文章です。", "日本語の文章です!", "a", "a b"]
    data = made(tmp_path, {"train/web": texts})
    find(data, exact="letters", prefer="first")
    lost = dropped(data, "train/web")
    assert {number: fate[2] for number, fate in lost.items()} == {2: 0, 5: 4}
