"""What people read of a search: sums, examples, passages that differ, and what may leak."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.dataset.opening import open_dataset
from jaxdata.dataset.views.kept_documents import Span
from jaxdata.dedup import DedupReport
from jaxdata.dedup.examples import Example, SpanExample, differing
from jaxdata.dedup.leaks import exact_leaks, leak_notes
from tests.commands import run
from tests.dedup.planted import find, made, prose


def test_a_report_says_what_there_is_to_say() -> None:
    plain = "clusters by number of documents: none; took 1,234.5 s"
    assert str(DedupReport("d", "d1", {}, {}, 1234.5)) == plain
    more: Any = {"compared": 1, "refused": 1_000, "hashed_before": ["train/a", "train/b"]}
    for read, said in (("to look", "only to look"), ("", "not at all")):
        found = DedupReport("d", "d1", {}, {"2": 1_000, "4-7": 1}, 0, **more, read=read)
        assert found.summary().split("\n") == [
            "clusters by number of documents: 1,000 of 2, 1 of 4-7; took 0.0 s",
            "compared 1 pair of documents by all their n-grams; 1,000 of them are less alike than "
            "the threshold",
            f"hashed when converted: train/a, train/b; text read {said}",
        ]


WORDS = st.lists(st.sampled_from("abcd"), max_size=20)


@given(WORDS, WORDS)
def test_passages_are_both_texts_in_turn(one: list[str], other: list[str]) -> None:
    with mock.patch("jaxdata.dedup.examples._CONTEXT", 30):
        found = [*differing(one, other)]
    assert all(kind in ("same", "other") for kind, _, _ in found)
    assert " ".join(first for _, first, _ in found if first).split() == one
    both = [first if kind == "same" else text for kind, first, text in found]
    assert " ".join(both).split() == other
    assert all(text == "" for kind, _, text in found if kind == "same")


def test_an_example_shows_words_of_either_side_and_how_often() -> None:
    words = [f"w{n}" for n in range(30)]
    passages = [*differing(words[:12], words[:12]), *differing(words[:13], words[:13])]
    passages += [("other", "c", ""), ("other", " ".join(words[:24]), " ".join(words[:25]))]
    shown = [f"    {' '.join(words[:12])}", f"    {' '.join([*words[:6], '…', *words[7:13]])}"]
    shown += ["  - c", f"  - {' '.join(words[:24])}", f"  + {' '.join(words[:24])} …"]
    for copies, more in ((1, ""), (1_001, ", as it does for 1,000 more")):
        example = Example(("train/web", 3), ("val/web", 0), "near copy", copies, passages)
        assert [*example.lines()] == [f"train/web:3 (near copy): val/web:0 stays{more}", *shown]
    span = Span(1_000, 2_000, "repeated span", None)
    for documents in ([4, 9], [1, 2, 3, 4, 5]):
        named = ", ".join(map(str, documents)) + ", …" * (len(documents) == 5)
        assert [*SpanExample("train/web", documents, span, "mask", 1_001, "its text").lines()] == [
            f"train/web:{documents[0]} (repeated span): view masks tokens 1,000 to 1,999",
            f"  1,001 times in train/web, in documents {named}",
            "  = its text",
        ]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Two sources with held-out texts, one of them in both; a near copy; one with its length."""
    held = [prose(seed) for seed in range(5)]
    web = [prose(20, 20), held[0], held[1], held[1], held[3] + " More."]
    wiki = [held[1], held[2].upper(), held[4]]
    return made(tmp_path, {"train/web": web, "train/wiki": wiki, "val/web": [*held, held[0]]})


def test_leaks_are_counted_and_warned_of(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dataset.parent)
    Path("run.yaml").write_text(json.dumps({"dataset": str(dataset), "pack": {"seq_len": 64}}))
    said = json.loads(run("preview", "--config", "run.yaml", "--leaks", "--json").stdout)
    (check,) = [each for each in said["checks"] if each["name"] == "leaks"]
    assert (check["ok"], check["mark"]) == (True, "leaks")
    first, *more = check["says"].split("\n")
    tokens = re.match(
        r"4 of 6 documents of val are also in train \(exact; ([\d,]+) tokens read; near", first
    )
    assert more == [
        "3 in train/web, 2 in train/wiki",
        "to leave them out: jaxdata dedup DATASET --against val --output-name d1, then "
        "documents: d1",
    ]
    find(dataset, sources=["web", "wiki"], against=["val"])
    said = run("preview", "--config", "run.yaml", "--leaks", "--documents", "d1").stdout
    assert "ok      leaks     0 of 6 documents of val are also in train (exact; " in said
    plain = run("preview", "--config", "run.yaml").stdout
    assert "are also in" not in plain, "nothing is read unless asked"
    assert "whether there are exact ones: jaxdata preview --leaks" in plain
    assert tokens
    count = int(tokens[1].replace(",", ""))
    opened, sides = open_dataset(dataset), (["train/web", "train/wiki"], ["val/web"])
    assert exact_leaks(opened, *sides, most=count)[0] == "leaks"
    word, (line,) = exact_leaks(opened, *sides, most=count - 1)
    assert word == "unknown"
    assert line.startswith(f"not looked for: that would read {count:,} tokens, and this check")


def test_what_may_leak_is_noted_unless_a_view_was_compared_with_it(dataset: Path) -> None:
    def notes(**views: str) -> list[str]:
        opened = open_dataset(dataset).with_views({f"train/{n}": v for n, v in views.items()})
        return leak_notes(opened, ["train/web", "train/wiki"], ["val/web"])

    (note,) = notes()
    assert note.startswith("train/web, train/wiki: never compared with val/web, so copies of it m")
    assert "jaxdata dedup DATASET --against val --output-name d1" in note
    find(dataset, against=["val"], sources=["web"])
    compared, never = notes(web="d1")
    assert compared == "train/web: copies of val/web are left out, by its view"
    assert never.startswith("train/wiki: never compared with val/web")
    jaxdata.select(dataset, "above", where="tokens > 3", documents="d1", sources=["web"])
    assert notes(web="above")[0] == compared
