"""Which documents are dealt together, and what is decided by size."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.rows.packing.dealing import ChunkOrder, resolved
from jaxdata.rows.packing.planner import Planner
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.testing import (
    assert_exactly_once,
    assert_rows_conserve,
    distinct_documents,
    write_dataset,
)


def documents(lengths: list[int]) -> jaxdata.ArrayDocuments:
    return jaxdata.ArrayDocuments([np.zeros(n, np.uint16) for n in lengths])


def chunks(docs: Any, **settings: Any) -> ChunkOrder:
    found = Planner(docs, PackSettings.checked(seq_len=8, **settings)).order
    assert isinstance(found, ChunkOrder)
    return found


def test_a_chunk_is_what_begins_in_a_page() -> None:
    docs = documents([10, 20, 30, 100, 1, 5])  # bytes 0, 20, 60, 120, 320, 322
    assert chunks(docs, chunk_bytes=64).starts.tolist() == [0, 3, 4, 6]
    masked = jaxdata.ArrayDocuments(
        [np.zeros(n, np.uint16) for n in (10, 20, 30)], [np.ones(n, int) for n in (10, 20, 30)]
    )  # bytes 0, 30, 90
    assert chunks(masked, chunk_bytes=64).starts.tolist() == [0, 2, 3]


def test_pages_of_a_dataset_are_those_of_its_shards(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"train/a": distinct_documents([300] * 50)}, shard_documents=20)
    docs = jaxdata.open_dataset(tmp_path / "d").source("train", "a")
    starts = chunks(docs, chunk_bytes=4096).starts
    assert {0, 20, 40, 50} <= set(starts.tolist())  # no chunk crosses a shard
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
    lengths: list[int], chunk_bytes: int, block_bytes: int, seed: int
) -> None:
    docs = documents(lengths)
    order = chunks(docs, chunk_bytes=chunk_bytes, block_bytes=block_bytes, seed=seed)
    positions = np.arange(len(lengths))
    found = order.documents_at(positions)
    assert sorted(found.tolist()) == positions.tolist()
    assert [order.position(document) for document in found.tolist()] == positions.tolist()
    blocks = [order.documents_of(span).tolist() for span in order.spans()]
    assert [document for block in blocks for document in block] == found.tolist()
    of_document = np.searchsorted(order.starts, positions, side="right")
    for block in blocks:  # whole chunks, so many to a block
        numbers = {int(of_document[document]) for document in block}
        assert len(numbers) <= max(block_bytes // chunk_bytes, 1)
        assert len(block) == sum(int((of_document == number).sum()) for number in numbers)


class Sized:
    """Documents of which only the size is known."""

    dtype = np.dtype(np.uint16)

    def __init__(self, tokens: int, masked: bool = False) -> None:
        self.total_tokens, self.masked = tokens, masked


@pytest.mark.parametrize(
    ("size", "chunk_bytes", "lanes"),
    [
        (2**31 - 2, 0, 1),  # below 2 GiB: single documents
        (2**31, 2**20, 32),  # 256 blocks of 8 MiB, at least 8 a lane
        (2**31 - 2 + 2**23 * 8 * 31, 2**20, 32),
        (2**32, 2**20, 64),
        (10**13, 2**20, 4096),
    ],
)
def test_what_is_decided_by_size(size: int, chunk_bytes: int, lanes: int) -> None:
    docs: Any = Sized(size // 2)
    found = resolved(docs, PackSettings.checked(seq_len=2048))
    assert (found.chunk_bytes, found.lanes) == (chunk_bytes, lanes)
    unshuffled = resolved(docs, PackSettings.checked(seq_len=2048, shuffle=False))
    assert (unshuffled.chunk_bytes, unshuffled.lanes) == (0, 1)
    given_lanes = resolved(docs, PackSettings.checked(seq_len=2048, lanes=4))
    assert (given_lanes.chunk_bytes, given_lanes.lanes) == (chunk_bytes, 4)


def test_a_block_of_single_documents_has_as_many_bytes_as_asked() -> None:
    docs = documents([10] * 100)  # of 20 bytes
    for size, count in ((None, 100), (1, 1), (59, 2), (60, 3), (10**9, 100)):
        order = Planner(docs, PackSettings.checked(seq_len=8, block_bytes=size)).order
        assert next(stop - first for first, stop in order.spans()) == count


def test_masks_take_a_byte_a_token() -> None:
    for tokens, lanes in ((2**31 // 3, 1), (2**31 // 3 + 1, 32)):
        docs: Any = Sized(tokens, masked=True)
        assert resolved(docs, PackSettings.checked(seq_len=2048)).lanes == lanes


def test_the_state_names_what_was_decided() -> None:
    facts = jaxdata.pack(documents([9] * 9), seq_len=8).table.identity()
    chosen = {"chunk_bytes": 0, "block_bytes": None, "lanes": 1}
    assert {name: facts[name] for name in chosen} == chosen


def test_blocks_of_too_many_windows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [*[1, 2] * 200, *[40] * 100, 900, *[3] * 300]
    docs = jaxdata.ArrayDocuments(distinct_documents(lengths))
    few = {"chunk_bytes": 256, "block_bytes": 1_024, "lanes": 8}
    whole = jaxdata.pack(docs, seq_len=16, **few).table
    monkeypatch.setattr("jaxdata.rows.packing.planner.MAX_WINDOWS", 60)
    rows = jaxdata.pack(docs, seq_len=16, **few)
    table = rows.table
    assert table.blocks > whole.blocks
    for epoch in range(2):
        assert_rows_conserve(rows, epoch=epoch)
    found = table.segments(np.arange(len(table)))
    for document in (0, 410, 500, 700):
        expected = np.unique(found.row[found.document == document]).tolist()
        assert table.rows_with("documents", document) == expected
    mixed = jaxdata.mix({"a": rows}).amend(5, rows={"a": jaxdata.pack(docs, seq_len=24, **few)})
    assert_exactly_once(jaxdata.Loader(mixed, batch_size=4), [docs])
