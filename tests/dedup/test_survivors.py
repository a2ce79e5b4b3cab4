"""Near copies compared with the document that stays, not only with others of their cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxdata.base.errors import InputError
from jaxdata.dedup import deduplicate
from tests.dedup.planted import dropped, find, made, ngram_set, prose

LINKS = 14


def chain(seed: int = 1) -> list[str]:
    """Texts of which each is like the next one, and the first unlike the last."""
    words = prose(seed, sentences=20).split()
    texts = []
    for link in range(LINKS):
        words[link * 12 : link * 12 + 3] = [f"changed{link}{place}" for place in "abc"]
        texts.append(" ".join(words))
    return texts


def similarity(one: str, other: str) -> float:
    a, b = ngram_set(one), ngram_set(other)
    return len(a & b) / len(a | b)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    texts = chain()
    return made(tmp_path, {"train/web": [*texts, texts[-1] + " ", prose(2), prose(2), half()]})


def half() -> str:
    """A text of which another has a half."""
    return " ".join([*prose(2).split()[:72], *prose(3).split()[72:]])


def test_a_survivor_may_be_less_like_what_it_stands_for_and_the_report_says_so(
    dataset: Path,
) -> None:
    report = find(dataset, prefer="first", bands=60, rows=2)
    lost = dropped(dataset, "train/web")
    assert set(lost) == {*range(1, LINKS + 1), LINKS + 2}
    assert {fate[2] for number, fate in lost.items() if number <= LINKS} == {0}
    assert similarity(chain()[0], chain()[-1]) < 0.5
    said = report.summary()
    assert f"compared {report.compared:,} pairs of documents by all their n-grams; " in said
    assert f"{report.refused:,} of them are less alike than the threshold" in said
    assert 0 < report.refused < report.compared
    assert f"near copies in clusters of three and more: {LINKS}; each is like another there" in said


@pytest.mark.parametrize("prefer", ["first", "longest"])
def test_compared_with_what_stays_all_are_like_it(dataset: Path, prefer: str) -> None:
    report = find(dataset, prefer=prefer, bands=60, rows=2, compared_with="survivor")
    texts = [*chain(), chain()[-1] + " ", prose(2), prose(2), half()]
    lost = dropped(dataset, "train/web")
    near = {number: fate[2] for number, fate in lost.items() if fate[0] == "near copy"}
    assert all(similarity(texts[one], texts[stays]) >= 0.8 for one, stays in near.items())
    assert not {*near.values()} & {*lost}, "what stands for others stays"
    stays = [number for number in range(LINKS) if number not in lost]
    assert 1 < len(stays) < LINKS
    exact = {number: fate for number, fate in lost.items() if fate[0] == "exact copy"}
    assert LINKS + 2 in exact or LINKS + 1 in exact, "exact copies are what they were"
    assert "may be less like" not in report.summary()
    if prefer == "first":
        assert near == greedy(texts[:LINKS], near)


def greedy(texts: list[str], near: dict[int, int]) -> dict[int, int]:
    """By hand: the first of those left stays for all that are like it, and so on."""
    found: dict[int, int] = {}
    left = list(range(len(texts)))
    while left:
        first, *others = left
        alike = [one for one in others if similarity(texts[first], texts[one]) >= 0.8]
        found |= dict.fromkeys(alike, first)
        left = [one for one in others if one not in alike]
    more = {number: stays for number, stays in near.items() if number >= len(texts)}
    return found | more


def test_what_is_held_out_is_left_out_whichever_of_it_a_document_is_like(tmp_path: Path) -> None:
    texts = chain()
    held_out = [texts[0], texts[-1]]
    data = made(tmp_path, {"train/web": texts[1:-1], "val/web": held_out})
    options = {"against": ["val"], "overlap": 0, "prefer": "first", "bands": 60, "rows": 2}
    find(data, **options, compared_with="survivor")
    lost = dropped(data, "train/web")
    for number, text in enumerate(texts[1:-1]):
        if max(similarity(text, one) for one in held_out) >= 0.8:
            reason, source, stays = lost[number]
            assert (reason, source) == ("near copy in val", "val/web")
            assert similarity(text, held_out[stays]) >= 0.8
    assert {fate[2] for fate in lost.values() if fate[1] == "val/web"} == {0, 1}


def test_it_needs_a_similarity(dataset: Path) -> None:
    for more in ({"threshold": 0.0}, {"near": False}):
        with pytest.raises(InputError, match="compared_with='survivor' compares near copies by"):
            deduplicate(dataset, "d1", compared_with="survivor", **more)
    with pytest.raises(InputError, match="compared_with='nobody': expected 'cluster' or 'surv"):
        deduplicate(dataset, "d1", compared_with="nobody")
