"""Packed anew from a row on: what was not consumed comes once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.testing import assert_exactly_once
from tests.mixing.amendments.conftest import PACKS, POOLS, Seen, deliver, packed, sources


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[str, list[int]], list[tuple[dict[str, Any], float]]]:
    length = st.one_of(st.integers(1, 12), st.integers(1, 120))
    lengths = {
        name: draw(st.lists(length, min_size=3, max_size=40)) for name in ("web", "code", "wiki")
    }
    change = st.tuples(st.sampled_from(PACKS), st.floats(0, 1))
    return lengths, draw(st.lists(change, min_size=1, max_size=3))


BEGUN: list[dict[str, Any]] = [{}, {"order": 2, "lanes": 4, **POOLS}]


@given(plans(), st.booleans(), st.integers(1, 3), st.sampled_from(BEGUN))
def test_packed_anew_on_the_way_every_token_comes_once(
    plan: tuple[dict[str, list[int]], list[tuple[dict[str, Any], float]]],
    masked: bool,
    hosts: int,
    begun: dict[str, Any],
) -> None:
    lengths, changes = plan
    docs = sources(lengths, masked)
    rows = packed(docs, seq_len=20, **begun)
    if not all(len(each) for each in rows.values()):
        return
    mixed = jaxdata.mix(rows, weights="proportional", on_exhaustion="renormalize")
    row = 0
    for pack, where in changes:
        row += round((len(mixed) - row) * where)
        if row < len(mixed):
            mixed = mixed.amend(row, rows=packed(docs, **pack))
    batches = [part for parts, _ in deliver(mixed, 3 * hosts, hosts) for part in parts]
    assert_exactly_once(batches, list(docs.values()))


def test_two_epochs_with_a_change_in_the_middle_of_each() -> None:
    lengths = {
        name: np.random.default_rng(seed).integers(2, 90, 60).tolist()
        for seed, name in enumerate(("web", "code"))
    }
    docs = sources(lengths)
    mixed = jaxdata.mix(packed(docs, seq_len=32), epochs={"web": 2, "code": 2})
    first, second = round(len(mixed) * 0.3), round(len(mixed) * 0.7)
    mixed = mixed.amend(first, rows=packed(docs, seq_len=16, overlap=4))
    mixed = mixed.amend(first + (second - first) * 2, rows=packed(docs, seq_len=64))
    assert mixed.epochs() == {"web": 2.0, "code": 2.0}
    batches = [part for parts, _ in deliver(mixed, 4, 1) for part in parts]
    assert {batch["inputs"].shape for batch in batches} == {(4, 32), (4, 16), (4, 64)}
    assert_exactly_once(batches, list(docs.values()), epochs=2)


@pytest.mark.parametrize(("times", "most"), [(0.5, 1), (0.25, 1), (1.5, 2)])
def test_a_part_of_an_epoch_stays_a_part_when_packed_anew(times: float, most: int) -> None:
    docs = sources({"web": np.random.default_rng(3).integers(2, 60, 400).tolist()})
    mixed = jaxdata.mix(packed(docs, seq_len=32), weights={"web": 1}, epochs={"web": times})
    mixed = mixed.amend(len(mixed) // 2, rows=packed(docs, seq_len=16))
    assert mixed.epochs()["web"] == pytest.approx(times, abs=0.01)
    seen = Seen()
    for batch in jaxdata.Loader(mixed, batch_size=8):
        seen.add(batch)
    counted = seen.of(docs["web"])
    assert max(counted) == most
    assert np.mean(counted) == pytest.approx(times, abs=0.02)
