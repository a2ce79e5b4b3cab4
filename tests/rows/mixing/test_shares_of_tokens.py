"""What is promised of shares: for rows always, for trained tokens as far as rows are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import jaxdata
from jaxdata.rows.arrays import assemble
from jaxdata.testing import distinct_documents

SEQ_LEN = 16
PACKS = [
    {"strategy": "best_fit"},
    {"strategy": "best_fit", "overlap": 5},
    {"strategy": "concat"},
    {"strategy": "crop"},
    {"strategy": "pad"},
    {"strategy": "pad", "overlap": 5},
]
lengths_lists = st.lists(
    st.one_of(st.integers(1, 4), st.integers(1, 17), st.integers(1, 90)), min_size=4, max_size=60
).filter(lambda lengths: max(lengths) > 1)


def packed(name: str, lengths: Sequence[int], **pack: Any) -> Any:
    docs = jaxdata.ArrayDocuments(distinct_documents(lengths), name=name)
    return jaxdata.pack(docs, seq_len=SEQ_LEN, block_bytes=800, **pack)


def trained(rows: Any, count: int) -> NDArray[np.int64]:
    """Targets with loss of each row, counted in the rows themselves."""
    return next(assemble(rows.table, [np.arange(count)], count))["loss_mask"].sum(axis=1)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(lengths_lists, st.floats(0.05, 1)), min_size=2, max_size=4),
    st.sampled_from(PACKS),
)
def test_counts_of_rows_are_within_two_and_tokens_within_that_and_idle_slots(
    sources: list[tuple[list[int], float]], pack: dict[str, Any]
) -> None:
    rows = {f"s{k}": packed(f"s{k}", lengths, **pack) for k, (lengths, _) in enumerate(sources)}
    weights = {f"s{k}": weight for k, (_, weight) in enumerate(sources)}
    mixed = jaxdata.mix(rows, weights=weights, epochs=dict.fromkeys(rows, 3))
    count = min(len(mixed), 300)
    _, source, _ = mixed.table.select(np.arange(count))
    mine = source[:, None] == np.arange(len(rows))
    prefix = np.arange(1, count + 1)[:, None]

    share = np.array([*weights.values()]) / sum(weights.values())
    average = np.array([each.plan.trained_tokens / len(each) for each in rows.values()])
    of_rows = share / average / (share / average).sum()
    assert np.abs(mine.cumsum(axis=0) - prefix * of_rows).max() < 2

    tokens = (mine * trained(mixed, count)[:, None]).cumsum(axis=0)
    off = np.abs(tokens - share * tokens.sum(axis=1, keepdims=True))
    idle = np.array([each.plan.slots - each.plan.trained_tokens for each in rows.values()])
    each = 2 * average + idle
    bound = (1 - share) * each + share * (each.sum() - each)
    assert (off <= bound + 1e-6).all()
