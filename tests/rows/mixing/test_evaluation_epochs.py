"""Evaluation rows: every source once, in order; each epoch is the same rows, capped or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.testing import assert_exactly_once, assert_same_batches
from tests.builders import dataset

SEQ_LEN = 24
CAPS = pytest.mark.parametrize("eval_tokens", [None, 1, 9 * SEQ_LEN - 3])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = np.random.default_rng(4).integers(1, 50, 60)
    folder = tmp_path_factory.mktemp("evaluation")
    return dataset(folder / "d", {"val/b": lengths[:25], "val/a": lengths[25:]})


def evaluated(path: Path, eval_tokens: float | None, **more: Any) -> Any:
    opened = jaxdata.open_dataset(path)
    return jaxdata.evaluation_rows(opened, "val", seq_len=SEQ_LEN, eval_tokens=eval_tokens, **more)


def firsts(rows: Any) -> list[int]:
    """The first token of each row, which no other row has."""
    return [int(row["inputs"][0]) for row in rows]


def test_they_are_every_source_once_in_the_order_of_names_and_documents(path: Path) -> None:
    rows, opened = evaluated(path, None), jaxdata.open_dataset(path)
    assert_exactly_once(rows, [opened.source("val", name) for name in "ab"])
    tokens = np.array(firsts(rows))
    second = tokens < opened.source("val", "a")[0]["tokens"][0]  # ids of b are the lower ones
    assert second.tolist() == sorted(second.tolist())
    assert (np.diff(tokens[~second]) > 0).all()
    assert (np.diff(tokens[second]) > 0).all()
    assert len(evaluated(path, 4 * SEQ_LEN + 1)) == 5


@CAPS
def test_an_index_beyond_the_end_is_a_row_of_the_evaluation(
    path: Path, eval_tokens: float | None
) -> None:
    whole, rows = evaluated(path, None), evaluated(path, eval_tokens)
    n = len(rows)
    own = firsts(rows[k] for k in range(n))
    assert own == firsts(whole[k] for k in range(n))
    assert len(set(own)) == n
    for epoch in (-2, -1, 0, 1, 7):
        beyond = [epoch * n + k for k in range(n)]
        assert firsts(rows[index] for index in beyond) == own
        assert firsts(rows._getitems(beyond)) == own, "as grain's own transformations read"
    for chosen in (slice(1, None), slice(None, None, 3), slice(9, 2)):
        part = rows[chosen]
        assert firsts(part) == own[chosen]
        assert firsts(part[k] for k in range(len(part), 3 * len(part))) == own[chosen] * 2


@CAPS
@pytest.mark.parametrize("reseed", [True, False])
def test_an_evaluation_repeated_is_the_same_one(
    path: Path, eval_tokens: float | None, reseed: bool
) -> None:
    rows = evaluated(path, eval_tokens)
    once = [rows[k] for k in range(len(rows))]
    twice = rows.repeat(2, reseed_each_epoch=reseed)
    assert_same_batches(list(twice), once * 2)
    assert_same_batches(list(twice.to_iter_dataset()), once * 2)
    endless = rows.repeat()
    assert_same_batches([endless[10**9 * len(rows) + k] for k in range(3)], (once * 3)[:3])
    batches = list(jaxdata.Loader(twice, batch_size=2, prefetch=0))
    read = np.concatenate([batch["inputs"] for batch in batches])[: len(twice)]
    assert np.array_equal(read, [row["inputs"] for row in once * 2])


def test_what_grain_makes_of_them_stays_inside(path: Path) -> None:
    rows = evaluated(path, 5 * SEQ_LEN)
    own, shuffled = firsts(rows), rows.shuffle(seed=1).repeat(3)
    assert sorted(firsts(shuffled)) == sorted(own * 3)
    mapped = rows.map(lambda row: row)
    assert firsts(mapped[k] for k in range(5, 15)) == own * 2
    (batch,) = rows.batch(5)
    assert batch["inputs"][:, 0].tolist() == own


def test_a_split_of_a_config_is_read_alike_in_every_pass(path: Path) -> None:
    config = {"dataset": str(path), "pack": {"seq_len": SEQ_LEN}, "loader": {"batch_size": 3}}
    loader = jaxdata.load(config, "val", eval_tokens=7 * SEQ_LEN)
    assert len(loader.rows) == 7
    first = list(loader)
    loader.reset()
    assert_same_batches(loader, first)


@pytest.mark.parametrize("eval_tokens", [0, float("nan"), float("inf")])
def test_a_cap_that_makes_no_sense_is_refused(path: Path, eval_tokens: float) -> None:
    with pytest.raises(InputError, match=r"eval_tokens=.*: expected a number above 0, or None for"):
        evaluated(path, eval_tokens)


def test_training_rows_go_on_in_later_epochs_and_a_mixture_ends_with_its_phases(path: Path) -> None:
    rows = jaxdata.pack(jaxdata.open_dataset(path).source("val", "a"), seq_len=SEQ_LEN)
    n, own = len(rows), firsts(rows)
    assert firsts(rows[k] for k in range(-3 * n, -2 * n)) == own, "the first epoch, as grain's do"
    second = firsts(rows[k] for k in range(n, 2 * n))
    assert sorted(second) == sorted(own) != second != own
    assert firsts(rows.repeat(2)) == own + second
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        rows[1.5]
    mixed = jaxdata.mix({"a": rows}, phases=[jaxdata.Phase(rows=4, weights={"a": 1})])
    assert firsts([mixed[-4], mixed[3]]) == [own[0], own[3]]
    for beyond in (4, -5, slice(4, None)):
        with pytest.raises(IndexError, match="a mixture of 4 rows"):
            mixed[beyond]
    with pytest.raises(InputError, match=r"cannot be repeated.* epochs=\{name: times\}"):
        mixed.repeat(2)
    with pytest.raises(InputError, match=r"num_epochs=1\.5: expected a whole number or None"):
        rows.repeat(1.5)


def test_pairs_and_written_rows_have_rows_beyond_their_end(path: Path, tmp_path: Path) -> None:
    documents = [[7, 8, number, 0] for number in range(9, 15)]
    masks = [[0, 0, 1, 1]] * 6
    sides = [jaxdata.ArrayDocuments(documents, masks, name=name) for name in ("c", "r")]
    pairs: Any = jaxdata.pairs(*sides, seq_len=4)

    def third(index: int) -> int:
        return int(pairs[index]["chosen_inputs"][2])

    assert [third(k) for k in range(-12, -6)] == [third(k) for k in range(6)]
    assert [third(np.int64(k)) for k in range(6, 12)] == [third(k) for k in range(6, 12)]
    jaxdata.materialize(evaluated(path, 4 * SEQ_LEN), tmp_path / "rows", workers=1)
    stored = jaxdata.open_rows(tmp_path / "rows")
    assert firsts(stored[k] for k in range(-8, 12)) == firsts(stored[k] for k in range(4)) * 5
    assert firsts([stored[np.int64(5)]]) == firsts([stored[1]])
