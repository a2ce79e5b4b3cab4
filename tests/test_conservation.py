"""The law the project stands on: every token is trained on exactly once."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.testing import assert_exactly_once, distinct_documents
from tests.rows.packing.test_packed_rows import Case, cases

HOSTS = st.integers(1, 5)
EACH = st.integers(1, 4)


def source_of(case: Case) -> jaxdata.ArrayDocuments:
    return jaxdata.ArrayDocuments(distinct_documents(case.lengths), case.masks)


def batches_of(rows: Any, hosts: int, each: int) -> Iterator[dict[str, np.ndarray]]:
    """Those of each host, one after another, with so many rows of each."""
    for host in range(hosts):
        shard = {"batch_size": hosts * each, "shard": (host, hosts)}
        yield from jaxdata.Loader(rows, **shard, prefetch=0)


@given(cases(("best_fit", "concat", "pad")), st.integers(1, 3), HOSTS, EACH)
def test_every_token_is_a_target_exactly_once_in_every_epoch(
    case: Case, epochs: int, hosts: int, each: int
) -> None:
    source = source_of(case)
    rows = jaxdata.pack(source, **case.settings)
    starts = [rows.table.first_row(epoch) for epoch in range(epochs + 1)]
    for start, stop in pairwise(starts):
        assert_exactly_once([rows[row] for row in range(start, stop)], [source])
    assert_exactly_once(batches_of(rows.repeat(epochs), hosts, each), [source], epochs)


@given(cases(("crop",)), HOSTS, EACH)
def test_crop_trains_true_targets_and_counts_what_it_drops(
    case: Case, hosts: int, each: int
) -> None:
    rows = jaxdata.pack(source_of(case), **case.settings)
    batches = batches_of(rows, hosts, each)
    emitted = [
        token for batch in batches for token in batch["targets"][batch["loss_mask"]].tolist()
    ]
    assert len({*emitted}) == len(emitted), "none comes twice"
    wanted = set[int]()
    for number, tokens in enumerate(distinct_documents(case.lengths)):
        masked = slice(None) if case.masks is None else case.masks[number][1:]
        wanted |= {*tokens[1:][masked].tolist()}
    assert {*emitted} <= wanted
    if case.masks is None:
        assert rows.plan.dropped_tokens == len(wanted) - len(emitted)
        assert rows.plan.trained_tokens == len(emitted)


def test_the_check_itself_can_fail() -> None:
    docs = jaxdata.ArrayDocuments(distinct_documents([5, 4]))
    rows = jaxdata.pack(docs, seq_len=4)
    good = [rows[k] for k in range(len(rows))]
    assert assert_exactly_once(good, [docs]) == 7
    with pytest.raises(AssertionError, match="1x, 3 delivered: 4 missing"):
        assert_exactly_once(good[:1], [docs])
    with pytest.raises(AssertionError, match="too often"):
        assert_exactly_once([*good, good[0]], [docs])
