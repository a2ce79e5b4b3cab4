"""Packed anew from a row on: what was not consumed comes once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.testing import assert_exactly_once
from tests.mixing.amendments.conftest import PACKS, POOLS, deliver, packed, sources


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
