"""Rows as a `grain.MapDataset`, their indices and order in a batch; and pairs as such rows."""

import sys
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, strategies as st

import jaxdata
import jaxdata.rows.megatron
from jaxdata.base.errors import DatasetError, InputError
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
    assert (rows_of_epochs(0, None), rows_of_epochs(sys.maxsize, 1)) == (0, sys.maxsize)
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


WEB = jaxdata.ArrayDocuments(documents(500, longest=90), name="web")
CODE = jaxdata.ArrayDocuments(documents(200, longest=90), name="code")


def test_evaluation_megatron_and_single_documents_are_never_sorted(tmp_path: Path) -> None:
    opened = write_dataset(tmp_path / "d", {"val/web": documents(200)})
    lanes = jaxdata.pack(WEB, seq_len=32, chunk_bytes=200, block_bytes=800, lanes=8)
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


SHAPES = [(1 + i % 5, 1 + (i * 7) % 9, 1 + (i * 3) % 6) for i in range(23)]


def side(answers: int, offset: int) -> jaxdata.ArrayDocuments:
    """Prompt tokens 100 i + k, answers of another hundred thousand, EOD."""
    tokens, masks = [], []
    for number, shape in enumerate(SHAPES):
        prompt = [100 * number + k + 1 for k in range(shape[0])]
        answer = [offset + 100 * number + k + 1 for k in range(shape[answers])] + [0]
        tokens.append(prompt + answer)
        masks.append([0] * len(prompt) + [1] * len(answer))
    return jaxdata.ArrayDocuments(tokens, masks=masks, name=f"train/x/{offset}")


CHOSEN, REJECTED = side(1, 10_000), side(2, 20_000)


def documents_of(rows: Any) -> list[int]:
    """Which document each row is, checked to be the same on both sides."""
    firsts = [(row["chosen_inputs"][0], row["rejected_inputs"][0]) for row in rows]
    assert all(chosen == rejected for chosen, rejected in firsts)
    return [int(chosen - 1) // 100 for chosen, _ in firsts]


def test_every_epoch_has_every_pair_in_its_own_order() -> None:
    plain = jaxdata.pairs(CHOSEN, REJECTED, seq_len=16, shuffle=False)
    assert documents_of(plain) == [*range(23)], "that of the dataset, where they are not shuffled"
    rows = jaxdata.pairs(CHOSEN, REJECTED, seq_len=16, seed=3)
    orders = [documents_of(rows.repeat(3)[n * 23 : (n + 1) * 23]) for n in range(3)]
    assert all(sorted(order) == list(range(23)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert documents_of(jaxdata.pairs(CHOSEN, REJECTED, seq_len=16, seed=3)) == orders[0]
    assert documents_of(rows.repeat(2, reseed_each_epoch=False)[23:46]) == orders[0]
    assert documents_of(jaxdata.pairs(CHOSEN, REJECTED, seq_len=16, seed=4)) != orders[0]
    np.testing.assert_equal(rows[25], rows.repeat(3)[25])


SIZE = st.integers(1, 40)


@given(SIZE, st.tuples(SIZE, SIZE), st.integers(1, 50), st.data())
def test_what_is_kept_is_the_end_of_the_prompt_and_the_begin_of_the_answers(
    prompt: int, answers: tuple[int, int], seq_len: int, data: st.DataObject
) -> None:
    max_prompt = data.draw(st.integers(1, seq_len))
    kept, longest = prompt, max(answers)
    if prompt + longest > seq_len + 1:
        kept = min(prompt, max_prompt)
    if kept + longest > seq_len + 1:
        longest = seq_len + 1 - max_prompt
    prompts = [*range(1, prompt + 1)]
    ids = [[1000 * (k + 1) + n for n in range(length)] for k, length in enumerate(answers)]
    sides = [([prompts + one], [[0] * prompt + [1] * len(one)]) for one in ids]
    docs = [jaxdata.ArrayDocuments(tokens, masks) for tokens, masks in sides]
    row = jaxdata.pairs(*docs, seq_len=seq_len, max_prompt=max_prompt)[0]
    for name, answer in zip(("chosen", "rejected"), ids, strict=True):
        expected = prompts[-kept:] + answer[:longest]
        rest = [0] * (seq_len + 1 - len(expected))
        assert row[f"{name}_inputs"].tolist() == expected[:-1] + rest
        assert row[f"{name}_targets"].tolist() == expected[1:] + rest
        mask = [False] * (kept - 1) + [True] * len(answer[:longest])
        assert row[f"{name}_loss_mask"].tolist() == mask + [False] * len(rest)
        ids_of = [1] * (len(expected) - 1)
        assert row[f"{name}_segment_ids"].tolist() == ids_of + rest
        assert row[f"{name}_positions"].tolist() == [*range(len(ids_of)), *rest]


def test_what_is_no_pair_is_refused() -> None:
    short = jaxdata.ArrayDocuments([[1, 2]], masks=[[0, 1]], name="train/short")
    with pytest.raises(InputError, match=r"has 23 documents and train/short 1: expected the two"):
        jaxdata.pairs(CHOSEN, short, seq_len=4)
    with pytest.raises(InputError, match="has no loss masks to mark the ends of its prompts"):
        jaxdata.pairs(short, jaxdata.ArrayDocuments([[1, 2]]), seq_len=4)
    with pytest.raises(InputError, match="max_prompt=5: expected 1 to seq_len = 4"):
        jaxdata.pairs(CHOSEN, REJECTED, seq_len=4, max_prompt=5)
    with pytest.raises(InputError, match="seq_len=0: expected 1 to"):
        jaxdata.pairs(CHOSEN, REJECTED, seq_len=0)
    other = jaxdata.ArrayDocuments([[2, 2]], masks=[[0, 1]], name="train/other")
    with pytest.raises(DatasetError, match="document 0 of train/short and 0 of train/other have"):
        jaxdata.pairs(short, other, seq_len=4)[0]
