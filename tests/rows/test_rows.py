"""Rows as a `grain.MapDataset`, their indices, and their order in a batch."""

import sys
from pathlib import Path

import grain
import numpy as np
import pytest

import jaxdata
import jaxdata.rows.megatron
from jaxdata.base.errors import InputError
from jaxdata.dataset.deleting import delete_documents
from jaxdata.rows.map_datasets import identity_of
from jaxdata.rows.table import row_number, rows_of_epochs
from jaxdata.testing import write_dataset
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


POOLS = {"chunk_bytes": 200, "block_bytes": 800}
WEB, CODE = (
    jaxdata.ArrayDocuments(documents(count, longest=90), name=name)
    for count, name in ((500, "web"), (200, "code"))
)


def test_evaluation_megatron_and_single_documents_are_never_sorted(tmp_path: Path) -> None:
    opened = write_dataset(tmp_path / "d", {"val/web": documents(200)})
    lanes = jaxdata.pack(WEB, seq_len=32, **POOLS, lanes=8)
    never = {
        "evaluation": jaxdata.evaluation_rows(opened, "val", seq_len=32),
        "megatron": jaxdata.rows.megatron.gpt(WEB, seq_len=32, seed=1),
        "single documents": jaxdata.pack(WEB, seq_len=32),
    }
    for name, rows in [*never.items(), ("lanes", lanes)]:
        in_order = jaxdata.Loader(rows, batch_size=24).batch_rows(1).tolist() == [*range(24, 48)]
        assert in_order == (name != "lanes"), name
    assert jaxdata.Loader(lanes, batch_size=8).batch_rows(0).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]


def test_a_mixture_says_its_epochs_and_what_grain_mixes_is_known_by_its_parts() -> None:
    one, other = (jaxdata.pack(docs, seq_len=32) for docs in (WEB, CODE))
    mixed = jaxdata.mix({"web": one, "code": other}, epochs={"code": 2})
    assert mixed.epochs() == {"web": 1, "code": 2}
    assert mixed.epochs(9) == pytest.approx(mixed.table.epochs(9))
    assert mixed.epochs(9)["web"] < 1
    facts = identity_of(grain.MapDataset.mix([one.map(dict), other.map(dict)]))
    assert {name: facts[name] for name in identity_of(one)} == identity_of(one)
    of_other = {f"1.{name}": value for name, value in identity_of(other).items()}
    assert {name: facts[name] for name in of_other} == of_other


def test_slots_of_documents_that_were_deleted_since_are_padding(tmp_path: Path) -> None:
    texts = [[7, 7, 10 * n, 10 * n + 1, 0] for n in range(1, 9)]
    write_dataset(tmp_path / "d", {"train/web": texts})
    delete_documents(tmp_path / "d", documents={"train/web": [2, 5]})
    before = jaxdata.open_dataset(tmp_path / "d").source("train", "web", generation=0)
    row = jaxdata.pack(before, seq_len=64)[0]
    kept = [text for number, text in enumerate(texts) if number not in (2, 5)]
    trained = sorted(token for text in kept for token in text[1:])
    assert sorted(row["targets"][row["loss_mask"]].tolist()) == trained
    assert (row["segment_ids"] > 0).sum() == len(trained)
