"""Documents of views of a few tokens, against going from token to token of what they list."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset import contract as datasets
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.dataset.documents import StatedLengths
from jaxdata.dataset.manifest import Generation, SourceEntry
from jaxdata.dataset.views import kept_documents as kept
from jaxdata.dataset.views.kept_documents import KeptDocuments, kept_documents
from jaxdata.rows.table import Segments
from tests.dataset.documents.test_contract_of_documents import by_range, columns
from tests.dataset.test_indexes import Ranges, view_of

TOKENS = [[10 * n + at for at in range(size)] for n, size in enumerate([5, 1, 6, 4, 2, 7])]
MASKS = [[(n + at) % 3 % 2 for at in range(len(each))] for n, each in enumerate(TOKENS)]
WEIGHTS = [[token / 2 for token in each] for each in TOKENS]


class Source(ArrayDocuments):
    pages = "pages"  # type: ignore[assignment]

    def origin(self, index: int) -> tuple[str, int]:
        return "file", index + 1

    def kept(self, index: int) -> dict[str, Any]:
        return {"number": index}

    def page_ranges(self, *asked: Any) -> Any:
        return [each.tolist() for each in asked]


def source_of(masked: bool = False) -> Source:
    return Source(TOKENS, MASKS if masked else None, "train/web", {"w": WEIGHTS})


@st.composite
def listed(draw: st.DrawFn, cut: bool) -> list[tuple[int, int, int]]:
    """What a view lists: a document, its first token in the source, and how many; in order."""
    found = []
    for number in sorted(draw(st.lists(st.integers(0, len(TOKENS) - 1), max_size=7))):
        size = len(TOKENS[number])
        start = draw(st.integers(0, size - 1)) if cut else 0
        found.append((number, start, draw(st.integers(1, size - start)) if cut else size))
    return found


@st.composite
def without_loss(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Ranges in order, apart; the last may reach beyond the end."""
    found = []
    for number in range(len(TOKENS)):
        edges = sorted(draw(st.sets(st.integers(0, 8), max_size=4)))
        found += [(number, *edges[n : n + 2], 0) for n in range(0, len(edges) - 1, 2)]
    return found


@given(st.booleans(), st.booleans(), st.data())
def test_any_ranges_of_a_view_are_those_of_its_source(
    masked: bool, cut: bool, data: st.DataObject
) -> None:
    given_list, ranges = data.draw(listed(cut)), data.draw(without_loss())
    more: dict[str, Any] = {"mask": Ranges(ranges)} if ranges else {}
    numbers, starts, sizes = ([each[k] for each in given_list] for k in range(3))
    view = view_of(6, starts if cut else None, document=numbers, length=sizes, **more)
    docs = KeptDocuments(source_of(masked), view)
    assert docs.masked is (masked or bool(ranges))
    hidden = {(n, at) for n, a, b, _ in ranges for at in range(a, b)}
    rows, tokens, masks, weights, placed = [], [], [], [], []
    for _ in range(data.draw(st.integers(0, 4)) if given_list else 0):
        at = data.draw(st.integers(0, len(given_list) - 1))
        number, begin, size = given_list[at]
        first = data.draw(st.integers(0, size))
        count = data.draw(st.integers(0, size - first))
        rows.append((at, first, count))
        own = range(begin + first, begin + first + count)
        placed.append((number, begin + first))
        tokens.append([TOKENS[number][k] for k in own])
        weights.append([WEIGHTS[number][k] for k in own])
        stored = MASKS if masked else [[1] * 9] * 6
        masks.append([0 if (number, k) in hidden else stored[number][k] for k in own])
    asked = columns(rows)
    assert by_range(docs.tokens(*asked), len(rows), "<u2") == tokens
    assert by_range(docs.side["w"].tokens(*asked), len(rows), "<f8") == weights
    if docs.masked:
        assert by_range(docs.masks(*asked), len(rows), "u1") == masks
    assert docs.base is docs.source
    found = docs.in_base(*asked[:2])
    assert [*zip(*(each.tolist() for each in found), strict=True)] == placed
    for at, first, _ in rows:
        source, number, token = kept.in_source(docs, at, first)
        assert (source, number, token) == (docs.base, given_list[at][0], given_list[at][1] + first)
    assert len(docs) == len(given_list)
    assert docs.lengths.tolist() == sizes
    assert docs.document.tolist() == numbers
    for number in range(6):
        assert docs.numbers_of(number) == [at for at, n in enumerate(numbers) if n == number]
    for at, number in enumerate(numbers):
        for index in (at, at - len(numbers)):
            assert docs.origin(index) == ("file", number + 1)
            assert docs.kept(index) == {"number": number}
    docs.check_lengths()
    source_pages = docs.base.page_ends(4).tolist()
    ends = [sum(number < end for number in numbers) for end in source_pages]
    assert docs.page_ends(4).tolist() == sorted({end for end in ends if end})
    assert docs.page_ends(4).dtype == np.int64


def test_a_view_of_another_source_is_damage() -> None:
    view = view_of(6, document=[0, 2], length=[5, 6])
    shorter = [[0] * len(each) for each in TOKENS]
    shorter[2] = shorter[2][:5]
    docs = KeptDocuments(
        ArrayDocuments(shorter, side={"w": [[0] * len(each) for each in shorter]}), view
    )
    first, both = (np.arange(n) for n in (1, 2))
    docs.tokens(first, first, first)
    said = (
        "memory:: view 'd1' of train/web is damaged: its lengths are not those of its documents; "
        "jaxdata verify memory: names what is damaged"
    )
    for ask in (docs.tokens, docs.side["w"].tokens, lambda *_: docs.check_lengths()):
        with pytest.raises(DatasetError) as refused:
            ask(both, both, both)
        assert str(refused.value) == said


def test_a_view_says_what_it_is_of() -> None:
    view = view_of(6, document=[0, 2], length=[5, 6])
    docs = KeptDocuments(source_of(), view)
    assert repr(docs) == "KeptDocuments('train/web', 2 documents, view 'd1' of 6)"
    assert (docs.name, docs.store, docs.fingerprint) == ("train/web", None, "v")
    assert docs.dtype == np.uint16
    assert docs.stated_lengths == StatedLengths(11, "v")
    assert docs.loss_tokens is None
    assert docs.pages == "pages"
    cut = KeptDocuments(docs.base, view_of(6, [1, 2], document=[0, 2], length=[2, 3]))
    asked = np.array([1, 0]), np.array([0, 1]), np.array([3, 1])
    assert cut.page_ranges(*asked) == [[2, 0], [2, 2], [3, 1]]
    assert docs.__reduce__() == (KeptDocuments, (docs.base, docs.view))
    assert kept.in_source(docs.base, 4) == (docs.base, 4, 0)


def test_a_run_is_identified_by_data_and_views() -> None:
    docs = KeptDocuments(source_of(), view_of(6, document=[0], length=[5]))
    plain = {"data": {"a": docs.base.fingerprint[:8]}}
    assert kept.identified({"a": docs.base}) == plain
    assert kept.identified({"a": docs.base, "b": docs}) == {
        "data": plain["data"] | {"b": "v"}, "views": {"b": "d1"},
    }  # fmt: skip


def test_segments_are_told_with_numbers_of_their_sources() -> None:
    view = KeptDocuments(source_of(), view_of(6, [2, 1], document=[0, 2], length=[3, 4]))
    segments = Segments(*(np.array(each) for each in (
        [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 1, 3], [1, 1, 0, 0], [1] * 4, [0] * 4)))  # fmt: skip
    assert kept.numbered_by_source([view.base, view.base], segments) is segments
    found = kept.numbered_by_source([view.base, view], segments)
    assert (found.document.tolist(), found.start.tolist()) == ([0, 1, 2, 3], [3, 1, 1, 0])
    assert (segments.document.tolist(), segments.start.tolist()) == ([0, 1, 1, 3], [1, 1, 0, 0])


def test_a_view_is_opened_of_the_generation_that_it_was_made_of() -> None:
    view = view_of(6, document=[0], length=[5]).entry
    facts: dict[str, Any] = {"parameters": {}, "statistics": {}, "tokens": 1_025, "checksums": {}}
    was = [
        Generation(documents=n, shards=0, inputs=0, fingerprint=f"g{n}", index=f"i{n}", **facts)
        for n in (1, 2)
    ]
    views = {
        name: view.model_copy(update={"generation": made})
        for name, made in {"d1": "g", "old": "g2", "gone": "x"}.items()
    }
    entry = SourceEntry(
        documents=1_006,
        shards=[],
        inputs=[],
        fingerprint="g",
        generations=was,
        views=views,
        **facts,
    )
    base: Any = SimpleNamespace(name="train/web", entry=entry, store=SimpleNamespace(url="u"))
    base.dtype, base.masked = np.dtype("u2"), False
    found = kept_documents(base, "d1")
    assert (found.source, found.view.entry, found.view.total) == (base, views["d1"], 1_006)
    assert (found.view.source, found.view.name, found.view.store) == ("train/web", "d1", base.store)

    def refused(error: type[Exception], name: str) -> str:
        with pytest.raises(error) as said:
            kept_documents(base, name)
        return str(said.value)

    other = (
        "u: view {!r} of train/web was made of another generation of it than this one of 1,006 "
        "documents: make it again"
    )
    assert refused(DatasetError, "gone") == other.format("gone")
    assert refused(DatasetError, "old") == other.format("old") + (
        ", or read the source as it was then: generation=1, in a config generations: {web: 1}"
    )
    assert refused(InputError, "gon") == (
        "train/web of u has no view 'gon': it has d1, old, gone; did you mean 'gone'? (jaxdata "
        "dedup makes views)"
    )
    base.entry = entry.model_copy(update={"views": {}})
    assert refused(InputError, "x") == (
        "train/web of u has no view 'x': it has none (jaxdata dedup makes views)"
    )
    base.entry = None
    assert refused(InputError, "x") == (
        "documents='x': train/web is not of a dataset that jaxdata converted, so it has no views"
    )


class Opened(datasets.Dataset):
    """Sources that are only names."""

    url = "u"
    names = ("train/a", "train/b", "val/b", "alone")
    eod_id = 0
    tokenizer = None  # type: ignore[assignment]

    def _open(self, name: str, generation: int | None) -> Any:
        return Named((name, generation))


class Named(tuple[Any, ...]):
    @property
    def base(self) -> Any:
        return self


def test_a_source_is_read_through_the_view_that_is_asked_for_else_through_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasets, "kept_documents", lambda found, view: (*found, view))
    plain = Opened()
    viewed: Any = plain.with_views({"train/a": "d1"})
    assert viewed.source("train", "a") == viewed["train/a"] == ("train/a", None, "d1")
    assert viewed.source("train", "a", documents="d2", generation=2) == ("train/a", 2, "d2")
    assert viewed.source("train", "b") == ("train/b", None)
    assert viewed.source("train", "b", documents="d2") == ("train/b", None, "d2")
    assert plain["train/a"] == ("train/a", None), "it stays as it was"
    assert viewed["alone"] == ("alone", None)
    assert plain.splits == {"alone": [""], "train": ["a", "b"], "val": ["b"]}
    assert [*plain] == ["alone", "train/a", "train/b", "val/b"]
    assert [name in plain for name in ("a", "val/b", "val/a", "c", "alone")] == [
        *(True, True, False, False, True)
    ]
    assert datasets.source_names(plain, "train") == ["a", "b"]
    with pytest.raises(InputError, match="no split 'test': the dataset has alone, train, val"):
        datasets.source_names(plain, "test")
    with pytest.raises(InputError, match="'b' names no split: give 'train/b' or 'val/b'"):
        plain["b"]
    with pytest.raises(InputError, match=r"no source 'train/c' in u: it has alone, train/a, .*did"):
        plain["train/c"]
    with pytest.raises(InputError, match="generation"):
        plain.source("train", "a", generation=0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["names", "eod_id", "tokenizer", "_open"])
def test_a_dataset_says_all_that_is_asked_of_one(missing: str) -> None:
    said = {name: vars(Opened)[name] for name in ("names", "eod_id", "tokenizer", "_open")}
    type("Whole", (datasets.Dataset,), dict(said))()
    del said[missing]
    with pytest.raises(TypeError, match=f"abstract .*{missing}"):
        type("Less", (datasets.Dataset,), said)()
