"""What is measured of a shuffle: planted faults are found, a random deal passes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

import jaxdata
from jaxdata.testing import shuffle_quality
from jaxdata.testing.shuffle import Placement, measured, values_of

ROWS, BATCH = 3_200, 16
SOME = np.random.default_rng(5).integers(2, 90, 6_000)


def documents(lengths: NDArray[np.int64]) -> jaxdata.ArrayDocuments:
    return jaxdata.ArrayDocuments([np.zeros(n, np.uint16) for n in lengths], name="web")


def dealt(seed: int = 0, rows: int = ROWS, stretches: int = 1) -> Placement:
    """Documents of skewed lengths dealt at random."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(0, 9, rows)
    lengths = chance.lognormal(6, 1, counts.sum()).astype(np.int64) + 2
    numbers = chance.permutation(len(lengths))
    return Placement(BATCH, stretches, counts, numbers, lengths, np.minimum(lengths, 512))


def sorted_by(placed: Placement, order: NDArray[Any]) -> Placement:
    columns = {name: getattr(placed, name)[order] for name in ("document", "length", "slots")}
    return replace(placed, **columns)


def poor(placed: Placement, hosts: int = 4) -> set[tuple[str, str]]:
    deals = [placed.dealt(np.random.default_rng(seed)) for seed in range(8)]
    return {(each.name, each.of) for each in measured(placed, hosts, deals) if not each.good}


@pytest.mark.exhaustive
@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 8]))
def test_a_random_deal_passes(seed: int, stretches: int) -> None:
    assert poor(dealt(seed, stretches=stretches)) <= set()


def test_each_planted_fault_is_found_and_named() -> None:
    placed = dealt()
    row, batch = placed.row, placed.row // BATCH
    by_length, by_number = placed.length, placed.document

    longest_first = sorted_by(placed, np.lexsort((-by_length, row)))
    assert poor(longest_first) == {("place in the row", "length")}
    assert ("place in the row", "number") in poor(sorted_by(placed, np.lexsort((by_number, row))))

    in_batches = poor(sorted_by(placed, np.lexsort((by_length, batch))))
    assert ("variance of batches, a host", "length") in in_batches
    assert ("variance of batches", "length") not in in_batches

    drifting = sorted_by(placed, np.argsort(by_number + 5_000 * np.sin(by_number), kind="stable"))
    assert ("next batch", "number") in poor(drifting)

    sorted_corpus = poor(sorted_by(placed, np.argsort(by_number)))
    own = {(f"variance of batches{parts}", "number") for parts in ("", ", a host")}
    assert {("kept neighbours", "number"), *own} <= sorted_corpus


def test_figures_of_a_few_rows_by_hand() -> None:
    counts, slots = np.array([2, 3, 1]), np.full(6, 2)
    document, length = np.array([4, 5, 9, 8, 0, 1]), np.array([4, 4, 2, 2, 8, 8])
    placed = Placement(1, 1, counts, document, length, slots)
    found = values_of(placed)
    assert found["kept neighbours", "number"] == 2 / 3  # 4 5, 9 8; 0 1 lie in two rows
    assert found["equal neighbours", "length"] == 1
    means = np.log([4, (2 * 2 * 8) ** (1 / 3), 8])
    assert found["variance of batches", "length"] == pytest.approx(np.var(means))
    weighted = values_of(replace(placed, slots=np.array([1, 1, 1, 1, 4, 1])))
    means[1] = np.log(2 * 2 * 8**4) / 6
    assert weighted["variance of batches", "length"] == pytest.approx(np.var(means))
    one, two = np.array([4.5, 34 / 6, 1]), values_of(replace(placed, slots=np.full(6, 1)))
    assert two["next batch", "number"] == pytest.approx(np.corrcoef(one[:-1], [17 / 3, 1])[0, 1])
    apart = values_of(replace(placed, stretches=3))
    assert np.isnan(apart["next batch", "number"])  # no two batches follow each other


@given(st.integers(0, 2**32 - 1))
def test_a_deal_keeps_documents_and_fill(seed: int) -> None:
    placed = dealt(seed, rows=64)
    again = placed.dealt(np.random.default_rng(seed))
    columns = [np.stack([each.document, each.length, each.slots]) for each in (placed, again)]
    assert np.array_equal(*(np.unique(each, axis=1) for each in columns))
    empty = [np.flatnonzero(each.counts == 0) for each in (placed, again)]
    assert np.isin(empty[0], empty[1]).all()  # rows of other sources stay
    assert np.isin(*[each.slots[(each.counts == 1)[each.row]] for each in (placed, again)]).all()
    filled = [np.sort(np.bincount(each.row, each.slots, each.rows)) for each in (placed, again)]
    assert np.abs(np.subtract(*filled)).max() <= 512


def test_sources_of_a_mixture_have_their_share_of_a_batch() -> None:
    counts = {"a": 4_000, "b": 900}
    rows = {name: jaxdata.pack(documents(SOME[:n]), seq_len=64) for name, n in counts.items()}
    mixed = jaxdata.mix(rows, weights={"a": 0.75, "b": 0.25}, on_exhaustion="renormalize")
    shares = [64 * mixed.counts()[name] / len(mixed) for name in ("a", "b")]
    assert shares == pytest.approx([52.5, 11.5], abs=0.2)
    found = shuffle_quality(mixed, batch_size=64, hosts=8)
    assert [each.batch for each in found] == [56, 8]  # hosts have equal parts
    assert [each.hosts for each in found] == [8, 8]
    assert [each.batch for each in shuffle_quality(mixed, batch_size=6, sources=1)] == [5]
    assert [each.batch for each in shuffle_quality(rows["a"], batch_size=12)] == [12]
