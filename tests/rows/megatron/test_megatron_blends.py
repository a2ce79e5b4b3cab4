"""Megatron's blends: those of a slow implementation that takes one sample after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.megatron import order as blending
from jaxdata.rows.megatron.order import blend_order, normalized, places_in_datasets
from jaxdata.testing import distinct_documents
from tests.rows.megatron.slow_megatron import SlowGpt, lengths_of_some, slow_blend, texts


@settings(max_examples=60)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=6), st.integers(1, 900))
def test_lanes_walk_as_one(weights: list[int], size: int) -> None:
    """Lanes of 16 steps, most of them guessed from 4 before: many have to be walked again."""
    shares = normalized(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blending, "_SHORTEST_LANE", 16)
        patch.setattr(blending, "_WARM_UP", 4)
        order = blend_order(shares, size)
    places = places_in_datasets(order, len(weights))
    assert list(zip(order.tolist(), places.tolist(), strict=True)) == slow_blend(shares, size)


@pytest.mark.parametrize(("sizes", "datasets"), [([3, 1, 2], "021020"), ([5, 2], "0100100")])
def test_a_source_that_is_used_up_is_skipped(sizes: list[int], datasets: str) -> None:
    order = blend_order(normalized(sizes), sum(sizes), sizes)
    assert "".join(map(str, order)) == datasets


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.01, 5), lengths_of_some), min_size=1, max_size=4),
    st.integers(1, 80),
    st.integers(0, 5),
    st.sampled_from([0.005, 0.0, 0.5, 3]),
)
def test_blends_are_those_of_the_slow_implementation(
    given_: list[tuple[float, list[int]]], size: int, seed: int, surplus: float
) -> None:
    parts = [
        distinct_documents([*lengths, 6], 1 + 1_000 * k) for k, (_, lengths) in enumerate(given_)
    ]
    sources = [jaxdata.ArrayDocuments(part) for part in parts]
    weights = np.array([weight for weight, _ in given_])
    weights = weights / np.sum(weights)
    targets = [int(np.ceil(size * w)) for w in weights]
    slow = [
        SlowGpt(part, 5, seed, int(np.ceil(t * (1 + surplus))))
        for part, t in zip(parts, targets, strict=True)
    ]
    expected = slow_blend((weights / np.sum(weights)).tolist(), sum(targets))
    pairs = [(weight, source) for (weight, _), source in zip(given_, sources, strict=True)]
    given: dict[str, Any] = {"size": size, "seq_len": 5, "seed": seed}
    given |= {} if surplus == 0.005 else {"mid_level_dataset_surplus": surplus}
    if any(place >= slow[one].length for one, place in expected):
        says = r"the blend needs .* Megatron fails as well: raise mid_level_dataset_surplus"
        with pytest.raises(InputError, match=says):
            jaxdata.rows.megatron.blend(pairs, **given)
        return
    rows = jaxdata.rows.megatron.blend(pairs, **given)
    assert texts(rows) == [slow[one].text(place).tolist() for one, place in expected]


def test_blends_without_weights() -> None:
    parts = [distinct_documents([13] * n, 1 + 1_000 * n) for n in (5, 2, 9)]
    slow = [SlowGpt(part, 4, 7, None) for part in parts]
    pairs = [(None, jaxdata.ArrayDocuments(part)) for part in parts]
    rows = jaxdata.rows.megatron.blend(pairs, size=None, seq_len=4, seed=7)
    every = [s.text(k).tolist() for s in slow for k in range(s.length)]
    assert sorted(texts(rows)) == sorted(every)
    sizes = [s.length for s in slow]
    some = jaxdata.rows.megatron.blend(pairs, size=20, seq_len=4, seed=7)
    expected = slow_blend((np.array(sizes, float) / np.sum(sizes)).tolist(), 20)
    assert texts(some) == [slow[one].text(place).tolist() for one, place in expected]
    assert len(jaxdata.rows.megatron.blend(pairs, size=10**6, seq_len=4)) == sum(sizes)


@pytest.mark.parametrize(
    ("datasets", "given", "expected"),
    [
        ([], {}, "0 of 0 datasets have weights"),
        ([1, None], {}, "1 of 2 datasets have weights: expected all or none"),
        ([1, 0], {}, "expected positive numbers; remove datasets"),
        ([1, 2], {"size": None}, "size=None: expected a number of samples, required with weights"),
        ([1], {"by": "eod"}, "by='eod', eod_id=None: expected by='eod' and eod_id=, the id that"),
        ([1], {"mid_level_dataset_surplus": np.nan}, "surplus=nan: expected a number of at least"),
        ([1], {"pad_id": -1}, "pad_id=-1: expected an id, tokenizer.pad of Megatron; where that"),
        ([1], {"part": "val"}, r"part='val': expected train \| valid \| test"),
        ([1], {"split": "none"}, "split='none': expected one to three weights, like '969,30,1'"),
    ],
)
def test_wrong_blends(datasets: list[Any], given: dict[str, Any], expected: str) -> None:
    source = jaxdata.ArrayDocuments(distinct_documents([7] * 21))
    with pytest.raises(InputError, match=expected):
        jaxdata.rows.megatron.blend(
            [(weight, source) for weight in datasets], **{"size": 9, "seq_len": 4, **given}
        )
