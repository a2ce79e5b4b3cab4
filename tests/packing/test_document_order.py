"""Which documents are dealt together under order 2, and what is decided by size."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.documents.base import StatedLengths
from jaxdata.packing.document_order import SegmentOrder, resolved
from jaxdata.packing.planner import Planner
from jaxdata.packing.settings import PackSettings
from jaxdata.testing import (
    assert_exactly_once,
    assert_rows_conserve,
    distinct_documents,
    write_dataset,
)


def documents(lengths: list[int]) -> jaxdata.ArrayDocuments:
    return jaxdata.ArrayDocuments([np.zeros(n, np.uint16) for n in lengths])


def segments(docs: Any, **settings: Any) -> SegmentOrder:
    found = Planner(docs, PackSettings(8, order=2, **settings)).order
    assert isinstance(found, SegmentOrder)
    return found


def test_a_segment_is_what_begins_in_a_page() -> None:
    docs = documents([10, 20, 30, 100, 1, 5])  # bytes 0, 20, 60, 120, 320, 322
    assert segments(docs, segment_bytes=64).starts.tolist() == [0, 3, 4, 6]
    masked = jaxdata.ArrayDocuments(
        [np.zeros(n, np.uint16) for n in (10, 20, 30)], [np.ones(n, int) for n in (10, 20, 30)]
    )  # bytes 0, 30, 90
    assert segments(masked, segment_bytes=64).starts.tolist() == [0, 2, 3]


def test_pages_of_a_dataset_are_those_of_its_shards(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"train/a": distinct_documents([300] * 50)}, shard_documents=20)
    docs = jaxdata.open_dataset(tmp_path / "d").source("train", "a")
    starts = segments(docs, segment_bytes=4096).starts
    assert {0, 20, 40, 50} <= set(starts.tolist())  # no segment crosses a shard
    _, stream = docs.index.locate(np.arange(50))
    for first, stop in pairwise(starts):
        assert len(set((stream[first:stop] // 4096).tolist())) == 1


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=200),
    st.integers(1, 200),
    st.integers(1, 900),
    st.integers(0, 9),
)
def test_every_document_has_one_place(
    lengths: list[int], segment_bytes: int, pool_bytes: int, seed: int
) -> None:
    docs = documents(lengths)
    order = segments(docs, segment_bytes=segment_bytes, pool_bytes=pool_bytes, seed=seed)
    positions = np.arange(len(lengths))
    found = order.documents_at(positions)
    assert sorted(found.tolist()) == positions.tolist()
    assert [order.position(document) for document in found.tolist()] == positions.tolist()
    blocks = [order.documents_of(span).tolist() for span in order.spans()]
    assert [document for block in blocks for document in block] == found.tolist()
    of_document = np.searchsorted(order.starts, positions, side="right")
    for block in blocks:  # whole segments, so many to a block
        numbers = {int(of_document[document]) for document in block}
        assert len(numbers) <= max(pool_bytes // segment_bytes, 1)
        assert len(block) == sum(int((of_document == number).sum()) for number in numbers)


class Sized:
    """Documents of which only the size is known."""

    dtype = np.dtype(np.uint16)

    def __init__(self, tokens: int, masked: bool = False) -> None:
        self.stated_lengths, self.masked = StatedLengths(tokens, None), masked


@pytest.mark.parametrize(
    ("size", "segment_bytes", "lanes"),
    [
        (2**31 - 2, 0, 1),  # below 2 GiB: single documents
        (2**31, 2**20, 32),  # 256 pools of 8 MiB, at least 8 a lane
        (2**31 - 2 + 2**23 * 8 * 31, 2**20, 32),
        (2**32, 2**20, 64),
        (10**13, 2**20, 512),
    ],
)
def test_what_is_decided_by_size(size: int, segment_bytes: int, lanes: int) -> None:
    docs: Any = Sized(size // 2)
    found = resolved(docs, PackSettings(2048))
    assert (found.segment_bytes, found.lanes) == (segment_bytes, lanes)
    first = PackSettings(2048, order=1)
    assert resolved(docs, first) == first
    unshuffled = resolved(docs, PackSettings(2048, shuffle=False))
    assert (unshuffled.segment_bytes, unshuffled.lanes) == (0, 1)
    given_lanes = resolved(docs, PackSettings(2048, order=2, lanes=4))
    assert (given_lanes.segment_bytes, given_lanes.lanes) == (segment_bytes, 4)


def test_masks_take_a_byte_a_token() -> None:
    for tokens, lanes in ((2**31 // 3, 1), (2**31 // 3 + 1, 32)):
        docs: Any = Sized(tokens, masked=True)
        assert resolved(docs, PackSettings(2048)).lanes == lanes


def test_the_state_names_what_was_decided() -> None:
    facts = jaxdata.pack(documents([9] * 9), seq_len=8).table.identity()
    chosen = {"order": 2, "segment_bytes": 0, "pool_bytes": 2**23, "lanes": 1}
    assert {name: facts[name] for name in chosen} == chosen
    assert "block" not in facts
    old = jaxdata.pack(documents([9] * 9), seq_len=8, order=1).table.identity()
    assert not old.keys() & chosen.keys()


def test_pools_of_too_many_windows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [*[1, 2] * 200, *[40] * 100, 900, *[3] * 300]
    docs = jaxdata.ArrayDocuments(distinct_documents(lengths))
    pools = {"segment_bytes": 256, "pool_bytes": 1_024, "lanes": 8}
    whole = jaxdata.pack(docs, seq_len=16, **pools).table
    monkeypatch.setattr("jaxdata.packing.planner.MAX_WINDOWS", 60)
    rows = jaxdata.pack(docs, seq_len=16, **pools)
    table = rows.table
    assert table.blocks > whole.blocks
    for epoch in range(2):
        assert_rows_conserve(rows, epoch=epoch)
    found = table.segments(np.arange(len(table)))
    for document in (0, 410, 500, 700):
        expected = np.unique(found.row[found.document == document]).tolist()
        assert table.rows_with("documents", document) == expected
    mixed = jaxdata.mix({"a": rows}).amend(5, rows={"a": jaxdata.pack(docs, seq_len=24, **pools)})
    assert_exactly_once(jaxdata.Loader(mixed, batch_size=4), [docs])
