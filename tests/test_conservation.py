"""The law the project stands on: every token is trained on exactly once."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.testing import assert_exactly_once, distinct_documents


@dataclass(frozen=True)
class Case:
    documents: list[np.ndarray]
    masks: list[np.ndarray] | None
    settings: dict[str, object]
    hosts: int
    batch_size: int

    @property
    def source(self) -> jaxdata.ArrayDocuments:
        return jaxdata.ArrayDocuments(self.documents, self.masks)

    def batches(self, rows: object) -> Iterator[dict[str, np.ndarray]]:
        for host in range(self.hosts):
            yield from jaxdata.Loader(
                rows, batch_size=self.batch_size, shard=(host, self.hosts), prefetch=0
            )


POOLS = {"chunk_bytes": 32, "block_bytes": 96}
ORDERS: list[dict[str, int]] = [
    *({"block_bytes": size} for size in (1, 99, 2**20)),
    *({"lanes": lanes} for lanes in (1, 8)),
    *(POOLS | {"lanes": lanes} for lanes in (1, 8, 512)),
]


@st.composite
def cases(draw: st.DrawFn, strategies: tuple[str, ...] = ("best_fit", "concat", "pad")) -> Case:
    multiple = draw(st.sampled_from([1, 1, 2, 3, 8]))
    seq_len = multiple * draw(st.integers(1, max(24 // multiple, 1)))
    length = st.one_of(st.sampled_from([1, 2]), st.integers(1, 30), st.integers(1, 8 * seq_len))
    lengths = draw(st.lists(length, min_size=1, max_size=40))
    strategy = draw(st.sampled_from(strategies))
    overlaps = st.integers(0, seq_len // 2) if strategy in ("best_fit", "pad") else st.just(0)
    hosts = draw(st.integers(1, 5))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    masks = [rng.integers(0, 2, n) for n in lengths] if draw(st.booleans()) else None
    settings = {
        "seq_len": seq_len,
        "strategy": strategy,
        "overlap": draw(overlaps),
        "seed": seed,
        "positions": draw(st.sampled_from(["segment", "row"])),
        "max_segments": draw(st.sampled_from([None, None, 1, 3])),
        "multiple": multiple,
        "reshuffle": draw(st.sampled_from(["rows", "documents"])),
        **draw(st.sampled_from(ORDERS)),
    }
    return Case(
        distinct_documents(lengths), masks, settings, hosts, hosts * draw(st.integers(1, 4))
    )


@given(cases(), st.integers(1, 3))
def test_every_token_is_a_target_exactly_once_in_every_epoch(case: Case, epochs: int) -> None:
    rows = jaxdata.pack(case.source, **case.settings)
    starts = [rows.table.first_row(epoch) for epoch in range(epochs + 1)]
    for start, stop in pairwise(starts):
        assert_exactly_once([rows[row] for row in range(start, stop)], [case.source])
    assert_exactly_once(case.batches(rows.repeat(epochs)), [case.source], epochs)


@given(cases(("crop",)))
def test_crop_trains_true_targets_and_counts_what_it_drops(case: Case) -> None:
    rows = jaxdata.pack(case.source, **case.settings)
    targets = [row["targets"][row["loss_mask"]] for row in case.batches(rows)]
    emitted = np.concatenate([np.empty(0, int), *targets])
    assert len(np.unique(emitted)) == len(emitted)
    wanted = [
        document[1:] if case.masks is None else document[1:][case.masks[k][1:] == 1]
        for k, document in enumerate(case.documents)
    ]
    assert np.isin(emitted, np.concatenate([np.empty(0, int), *wanted])).all()
    if case.masks is None:
        assert rows.plan.dropped_tokens == sum(map(len, wanted)) - len(emitted)
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
