"""The blocks that some rows begin, and the rows of a block."""

from __future__ import annotations

import numpy as np
import pytest

import jaxdata
from jaxdata.testing import distinct_documents

DOCS = jaxdata.ArrayDocuments(
    distinct_documents(np.random.default_rng(2).integers(2, 60, 300).tolist()), name="train/a"
)


@pytest.mark.parametrize("lanes", [1, 4])
def test_the_rows_of_all_blocks_are_those_of_the_epoch(lanes: int) -> None:
    pack = {"order": 2, "segment_bytes": 512, "pool_bytes": 1_024, "lanes": lanes}
    table = jaxdata.pack(DOCS, seq_len=32, **pack).table
    assert table.blocks > 10
    documents = set()
    for epoch in (0, 2):
        found = [table.block_rows(epoch, visit) for visit in range(table.blocks)]
        every = np.sort(np.concatenate(found))
        assert every.tolist() == list(range(epoch * len(table), (epoch + 1) * len(table)))
        documents = {each for rows in found for each in table.segments(rows).document.tolist()}
        parts = [set(table.segments(rows).document.tolist()) for rows in found]
        assert sum(map(len, parts)) == len(documents) == 300  # no document is in two blocks


@pytest.mark.parametrize("lanes", [1, 4])
def test_the_blocks_that_rows_begin(lanes: int) -> None:
    pack = {"order": 2, "segment_bytes": 512, "pool_bytes": 1_024, "lanes": lanes}
    table = jaxdata.pack(DOCS, seq_len=32, **pack).table
    for rows in (0, 1, 5, len(table) - 1, len(table), len(table) + 7):
        begun = [
            [epoch, visit]
            for epoch in (0, 1)
            for visit in range(table.blocks)
            if (table.block_rows(epoch, visit) < rows).any()
        ]
        assert table.visits(rows).tolist() == begun
