"""What people read of a search: sums, examples, passages that differ, and what may leak."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.opening import open_dataset
from jaxdata.dataset.views.kept_documents import KeptDocuments, Span
from jaxdata.dedup import DedupReport, examples
from jaxdata.dedup.examples import Example, SpanExample, brief, differing
from jaxdata.dedup.leaks import exact_leaks, leak_notes
from jaxdata.tokenizers import load
from tests.commands import run
from tests.dedup.planted import find, made, prose


def test_a_report_says_what_there_is_to_say() -> None:
    report = DedupReport("d", "d1", {}, {}, 1234.5)
    plain = "clusters by number of documents: none; took 1,234.5 s"
    assert report.summary() == str(report) == plain
    more: dict[str, Any] = {
        "compared": 1,
        "refused": 1_000,
        "hashed_before": ["train/a", "train/b"],
    }
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


def test_long_passages_are_shortened() -> None:
    words = [f"w{n}" for n in range(30)]
    for count in (12, 13, 30):
        (found,) = differing(words[:count], words[:count])
        shown = words[:count] if count == 12 else [*words[:6], "…", *words[count - 6 : count]]
        assert found == ("same", " ".join(shown), "")
    assert brief(" ".join(words[:24])) == " ".join(words[:24])
    assert brief(" ".join(words[:25])) == " ".join([*words[:24], "…"])


def test_an_example_shows_words_of_either_side_and_how_often() -> None:
    passages = [("same", "a b", ""), ("other", "c", ""), ("other", "", "d"), ("other", "e", "f")]
    shown = ["    a b", "  - c", "  + d", "  - e", "  + f"]
    for copies, more in (
        (1, ""),
        (2, ", as it does for 1 more"),
        (1_001, ", as it does for 1,000 more"),
    ):
        for pieces, lines in ((passages, shown), (None, [])):
            example = Example(("train/web", 3), ("val/web", 0), "near copy", copies, pieces)
            assert [*example.lines()] == [f"train/web:3 (near copy): val/web:0 stays{more}", *lines]
    for documents in ([4], [4, 9], [1, 2, 3, 4, 5]):
        span, times = Span(1_000, 2_000, "repeated span", None), 1_000 * len(documents) - 999
        first, *more, last = SpanExample(
            "train/web", documents, span, "mask", times, "its text"
        ).lines()
        assert (
            first == f"train/web:{documents[0]} (repeated span): view masks tokens 1,000 to 1,999"
        )
        assert last == "  = its text"
        named = ", ".join(map(str, documents)) + ", …" * (len(documents) == 5)
        assert more == [f"  {times:,} times in train/web, in documents {named}"] * (times > 1)


@given(
    st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 2), st.integers(0, 2)), max_size=12),
    st.integers(0, 3),
)
def test_examples_are_of_the_largest_clusters_of_each_reason(
    rows: list[tuple[int, int, int]], most: int
) -> None:
    source, survivor, reason = np.array(rows, np.int64).reshape(-1, 3).T
    known = {"survivor_source": source, "survivor": survivor, "reason": reason}
    dropped = np.arange(len(rows)) * 3
    docs: Any = SimpleNamespace(view=SimpleNamespace(read=known.get, dropped=dropped))
    sizes = [sum(row[:2] == other[:2] for other in rows) for row in rows]
    expected = []
    for number in range(3):
        mine = [at for at, row in enumerate(rows) if row[2] == number and row[0] >= 0]
        first = sorted(mine, key=lambda at: (-sizes[at], at))[:most]
        expected += [(3 * at, sizes[at]) for at in sorted(first)]
    with mock.patch.object(examples, "_copy", lambda _, __, *given: given):
        assert [*examples._copies(None, docs, most)] == expected  # type: ignore[arg-type]
        known["survivor"] = None  # type: ignore[assignment]
        assert [*examples._copies(None, docs, most)] == []  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [1, 4, 5])
def test_the_beginnings_of_two_documents_are_compared(step: int) -> None:
    docs: Any = SimpleNamespace(name="train/a", base=[{"tokens": range(9_000)}])
    fate = SimpleNamespace(survivor=("val/a", 0), reason="why")
    docs.view = SimpleNamespace(fate=lambda _: fate)
    others = {"val/a": [{"tokens": range(7, 9_000)}]}
    dataset = mock.MagicMock(decode=lambda tokens: " ".join(map(str, tokens[::step])))
    dataset.__contains__.side_effect, dataset.__getitem__.side_effect = (
        others.__contains__,
        others.get,
    )
    with mock.patch.object(examples, "differing", lambda one, other: [one, other]):
        found = examples._copy(dataset, docs, 0, 1).passages
        others.clear()
        assert examples._copy(dataset, docs, 0, 1).passages is None, "a benchmark's text"
    assert found == [
        [str(token) for token in range(first, first + 8_000, step)][:2_000] for first in (7, 0)
    ]


def test_spans_that_are_long_are_shown_in_part() -> None:
    """Of 400 tokens, ten to a word here or one; of documents five, the most frequent first."""
    spans = [(10, 410), (10, 411), (0, 60), (0, 61)]
    rows = [(0, 0, 5)] * 7 + [(0, 1, 5)] * 6 + [(0, 2, 5), (0, 3, 5), (-1, 0, 0)]
    which = [row[1] for row in rows]
    view = SimpleNamespace(
        firsts=lambda kind: np.array(rows) if kind == "mask" else None,
        read={"mask_reason": np.array([0] * 13 + [1, 2, 2])}.__getitem__,
        ranges=lambda _: (np.arange(len(rows)) // 2, None, None),
        span=lambda _, at: Span(*spans[which[at]], "why", None),
    )
    docs: Any = SimpleNamespace(
        name="train/web", view=view, base=SimpleNamespace(read=lambda _, a, b: range(a, b))
    )

    def shown(most: int, step: int) -> list[tuple[Any, ...]]:
        words: Any = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens[::step])))
        found = [
            each for kind in ("mask", "cut") for each in examples._spans(words, docs, kind, most)
        ]  # type: ignore[arg-type]
        return [(each.documents, each.times, each.text) for each in found]

    def text(numbers: range, more: str = "") -> str:
        return " ".join(map(str, numbers)) + more

    first = [0, 1, 2, 3], 7, text(range(10, 410, 10))
    second = [3, 4, 5, 6], 6, text(range(10, 410, 10), " …")
    third, fourth = ([6], 1, text(range(0, 60, 10))), ([7], 1, text(range(0, 61, 10)))
    assert shown(2, 10) == [first, second, third, fourth]
    assert shown(1, 10) == [first, third, fourth]
    cut = text(range(10, 70), " …"), text(range(60)), text(range(60), " …")
    assert tuple(each[2] for each in shown(1, 1)) == cut
    view.ranges = lambda _: (np.arange(len(rows)), None, None)
    assert shown(2, 10)[0][0] == [0, 1, 2, 3, 4], "five of seven documents"


def below(names: dict[str, dict[str, Any]], top: str) -> Any:
    """Documents of a view among others; parameters by name."""
    views = {name: SimpleNamespace(parameters=made) for name, made in names.items()}
    docs = mock.Mock(spec=KeptDocuments)
    docs.base = SimpleNamespace(entry=SimpleNamespace(views=views))
    docs.view = SimpleNamespace(name=top)
    return docs


def test_views_made_of_each_other_are_followed_once() -> None:
    """A view that was made again of one above it; one that was removed."""
    search = {"command": "dedup", "against": ["val/a"], "sides": {"val/a": ["1"], "val/b": ["2"]}}
    names = {"top": {"documents": "d1"}, "d1": search | {"documents": "d2"}}
    names |= {"d2": {"command": "select", "documents": "d1"} | {"against": ["x"], "sides": {}}}
    names |= {"lost": {"documents": "removed"}}
    held = {"val/a": SimpleNamespace(fingerprint="1"), "val/b": SimpleNamespace(fingerprint="2")}
    dataset: Any = held | {f"train/{name}": below(names, name) for name in names}
    dataset["train/plain"] = SimpleNamespace()
    for name in ("top", "d1", "d2"):
        (note,) = leak_notes(dataset, [f"train/{name}"], ["val/a"])
        assert note == f"train/{name}: copies of val/a are left out, by its view"
    notes = leak_notes(dataset, ["train/top", "train/lost", "train/plain"], ["val/b", "val/a"])
    assert [note.partition("; ")[0] for note in notes] == [
        f"{names}: never compared with {lacking}, so copies of it may be trained. To leave them "
        "out: jaxdata dedup DATASET --against val --output-name d1, then documents: d1"
        for names, lacking in (
            *(("train/lost, train/plain", "val/a, val/b"), ("train/top", "val/b")),
        )
    ]


HELD_OUT = [prose(seed) for seed in range(5)]


def test_leaks_are_counted_and_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sources with held-out texts, one of them in both; near copies do not count."""
    web = [prose(20, 20), HELD_OUT[0], HELD_OUT[1], HELD_OUT[1], HELD_OUT[3] + " More."]
    wiki = [HELD_OUT[1], HELD_OUT[2].upper(), HELD_OUT[4]]
    val = [*HELD_OUT, HELD_OUT[0]]
    data = made(tmp_path, {"train/web": web, "train/wiki": wiki, "val/web": val})
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(json.dumps({"dataset": str(data), "pack": {"seq_len": 64}}))
    said = json.loads(run("preview", "--config", "run.yaml", "--leaks", "--json").stdout)
    (check,) = [each for each in said["checks"] if each["name"] == "leaks"]
    # Copies of what is held out, and the upper-case text, which has the length of another.
    read = [*HELD_OUT, HELD_OUT[0], *HELD_OUT[:2], *HELD_OUT[1:3], HELD_OUT[1], HELD_OUT[4]]
    tokens = sum(len(text.encode()) + 1 for text in read)
    assert (check["ok"], check["mark"]) == (True, "leaks")
    assert check["says"].split("\n") == [
        f"4 of 6 documents of val are also in train (exact; {tokens:,} tokens read; near copies "
        "were not looked for)",
        "3 in train/web, 2 in train/wiki",
        "to leave them out: jaxdata dedup DATASET --against val --output-name d1, then "
        "documents: d1",
    ]
    find(data, sources=["web", "wiki"], against=["val"])
    said = run("preview", "--config", "run.yaml", "--leaks", "--documents", "d1").stdout
    assert "ok      leaks     0 of 6 documents of val are also in train (exact; " in said
    plain = run("preview", "--config", "run.yaml").stdout
    assert "are also in" not in plain, "nothing is read unless asked"
    assert "whether there are exact ones: jaxdata preview --leaks" in plain
    opened, sides = open_dataset(data), (["train/web", "train/wiki"], ["val/web"])
    assert exact_leaks(opened, *sides, most=tokens)[0] == "leaks"
    monkeypatch.setattr("jaxdata.dataset.converted.ConvertedDocuments.tokens", None)
    word, (line,) = exact_leaks(opened, *sides, most=tokens - 1)
    assert word == "unknown"
    assert line.startswith(f"not looked for: that would read {tokens:,} tokens, and this check")
    assert f"reads up to {tokens - 1:,}. To find and leave out exact and near copies: ja" in line


class InMemory(Dataset):
    """Lists of ids as sources."""

    tokenizer = load("bytes")
    eod_id = 0
    url = "memory"

    def __init__(self, sources: dict[str, list[list[int]]]) -> None:
        self._sources = sources

    @property
    def names(self) -> list[str]:
        return [*self._sources]

    def _open(self, name: str, generation: int | None) -> Documents:
        del generation
        return jaxdata.ArrayDocuments([[*one, 0] for one in self._sources[name]], name=name)


DOCUMENTS = st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=12)


@given(DOCUMENTS, DOCUMENTS, st.integers(1, 20))
def test_leaks_are_those_that_brute_force_counts(
    trained: list[list[int]], held_out: list[list[int]], at_once: int
) -> None:
    """However reads are cut; a document of a single token is none."""
    dataset = InMemory({"train/a": trained, "val/a": held_out})
    with mock.patch("jaxdata.dedup.leaks._AT_ONCE", at_once):
        word, lines = exact_leaks(dataset, ["train/a"], ["val/a"])
    leaked = sum(bool(one) and one in trained for one in held_out)
    assert lines[0].startswith(f"{leaked:,} of {len(held_out)} document")
    assert (word, len(lines)) == (("leaks", 3) if leaked else ("", 1))
