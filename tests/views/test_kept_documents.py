"""Documents of a view: the contract of documents, and the law of conservation over them."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.documents.base import page_ends
from jaxdata.errors import DatasetError, InputError
from jaxdata.testing import assert_exactly_once, distinct_documents, write_dataset
from jaxdata.views.source_view import content_of
from tests.views.made import (
    dropping,
    kept,
    kept_by_definition,
    listed_by_definition,
    masking,
    views,
    write,
)

LENGTHS = np.random.default_rng(0).integers(1, 60, 40)
DOCUMENTS = distinct_documents(LENGTHS)
MASKS = [np.random.default_rng(n).integers(0, 2, len(d)) for n, d in enumerate(DOCUMENTS)]


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[bool, Path]]:
    """The same documents without loss masks and with them, in several shards and records."""
    with tempfile.TemporaryDirectory() as folder:
        found = {masked: Path(folder, str(masked)) for masked in (False, True)}
        for masked, path in found.items():
            masks = {"train/web": MASKS} if masked else None
            sizes = {"record_tokens": 16, "shard_documents": 15}
            write_dataset(path, {"train/web": DOCUMENTS}, masks, **sizes)
        yield found


PACKING = [
    {"strategy": strategy, "seq_len": seq_len, **order}
    for strategy, seq_len in (("best_fit", 24), ("concat", 10), ("pad", 16))
    for order in (
        {"order": 1, "block": 7},
        {"order": 2},
        {"order": 2, "segment_bytes": 64, "pool_bytes": 256, "lanes": 8},
    )
]


@settings(deadline=None, max_examples=20)
@given(view=views(len(DOCUMENTS)), masked=st.booleans(), packing=st.sampled_from(PACKING))
@example(dropping(40, 2, masked=masking((1, 0, 3), (5, 0, 1))), False, PACKING[0])
@example(
    dropping(40, 2, masked=masking((1, 0, 30)), cut=masking((1, 0, 3), (1, 4, 9), (5, 0, 60))),
    False,
    PACKING[0],
)
@example(dropping(40, cut=masking((7, 1, 2))), False, PACKING[0])  # of one token: none
def test_a_view_is_what_it_lists_and_keeps_the_law(folders, view, masked, packing) -> None:
    write(folders[masked], view)
    docs = kept(folders[masked])
    listed = listed_by_definition(view, LENGTHS.tolist())
    assert docs.document.tolist() == [document for document, _, _ in listed]
    assert docs.lengths.tolist() == [stop - start for _, start, stop in listed]
    for number, (document, start, stop) in enumerate(listed):
        item = docs[number]
        assert item["tokens"].tolist() == DOCUMENTS[document][start:stop].tolist()
        loss = np.array(kept_by_definition(view.masked, document, len(DOCUMENTS[document])))
        if masked:
            loss &= MASKS[document] == 1
        if docs.masked:
            assert item["loss_mask"].tolist() == loss[start:stop].tolist()
        else:
            assert loss[start:stop].all()
    account = docs.view.entry.account
    tokens = sum(stop - start for _, start, stop in {*listed})
    assert account.kept.tokens == tokens
    lost = [*account.dropped.values(), *account.cut.values()]
    assert account.source.tokens == tokens + sum(each.tokens for each in lost)
    assert docs.view.misfit(docs.base.lengths) is None
    write(folders[masked], content_of(docs), "again")
    assert kept(folders[masked], "again").fingerprint == docs.fingerprint
    if listed:
        rows = jaxdata.pack(docs, **packing)
        trained = assert_exactly_once((rows[n] for n in range(len(rows))), [docs])
        if not masked:  # else masks are read to know it
            assert account.loss_tokens == trained
        origins = rows.table.origins(rows.table.segments(np.arange(len(rows))))
        for row, document, start in zip(origins.row, origins.document, origins.start, strict=True):
            assert DOCUMENTS[document][start] in rows[int(row)]["inputs"]


@settings(deadline=None, max_examples=12)
@given(view=views(len(DOCUMENTS)), ranges=st.data())
def test_ranges_of_masks_are_those_of_whole_documents(folders, view, ranges) -> None:
    write(folders[True], view)
    docs = kept(folders[True])
    if not len(docs):
        return
    asked = ranges.draw(st.lists(st.integers(0, len(docs) - 1), max_size=8))
    starts = [ranges.draw(st.integers(0, int(docs.lengths[n]) - 1)) for n in asked]
    counts = [
        ranges.draw(st.integers(0, int(docs.lengths[n]) - a))
        for n, a in zip(asked, starts, strict=True)
    ]
    found = docs.masks(*(np.array(each, np.int64) for each in (asked, starts, counts)))
    expected = [
        docs[n]["loss_mask"][a : a + c] for n, a, c in zip(asked, starts, counts, strict=True)
    ]
    joined = np.frombuffer(found.views.join(), np.uint8)
    assert joined.tolist() == np.concatenate([[], *expected]).tolist()


def test_pages_are_those_of_the_source(folders) -> None:
    """A document belongs to the page of the source in which it lies; empty pages are left out."""
    view = dropping(40, *range(5, 15), 39, copies=np.arange(40) % 3 + 1)
    write(folders[False], view)
    docs = kept(folders[False])
    ends = docs.base.page_ends(256)
    page = np.searchsorted(ends, docs.document, side="right")
    expected = np.flatnonzero(np.append(page[1:] != page[:-1], True)) + 1
    assert docs.page_ends(256).tolist() == expected.tolist()
    assert len(expected) < len(ends) < len(page_ends(docs, 1))


def test_a_view_goes_to_other_processes_and_says_what_it_is(folders) -> None:
    write(folders[True], dropping(40, 0, 7, masked=masking((3, 0, 5))))
    docs = kept(folders[True])
    again = pickle.loads(pickle.dumps(docs))
    assert repr(again) == "KeptDocuments('train/web', 38 documents, view 'd1' of 40)"
    assert len(pickle.dumps(docs)) < 20_000  # columns stay where they are
    for number in (0, 37):
        assert {k: v.tolist() for k, v in again[number].items()} == {
            k: v.tolist() for k, v in docs[number].items()
        }
    assert docs.origin(0) == docs.base.origin(1)
    assert docs.origin(-1) == docs.base.origin(39)
    assert docs.numbers_of(7) == []
    assert docs.numbers_of(8) == [6]


def test_the_fingerprint_is_of_the_content_alone(folders) -> None:
    one = write(folders[False], dropping(40, 3), "a").fingerprint
    assert write(folders[False], dropping(40, 3), "b").fingerprint == one
    other = dropping(40, 3, reason=np.array([1], np.uint8))
    assert write(folders[False], other, "a").fingerprint == one
    masked = dropping(40, 3, masked=masking((5, 0, 2)))
    different = {
        write(folders[False], view, "a").fingerprint
        for view in (dropping(40, 4), dropping(40), masked)
    }
    assert len(different | {one, kept(folders[False], "b").base.fingerprint}) == 5


def test_plans_of_views_with_the_same_lengths_are_their_own(tmp_path: Path) -> None:
    """Documents of one length: what is kept of one view must not be taken for another's."""
    write_dataset(tmp_path, {"train/web": distinct_documents([16] * 64)})
    order = {"seq_len": 32, "order": 2, "segment_bytes": 128, "pool_bytes": 256, "lanes": 4}
    write(tmp_path, dropping(64, *range(0, 32)), "late")
    write(tmp_path, dropping(64, *range(0, 64, 2)), "odd")
    late, odd = (jaxdata.pack(kept(tmp_path, name), **order) for name in ("late", "odd"))
    assert late.plan != odd.plan  # though the lengths are the same
    fresh = tmp_path / "fresh"
    write_dataset(fresh, {"train/web": distinct_documents([16] * 64)})
    write(fresh, dropping(64, *range(0, 64, 2)), "odd")
    alone = jaxdata.pack(kept(fresh, "odd"), **order)
    for number in range(len(alone)):
        assert alone[number]["inputs"].tolist() == odd[number]["inputs"].tolist()


def test_errors_name_the_view(folders) -> None:
    dataset = jaxdata.open_dataset(folders[False])
    write(folders[False], dropping(40, 3), "quality")
    with pytest.raises(InputError, match=r"no view 'qualty': it has .*did you mean 'quality'"):
        jaxdata.open_dataset(folders[False]).source("train", "web", documents="qualty")
    assert len(dataset.source("train", "web")) == 40  # opened before, and unchanged
    flat = folders[False] / "flat.bin"
    np.arange(1, 9, dtype=np.uint16).tofile(flat)
    foreign = jaxdata.open_dataset(f"nanogpt:{flat}", eod_id=4)
    with pytest.raises(InputError, match="not of a dataset that jaxdata converted"):
        foreign.source("train", "flat.bin", documents="d1")


def test_a_list_that_is_not_of_its_source_is_damage(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"train/web": DOCUMENTS})
    write(tmp_path, dropping(40, 3))
    docs = kept(tmp_path)
    store = docs.view.store
    for wrong in (docs.document + 1, docs.document[::-1].copy()):
        store.write_array(docs.view.file("document"), wrong)
        with pytest.raises(DatasetError, match="view 'd1' of train/web is damaged"):
            jaxdata.pack(kept(tmp_path), seq_len=16)
    store.write_array(docs.view.file("document"), docs.document + 100)
    with pytest.raises(DatasetError, match="lists documents that the source does not have"):
        kept(tmp_path)[0]
