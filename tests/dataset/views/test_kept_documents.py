"""Documents of a view: the contract of documents, and the law of conservation over them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.dataset.views.source_view import content_of
from jaxdata.testing import assert_exactly_once, distinct_documents, write_dataset
from tests.dataset.views.made import (
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
    {"strategy": strategy, "seq_len": seq_len, **small}
    for strategy, seq_len in (("best_fit", 24), ("concat", 10), ("pad", 16))
    for small in ({}, {"chunk_bytes": 64, "block_bytes": 256, "lanes": 8})
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
    docs.check_lengths()
    write(folders[masked], content_of(docs), "again")
    assert kept(folders[masked], "again").fingerprint == docs.fingerprint
    if listed:
        rows = jaxdata.pack(docs, **packing)
        trained = assert_exactly_once((rows[n] for n in range(len(rows))), [docs])
        assert account.loss_tokens in (trained, None)  # masks are read to know it
        assert (account.loss_tokens is None) is docs.masked
        origins = rows.table.origins(rows.table.segments(np.arange(len(rows))))
        for row, document, start in zip(origins.row, origins.document, origins.start, strict=True):
            assert DOCUMENTS[document][start] in rows[int(row)]["inputs"]


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
    order = {"seq_len": 32, "chunk_bytes": 128, "block_bytes": 256, "lanes": 4}
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


def test_a_list_that_is_not_of_its_source_is_damage(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"train/web": DOCUMENTS})
    write(tmp_path, dropping(40, 3))
    docs = kept(tmp_path)
    docs.view.store.write_array(docs.view.file("document"), docs.document + 1)
    with pytest.raises(DatasetError, match="view 'd1' of train/web is damaged"):
        jaxdata.pack(kept(tmp_path), seq_len=16)
    docs.view.store.write_array(docs.view.file("document"), docs.document + 100)
    with pytest.raises(DatasetError, match="lists documents that the source does not have"):
        kept(tmp_path)[0]
