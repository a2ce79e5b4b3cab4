"""Megatron's order: vectors of its own functions."""

from __future__ import annotations

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.megatron.order import (
    blend_order,
    document_order,
    normalized,
    places_in_datasets,
    plan_epochs,
    sample_order,
    split_range,
)
from jaxdata.testing import distinct_documents

LENGTHS = np.array([3, 7, 0, 5, 2, 11])


@pytest.mark.parametrize(
    ("num_samples", "epochs", "separate", "documents", "shuffle"),
    [
        (6, 1, False, [2, 1, 5, 0, 4, 3], [0, 4, 3, 2, 5, 1]),
        (
            8,
            2,
            True,
            [2, 1, 5, 0, 4, 3, 0, 4, 3, 2, 5, 1],
            [1, 0, 3, 2, 5, 4, 8, 9, 11, 7, 10, 12, 6],
        ),
        (
            12,
            2,
            False,
            [1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3],
            [7, 11, 2, 3, 1, 9, 5, 4, 0, 8, 6, 10, 12],
        ),
    ],
)
def test_order_vectors(
    num_samples: int, epochs: int, separate: bool, documents: list[int], shuffle: list[int]
) -> None:
    plan = plan_epochs(int(LENGTHS.sum()), 4, num_samples)
    assert (plan.count, plan.separate) == (epochs, separate)
    random = np.random.RandomState(1234)
    order = document_order(np.arange(6, dtype=np.int32), plan, random)
    assert order.tolist() == documents
    assert sample_order(plan, random).tolist() == shuffle
    source = jaxdata.ArrayDocuments(distinct_documents(LENGTHS))
    assert len(jaxdata.rows.megatron.gpt(source, seq_len=4, num_samples=num_samples)) == len(
        shuffle
    )


@pytest.mark.parametrize(
    ("weights", "size", "datasets", "samples"),
    [
        ([0.5, 0.3, 0.2], 12, "012010201001", "000112132453"),
        ([1 / 3, 1 / 3, 1 / 3], 7, "0120120", "0001112"),
        ([0.7, 0.2, 0.1], 10, "0102000100", None),
    ],
)
def test_blend_vectors(weights: list[float], size: int, datasets: str, samples: str | None) -> None:
    order = blend_order(normalized(weights), size)
    assert "".join(map(str, order)) == datasets
    if samples:
        assert "".join(map(str, places_in_datasets(order, 3))) == samples


@pytest.mark.parametrize(("sizes", "datasets"), [([3, 1, 2], "021020"), ([5, 2], "0100100")])
def test_exhaustive_blend_vectors(sizes: list[int], datasets: str) -> None:
    order = blend_order(normalized(sizes), sum(sizes), sizes)
    assert "".join(map(str, order)) == datasets


def test_split_ranges() -> None:
    parts = [split_range("969, 30, 1", part, 12_345) for part in ("train", "valid", "test")]
    assert parts == [range(11_962), range(11_962, 12_333), range(12_333, 12_345)]
    assert split_range("1", "train", 7) == range(7)
    with pytest.raises(InputError, match=r"split='none': expected one to three weights, like '969"):
        split_range("none", "train", 7)
