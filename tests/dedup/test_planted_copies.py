"""Copies planted in text are found as each way of looking should find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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


ALL = {*COPIES}


@pytest.mark.parametrize(
    ("options", "exact", "near"),
    [
        ({"near": False, "exact": "none"}, {"exact"}, set()),
        ({"near": False}, {"exact", "spaces"}, set()),
        ({"near": False, "exact": "letters"}, {"exact", "spaces", "letters"}, set()),
        ({}, {"exact", "spaces"}, {"letters", "sentence"}),
        ({"threshold": 0.95}, {"exact", "spaces"}, {"letters"}),
        ({"threshold": 0.25, "bands": 64, "rows": 2}, {"exact", "spaces"}, ALL),
        ({"threshold": 0}, {"exact", "spaces"}, {"letters", "sentence"}),
        ({"of": "bytes", "ngram": 20}, {"exact", "spaces"}, {"sentence"}),
        ({"of": "ids", "ngram": 20}, {"exact"}, {"sentence"}),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else " ".join(sorted(given)),
)
def test_each_way_of_looking_finds_its_copies(
    dataset: Path, options: dict[str, Any], exact: set[str], near: set[str]
) -> None:
    expected = dict.fromkeys(near, "near copy") | dict.fromkeys(exact, "exact copy")
    assert found(dataset, **options) == expected


def test_texts_without_words(tmp_path: Path) -> None:
    texts = ["", "...", "", "?!", "日本語の文章です。", "日本語の文章です!", "a", "a b"]
    data = made(tmp_path, {"train/web": texts})
    find(data, exact="letters", prefer="first")
    lost = dropped(data, "train/web")
    assert {number: fate[2] for number, fate in lost.items()} == {2: 0, 5: 4}
