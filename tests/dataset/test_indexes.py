"""Columns of indexes and views over small lists, against walking through files byte by byte."""

from __future__ import annotations

import hashlib
import json
import pickle
import zlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError
from jaxdata.dataset import index
from jaxdata.dataset import shards as page_checksums
from jaxdata.dataset.archive_members import Member, MemberTable
from jaxdata.dataset.index import SourceIndex, anchors, write_index
from jaxdata.dataset.manifest import (
    COLUMNS,
    Amount,
    ShardEntry,
    SideEntry,
    SourceEntry,
    ViewAccount,
    ViewEntry,
)
from jaxdata.dataset.records import RecordSpec
from jaxdata.dataset.views import columns as views
from jaxdata.dataset.views.columns import CONTENT, Fate, Span, ViewIndex, checksum
from tests.dataset.test_records import walk
from tests.storage.memory_store import MemoryStore


class Case(NamedTuple):
    lengths: list[int]
    shards: list[int]
    """documents of each"""
    spec: RecordSpec


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shards = draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    lengths = [draw(st.integers(1, 40)) for _ in range(sum(shards))]
    spec = RecordSpec("uint16", draw(st.booleans()), draw(st.sampled_from([1, 7, 100])))
    return Case(lengths, shards, spec)


def shard_entries(case: Case, name: str = "s") -> list[ShardEntry]:
    return [
        ShardEntry(
            name=f"{name}{n}", documents=documents, records=0, tokens=0, bytes=3 * n, sha256="f"
        )
        for n, documents in enumerate(case.shards)
    ]


def written(case: Case, keep: bool = False, side: bool = False, **given: Any) -> SourceIndex:
    """The index of a source, as it is read after it was written."""
    store, documents = MemoryStore(), len(case.lengths)
    arrays = {"w": ("int8", np.arange(9, dtype=np.uint32))} if side else {}
    checksums = write_index(
        store, "train", "web",
        lengths=np.array(case.lengths, np.int64),
        origin_file=np.arange(documents) % 3,
        origin_row=np.arange(documents) + 5,
        spec=case.spec,
        side_pages=arrays,
        **{"pages": np.zeros(0, np.uint32)} | given,
    )  # fmt: skip
    entry = SourceEntry(
        documents=documents, tokens=sum(case.lengths), shards=shard_entries(case), fingerprint="f",
        inputs=["a", "b", "c"], parameters={"keep": ["url"]} if keep else {}, statistics={},
        checksums=checksums, masked=case.spec.masked,
        side={"w": SideEntry(dtype="int8", shards=shard_entries(case, "w"))} if side else {},
    )  # fmt: skip
    return SourceIndex(store, "train/web", entry, case.spec)  # type: ignore[arg-type]


@given(cases(), st.data())
def test_a_document_is_located_by_walking_through_its_shard(
    case: Case, data: st.DataObject
) -> None:
    places, before = [], 0
    for number, documents in enumerate(case.shards):
        of = case.lengths[before : before + documents]
        first = {each.document: each.chunk for each in reversed([*walk(of, case.spec)])}
        places += [(number, first[n]) for n in range(documents)]
        before += documents
    found = written(case)
    for _ in range(3):  # what is known of shards grows
        last = len(places) - 1
        asked = data.draw(st.lists(st.integers(0, last), max_size=4)) if places else []
        shards, streams = found.locate(np.array(asked, np.int64))
        assert [*zip(shards.tolist(), streams.tolist(), strict=True)] == [places[n] for n in asked]
    edges = np.cumsum([0, *case.shards]).tolist()
    assert found.shard_starts.tolist() == edges[:-1]
    assert found.lengths.tolist() == case.lengths
    assert found.origin_row.tolist() == [n + 5 for n in range(len(places))]
    assert found.origin_file.tolist() == [n % 3 for n in range(len(places))]
    for n in range(len(places)):
        assert found.origin(n) == ("abc"[n % 3], n + 5)


@given(cases())
def test_anchors_are_the_bytes_before_every_eighth_document(case: Case) -> None:
    found = [*walk(case.lengths, case.spec)]
    first = {each.document: each.chunk - 40 for each in reversed(found)}
    expected = [first[n] for n in range(0, len(case.lengths), 8)]
    with pytest.MonkeyPatch.context() as patch:
        for documents in (8, 16, 2**20):  # at a time
            patch.setattr(index, "_CHUNK_DOCUMENTS", documents)
            made = anchors(np.array(case.lengths, np.uint32), case.spec)
            assert (made.tolist(), made.dtype) == (expected, np.uint64)


MORE = {"exact_hash": np.arange(6, dtype=np.uint64), "band_hash": np.arange(42, dtype=np.uint64)}
CASE = Case([4, 5, 6], [2, 1], RecordSpec("uint16", True, 4))


def test_what_is_written_is_read_by_its_name_type_and_size() -> None:
    lines = [{"url": "a" * n} for n in (3, 40, 0)]
    kept = np.frombuffer(b"".join(json.dumps(line).encode() + b"\n" for line in lines), np.uint8)
    table = MemberTable()
    table.add(0, 5, Member("x", "row", 0))
    members, pages = table.columns(), np.array([7, 8], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_CHUNK", 7)
        found = written(CASE, True, True, kept=kept, pages=pages, more=MORE | members, folder="i")
    names = {*found.checksums}
    assert names == {*MORE, *members} | {
        "length", "anchor", "origin_file", "origin_row", "kept", "kept_end", "page", "w.anchor",
        "w.page",
    }  # fmt: skip
    store: Any = found.store
    assert {*store.arrays} == {f"train/web/i/{name}" for name in names}
    for name, said in found.checksums.items():
        array = store.arrays[f"train/web/i/{name}"]
        assert said == hashlib.sha256(array.tobytes()).hexdigest()
        kind, size = found.columns[name]
        assert array.dtype == kind
        unsaid = {"kept", *members}
        assert size == (None if name in unsaid else len(array)) or name in ("page", "w.page")
    ends = np.cumsum([len(json.dumps(line)) + 1 for line in lines])
    assert store.arrays["train/web/i/kept_end"].tolist() == ends.tolist()
    assert found.columns.keys() == names
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_checksums, "PAGE_BYTES", 2)
        assert page_checksums.page_count(found.entry.shards) == 2  # 0 and 3 bytes
        assert found.columns["page"] == found.columns["w.page"] == (np.uint32, 2)
    assert found.file("length") == "train/web/index/length"
    store.arrays = {name.replace("/i/", "/index/"): each for name, each in store.arrays.items()}
    assert [found.kept(n) for n in range(3)] == lines
    assert [found.kept_between(a, b) for a, b in ((0, 3), (1, 2), (2, 2))] == [
        lines, lines[1:2], [],
    ]  # fmt: skip
    assert found.member(0) == Member("x", "row", 0)
    assert found.hashed == ["exact_hash", "band_hash"]
    assert found.hashes("exact_hash").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert found.hashes("band_hash")[1].tolist() == [*range(14, 28)]
    side = found.sides["w"]
    assert (side.lengths is found.lengths, side.spec) == (True, RecordSpec("int8", False, 4))
    assert side.file("anchor") == "train/web/index/w.anchor"
    assert side.file("page") == "train/web/index/w.page"
    assert side.file("origin_row") == "train/web/index/origin_row"
    firsts = {each.document: each.chunk for each in reversed([*walk([4, 5], side.spec)])}
    assert side.locate(np.array([1]))[1].tolist() == [firsts[1]]
    store.arrays["train/web/index/kept"] = np.frombuffer(b"[1]\n" * 3, np.uint8)
    store.arrays["train/web/index/kept_end"] = np.array([4, 8, 12], np.uint64)
    again = SourceIndex(store, found.name, found.entry, found.spec)
    for asked, number in ((lambda: again.kept(1), 1), (lambda: again.kept_between(2, 3), 2)):
        with pytest.raises(DatasetError) as damaged:
            asked()
        assert str(damaged.value) == (
            f"memory:: the index of train/web is damaged at document {number} (ValueError('a line "
            "that is no object')); jaxdata verify names the file and the remedy"
        )


def test_a_plain_index_has_five_columns_and_says_nothing_of_the_rest() -> None:
    found = written(CASE)
    assert found.columns == {
        "length": (np.uint32, 3), "anchor": (np.uint64, 1), "origin_file": (np.uint32, 3),
        "origin_row": (np.uint64, 3), "page": (np.uint32, 1),
    }  # fmt: skip
    assert {*found.checksums} == {*found.columns} == {*COLUMNS}
    assert (found.kept(0), found.kept_between(1, 3), found.member(0)) == ({}, [{}, {}], None)
    assert (found.member_columns, found.hashed, found.sides) == ({}, [], {})


@pytest.mark.parametrize("name", ["length", "anchor", "tokens"])
def test_lengths_are_compared_with_what_was_written(name: str) -> None:
    found = written(CASE)
    known = dict(found.entry.checksums)
    if name in known:
        changed: dict[str, Any] = {"checksums": known | {name: "f" * 64}}
    else:
        changed = {"tokens": 14}
    other = SourceIndex(found.store, found.name, found.entry.model_copy(update=changed), found.spec)
    found.check_lengths()
    with pytest.raises(DatasetError) as refused:
        other.check_lengths()
    assert str(refused.value) == (
        "memory:: the index of train/web is not what was written: jaxdata verify memory: names "
        "what is damaged"
    )


def test_damaged_places_are_named() -> None:
    found = written(CASE)
    many = written(Case([1] * 24, [8, 16], CASE.spec))
    many.anchors.setflags(write=True)
    many.anchors[1:] = [900, 200]
    message = r"the index of train/web is damaged at document 16 \(ValueError\('its anchors fall'"
    with pytest.raises(DatasetError, match=message):
        many.locate(np.array([9, 16]))
    many.anchors[1:] = [900, 900]
    assert many.locate(np.array([8, 16]))[1].tolist() == [40, 40]
    with pytest.raises(DatasetError, match="is damaged at document 2 "):
        SourceIndex(
            found.store, found.name, found.entry.model_copy(update={"inputs": ["a"] * 2}), CASE.spec
        ).origin(2)


@given(st.binary(max_size=30), st.integers(1, 9))
def test_each_page_has_a_checksum(data: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_checksums, "PAGE_BYTES", size)
        found = page_checksums.page_checksums(np.frombuffer(data, np.uint8))
        shard = ShardEntry(name="a", documents=0, records=0, tokens=0, bytes=len(data), sha256="")
        assert page_checksums.page_count([shard, shard]) == 2 * len(found)
    pages, left = [], data
    while left:
        pages.append(zlib.crc32(left[:size]))
        left = left[size:]
    assert (found.tolist(), found.dtype) == (pages, np.uint32)


class Ranges(NamedTuple):
    """Ranges of a kind: of which document, from and to which token, why, and where they stay."""

    rows: list[tuple[int, int, int, int]]
    firsts: list[tuple[int, int, int]] | None = None


def view_of(total: int, starts: list[int] | None = None, **columns: Any) -> ViewIndex:
    """A view of so many documents with these columns, ranges among them."""
    store: Any = MemoryStore()
    number = np.uint32
    kinds = {"document": number, "length": np.uint32, "dropped": number, "reason": np.uint8}
    kinds |= {"survivor_source": np.int32, "survivor": np.int64, "start": np.uint32}
    given = {"document": [], "length": [], "dropped": [], "reason": []} | columns
    if starts is not None:
        given["start"] = starts
    for kind in ("mask", "cut"):
        if (ranges := given.pop(kind, None)) is not None:
            names = [f"{kind}_{each}" for each in ("document", "start", "stop", "reason")]
            given |= dict(zip(names, map(list, zip(*ranges.rows, strict=True)), strict=True))
            kinds |= dict(zip(names, [number, np.uint32, np.uint32, np.uint8], strict=True))
            if ranges.firsts is not None:
                given[f"{kind}_first"] = [each for first in ranges.firsts for each in first]
                kinds[f"{kind}_first"] = np.int64
    arrays = {name: np.array(values, kinds[name]) for name, values in given.items()}
    store.arrays = {f"train/web/views/d1/f/{name}": array for name, array in arrays.items()}
    one = Amount(documents=1, tokens=2)
    entry = ViewEntry(
        generation="g", documents=len(given["document"]), tokens=sum(given["length"]),
        fingerprint="v", folder="f", reasons=["near", "where"], survivors=["train/a", "b.jsonl"],
        checksums={name: checksum(array) for name, array in arrays.items()}, parameters={},
        account=ViewAccount(source=one, kept=one, listed=one, dropped={}),
    )  # fmt: skip
    return ViewIndex(store, "train/web", "d1", entry, total)


def test_a_view_says_why_and_where_instead() -> None:
    firsts = [(-1, 0, 0), (1, 2, -1), (0, 3, 4)]
    view = view_of(
        9, document=[1, 4], length=[3, 3], dropped=[0, 2, 8], reason=[1, 0, 1],
        survivor_source=[-1, 1, 0], survivor=[-1, 7, 0],
        mask=Ranges([(1, 0, 2, 0), (4, 1, 3, 1), (4, 5, 6, 0)], firsts),
        cut=Ranges([(4, 7, 9, 1)]),
    )  # fmt: skip
    fates = {number: view.fate(number) for number in range(10)}
    assert {number: fate for number, fate in fates.items() if fate} == {
        0: Fate("where", None), 2: Fate("near", ("b.jsonl", 7)), 8: Fate("where", ("train/a", 0)),
    }  # fmt: skip
    spans = {
        1: [Span(0, 2, "near", None)],
        4: [Span(1, 3, "where", ("b.jsonl", 2, -1)), Span(5, 6, "near", ("train/a", 3, 4))],
    }
    assert [view.ranges_of(number) for number in range(9)] == [spans.get(n, []) for n in range(9)]
    assert view.ranges_of(4, "cut") == [Span(7, 9, "where", None)]
    assert [column.tolist() for column in view.masked] == [[1, 4, 4], [0, 1, 5], [2, 3, 6]]
    assert (view.masks, view.cuts) == (True, False)
    assert (view.documents.tolist(), view.lengths.tolist()) == ([1, 4], [3, 3])
    assert view.columns == {
        "document": (np.uint32, 2), "length": (np.uint32, 2), "dropped": (np.uint32, None),
        "reason": (np.uint8, None), "survivor_source": (np.int32, None),
        "survivor": (np.int64, None), "mask_document": (np.uint32, None),
        "mask_reason": (np.uint8, None), "mask_start": (np.uint32, None),
        "mask_stop": (np.uint32, None), "mask_first": (np.int64, None),
        "cut_document": (np.uint32, None), "cut_reason": (np.uint8, None),
        "cut_start": (np.uint32, None), "cut_stop": (np.uint32, None),
    }  # fmt: skip
    again = pickle.loads(pickle.dumps(view))
    assert (again.source, again.name, again.entry, again.total) == (
        "train/web", "d1", view.entry, 9,
    )  # fmt: skip
    plain = view_of(9, dropped=[3], reason=[0])
    assert (plain.fate(3), plain.ranges_of(1), plain.masks) == (Fate("near", None), [], False)
    assert plain.read("survivor") is None
    assert {*plain.columns} == {"document", "length", "dropped", "reason"}


@pytest.mark.parametrize("column", [*CONTENT, "start"])
def test_a_view_names_the_column_that_is_not_what_was_written(column: str) -> None:
    masked = Ranges([(1, 0, 2, 0), (4, 1, 3, 1)])
    view = view_of(9, [0, 1], document=[1, 4], length=[3, 3], mask=masked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "_AT_ONCE", 1)
        assert view.changed() is None
        view.store.arrays[view.file(column)][-1] += 1  # type: ignore[attr-defined]
        again = pickle.loads(pickle.dumps(view))
        assert again.changed() == f"its column {column} is not what was written"


DAMAGED = (
    "memory:: view 'd1' of train/web is damaged: {}; jaxdata verify memory: names what is damaged"
)


@pytest.mark.parametrize(
    ("columns", "ask", "what"),
    [
        ({"dropped": [1], "reason": [2]}, lambda v: v.fate(1), "its column reason names no reason"),
        ({"dropped": [1], "reason": []}, lambda v: v.fate(1), "its column reason names no reason"),
        (
            {"dropped": [1], "reason": [1], "survivor_source": [2], "survivor": [0]},
            lambda v: v.fate(1), "its column survivor_source names no source",
        ),
        (
            {"dropped": [1], "reason": [1], "survivor_source": [0], "survivor": []},
            lambda v: v.fate(1), "its column survivor_source names no source",
        ),
        (
            {"dropped": [1], "reason": [1], "survivor_source": [], "survivor": [0]},
            lambda v: v.fate(1), "its column survivor_source names no source",
        ),
        (
            {"mask": Ranges([(1, 0, 1, 2)])},
            lambda v: v.ranges_of(1), "its column mask_reason names no reason",
        ),
        (
            {"cut": Ranges([(1, 0, 1, 1)], [(2, 0, 0)])},
            lambda v: v.ranges_of(1, "cut"), "its column cut_first names no source",
        ),
        (
            {"mask": Ranges([(1, 0, 1, 1)], [(0, 0, 0)] * 2)},
            lambda v: v.ranges_of(1), "its ranges are not complete",
        ),
        (
            {"document": [1, 9], "length": [1, 1]},
            lambda v: v.in_source(np.array([1])),
            "it lists documents that the source does not have",
        ),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_are_damage(columns: Any, ask: Any, what: str) -> None:
    with pytest.raises(DatasetError) as refused:
        ask(view_of(9, **columns))
    assert str(refused.value) == DAMAGED.format(what)


@pytest.mark.parametrize("short", ["document", "start", "stop"])
def test_ranges_have_all_their_columns(short: str) -> None:
    view = view_of(9, mask=Ranges([(1, 0, 1, 0), (2, 0, 1, 0)]))
    name = f"train/web/views/d1/f/mask_{short}"
    store: Any = view.store
    store.arrays[name] = store.arrays[name][:1]
    with pytest.raises(DatasetError) as refused:
        _ = view.masked
    assert str(refused.value) == DAMAGED.format("its ranges are not complete")


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 4)), max_size=7),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, -1]),
)
def test_a_list_fits_where_each_document_does(
    listed: list[tuple[int, int, int]], in_order: bool, cuts: bool, wrong: int
) -> None:
    lengths = [3, 4, 5, 4, 3]  # a document of number 5 is none of them
    listed = sorted(listed) if in_order else listed
    if not cuts:
        listed = [(n, 0, lengths[n] if size > 1 and n < 5 else size) for n, _, size in listed]
    documents, starts, sizes = ([each[k] for each in listed] for k in range(3))
    view = view_of(5, starts if cuts else None, document=documents, length=sizes)
    entry = view.entry.model_copy(update={"tokens": max(sum(sizes) + wrong, 0)})
    view = ViewIndex(view.store, view.source, view.name, entry, view.total)
    sound = [
        n < 5 and (a + size <= lengths[n] if cuts else size == lengths[n]) for n, a, size in listed
    ]
    expected = None
    if sum(sizes) != entry.tokens:
        expected = "its lengths do not add up to its tokens"
    if not all(sound) or documents != sorted(documents):
        expected = "something before"
    with pytest.MonkeyPatch.context() as patch:
        for at_once in (2, 3, 100):
            patch.setattr(views, "_AT_ONCE", at_once)
            found = view.misfit(np.array(lengths, np.uint32))
            if expected == "something before":
                assert found in (
                    "its documents are not in ascending order"
                    if documents != sorted(documents)
                    else 0,
                    "its lengths are not those of its documents" if not all(sound) else 0,
                )
            else:
                assert found == expected
    if not all(n < 5 for n in documents):
        return
    numbers = np.arange(len(listed))
    own = np.array([lengths[n] for n in documents], np.uint32)
    assert view.fits(numbers, own) is all(sound)
    assert view.in_source(numbers).tolist() == documents
    placed = [each.tolist() for each in view.placed(numbers, numbers + 1)]
    assert placed == [documents, [n + 1 + (starts[n] if cuts else 0) for n in range(len(listed))]]


def test_a_view_is_named_by_the_content_of_what_it_reads() -> None:
    sums = {name: name for name in views.CONTENT}
    one = views.view_fingerprint("g", sums)
    assert views.view_fingerprint("g", sums | {"reason": "r", "dropped": "d"}) == one
    others = [views.view_fingerprint("g", sums | {name: "x"}) for name in (*views.CONTENT, "start")]
    assert len({one, views.view_fingerprint("h", sums), *others}) == 8
    content = json.dumps(["g", dict(sorted(sums.items()))], sort_keys=True).encode()
    assert one == hashlib.sha256(content).hexdigest()
    assert views.view_folder("train/a", "d") == "train/a/views/d"
    assert [views.number_type(n) for n in (2**32 - 1, 2**32)] == [np.uint32, np.uint64]
    little, big = (np.arange(300, dtype=kind)[::3] for kind in ("<u4", ">u4"))
    assert {views.checksum(each) for each in (little, big)} == {
        hashlib.sha256(little.tobytes()).hexdigest()
    }


def test_views_of_a_dataset_have_the_documents_of_their_generations() -> None:
    found = written(CASE)
    view = view_of(3).entry
    before = found.entry.as_generation().model_copy(
        update={"fingerprint": "was", "documents": 2, "index": "old"}
    )
    of = {"now": "f", "was": "was", "gone": "x"}
    kept = {name: view.model_copy(update={"generation": made}) for name, made in of.items()}
    entry = found.entry.model_copy(update={"generations": [before], "views": kept})
    manifest: Any = SimpleNamespace(sources={"train/web": entry})
    told = [(each.name, each.source, each.total) for each in views.views_of(found.store, manifest)]
    assert told == [("now", "train/web", 3), ("was", "train/web", 2), ("gone", "train/web", 3)]
