"""Rows as a `grain.MapDataset`, their indices, and their totals."""

from __future__ import annotations

import sys

import grain
import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.table import row_number, rows_of_epochs
from tests.builders import documents


def test_they_are_a_map_dataset() -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments(documents(200)), seq_len=32)
    assert isinstance(rows, grain.MapDataset)
    lengths = rows.map(lambda row: int(row["loss_mask"].sum()))
    assert sum(lengths[k] for k in range(len(lengths))) == rows.plan.trained_tokens
    twice, part, every = rows.repeat(2), rows[10:20], list(rows.to_iter_dataset())
    assert (len(twice), len(part), len(every)) == (2 * len(rows), 10, len(rows))
    for found, expected in (
        (rows.batch(4)[0]["inputs"][3], rows[3]),
        (rows[-1]["inputs"], rows[len(rows) - 1]),
        (part[3]["inputs"], rows[13]),
        (twice[len(rows)]["inputs"], rows[len(rows)]),
        (every[7]["inputs"], rows[7]),
    ):
        np.testing.assert_array_equal(found, expected["inputs"])
    inputs = rows.map(lambda row: row["inputs"])
    options = [grain.sharding.ShardOptions(shard_index=k, shard_count=2) for k in range(2)]
    hosts = [grain.experimental.ElasticIterator(inputs, 8, option) for option in options]
    first = [next(host) for host in hosts]  # grain's hosts take rows in turn
    assert all(np.array_equal(first[k % 2][k // 2], inputs[k]) for k in range(8))


def test_an_epoch_is_repeated_a_whole_number_of_times_and_indices_have_64_bits() -> None:
    assert [rows_of_epochs(5, times) for times in (1, 3, None)] == [5, 15, sys.maxsize]
    assert rows_of_epochs(0, None) == 0
    assert rows_of_epochs(sys.maxsize, 1) == sys.maxsize
    for times in (0, -1, 1.5, "2"):
        with pytest.raises(InputError, match="expected a whole number of epochs of at least 1, or"):
            rows_of_epochs(5, times)
    with pytest.raises(InputError, match=r"expected fewer than 2\^63 rows"):
        rows_of_epochs(2**62, 2)
    for index in (sys.maxsize, -sys.maxsize, 3, -1, -6):
        assert row_number(index, 5) == (index if index >= 0 else index % 5)
    with pytest.raises(IndexError, match="it does not fit in 64 bits"):
        row_number(sys.maxsize + 1, 5)


def test_nothing_packs_to_no_rows() -> None:
    for nothing in ([], [[0], [0]]):
        rows = jaxdata.pack(jaxdata.ArrayDocuments(nothing), seq_len=4)
        assert list(jaxdata.Loader(rows, batch_size=2)) == []
        assert len(rows) == len(rows.repeat()) == 0
