"""Spans that occur before have no loss, or are cut out: all of them, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.base.errors import InputError
from jaxdata.dataset.opening import open_dataset
from tests.commands import run
from tests.dedup.planted import command, find, made, prose


def before(documents: list[list[int]], span: int) -> list[list[bool]]:
    """Which tokens lie in spans that occur before, the slow way."""
    seen: set[tuple[int, ...]] = set()
    found = [[False] * len(document) for document in documents]
    for document, masked in zip(documents, found, strict=True):
        for at in range(len(document) - span + 1):
            window = tuple(document[at : at + span])
            if window in seen:
                masked[at : at + span] = [True] * span
            seen.add(window)
    return found


def loss(data: Path, source: str, view: str) -> tuple[list[int], list[list[int]], list[list[bool]]]:
    """Documents that a view lists; their tokens; and which have no loss."""
    docs: Any = open_dataset(data).source("train", source, documents=view)
    items = [docs[number] for number in range(len(docs))]
    every = [np.ones(len(item["tokens"]), bool) for item in items]
    masks = [item.get("loss_mask", one) for item, one in zip(items, every, strict=True)]
    return (
        docs.document.tolist(),
        [item["tokens"].tolist() for item in items],
        [(~np.asarray(mask)).tolist() for mask in masks],
    )


def test_masked_is_what_brute_force_finds(tmp_path: Path) -> None:
    """Over alphabets in which spans overlap and repeat themselves; copies are dropped first."""
    chance = random.Random(2)
    texts = ["".join(chance.choices("ab "[: 1 + n % 3], k=1 + n * 3 % 37)) for n in range(40)]
    texts += [prose(n % 3, 2)[n : 90 + n * 5] for n in range(8)]
    texts += texts[25:30]
    chance.shuffle(texts)
    data = made(tmp_path, {"train/web": texts[:30], "train/wiki": texts[30:]})
    small = {"near": False, "unit_tokens": 150, "memory": 12_000}
    for span in (1, 3, 33):
        name = f"d{span}"
        report = find(data, name=name, sources=["wiki", "web"], repeats=span, **small)
        wiki, web = (loss(data, source, name) for source in ("wiki", "web"))
        assert len(wiki[0]) + len(web[0]) < len(texts)
        expected = before([*wiki[1], *web[1]], span)
        assert [*wiki[2], *web[2]] == expected
        for source, mine in (("wiki", wiki), ("web", web)):
            account = report.views[f"train/{source}"].account
            assert account.masked["repeated span"].tokens == sum(map(sum, mine[2]))
            assert account.kept.tokens == sum(map(len, mine[1]))
        find(data, name="cut", sources=["wiki", "web"], repeats=span, repeats_action="cut", **small)
        for source, mine in (("wiki", wiki), ("web", web)):
            numbers, tokens, masked = loss(data, source, "cut")
            assert [*zip(numbers, tokens, strict=True)] == list(left(*mine))
            assert not any(map(any, masked))


def left(
    numbers: list[int], tokens: list[list[int]], masked: list[list[bool]]
) -> Iterator[tuple[int, list[int]]]:
    """What is left of documents without the masked tokens: runs of two tokens at least."""
    for number, document, without in zip(numbers, tokens, masked, strict=True):
        runs = groupby(range(len(document)), key=without.__getitem__)
        for places in ([*each] for gone, each in runs if not gone):
            if len(places) > 1 or not any(without):
                yield number, [document[place] for place in places]


NOTICE = prose(70, 2)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A notice in documents of both sources."""
    web = [f"{prose(1, 3)} {NOTICE} {prose(2, 3)}", prose(3, 3)]
    wiki = [f"{prose(4, 3)}\n{NOTICE}\n{prose(5, 3)}", f"{prose(6, 3)}\t{NOTICE}"]
    return made(tmp_path, {"train/web": web, "train/wiki": wiki, "val/web": [NOTICE]})


def test_a_user_cuts_a_notice(dataset: Path) -> None:
    """It is in no row, all else is; the account, `inspect` says what was cut."""
    words = ("dedup", dataset, "--sources", "web,wiki", "--repeats", "50", "--output-name", "d1")
    said = command(*words, "--set", "repeats_action=cut")
    assert f"cut out {2 * len(NOTICE) + 1:,} tokens in 2 ranges: repeated span" in said
    opened = open_dataset(dataset)
    docs: Any = opened.source("train", "wiki", documents="d1")
    texts = [opened.decode(document["tokens"]) for document in docs[:]]
    assert texts == [prose(4, 3) + "\n", "\n" + prose(5, 3), prose(6, 3) + "\t"]
    first = len(prose(4, 3)) + 1
    said = run("inspect", dataset, "--document", "train/wiki:0", "--documents", "d1").stdout
    assert f"d1 cuts out tokens {first:,} to {first + len(NOTICE) - 1:,}: repeated" in said
    assert "d1 makes 2 documents of what is left" in said
    with pytest.raises(InputError, match=r"documents='d1': this view cuts ranges out of documents"):
        find(dataset, name="d2", documents="d1")
