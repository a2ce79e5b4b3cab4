"""The promises of rows, kept by both orders, by few lanes and many, by sources of any size."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache, partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.ragged import Ints
from jaxdata.rows.counts import TokenCounts
from jaxdata.rows.table import Segments
from jaxdata.testing import (
    assert_exactly_once,
    assert_resumes_everywhere,
    assert_same_batches,
    assert_same_on_hosts,
    distinct_documents,
)

SEQ_LEN = 32
SIZES = [1, 7, 511, 513]
POOLS = {"segment_bytes": 256, "pool_bytes": 2_048}
ORDERS: dict[str, dict[str, int]] = {
    "order 1": {"order": 1, "block": 100},
    "order 2": {},
    "lanes 1": POOLS | {"lanes": 1},
    "lanes 8": POOLS | {"lanes": 8},
    "lanes 512": POOLS | {"lanes": 512},
}
both_orders = pytest.mark.parametrize("order", ORDERS)
any_size = pytest.mark.parametrize("size", SIZES)


def lengths_of(rows: int) -> Ints:
    """Documents that take so many rows: each fills more than half of one, or fits beside four."""
    random = np.random.default_rng(rows)
    lengths = random.integers(SEQ_LEN // 2 + 2, SEQ_LEN - 7, rows)
    small = np.arange(4, rows, 4)
    return np.insert(lengths, small, random.integers(2, 8, len(small)))


@cache
def documents(rows: int, name: str = "web") -> jaxdata.ArrayDocuments:
    first = {"web": 1, "code": 10**6}[name]
    return jaxdata.ArrayDocuments(distinct_documents(lengths_of(rows), first), name=f"train/{name}")


def packed(rows: int, order: str, name: str = "web", **settings: Any) -> Any:
    settings = {"seq_len": SEQ_LEN, **ORDERS[order], **settings}
    found = jaxdata.pack(documents(rows, name), **settings)
    assert settings["seq_len"] != SEQ_LEN or len(found) == rows
    assert rows < 500 or order == "order 2" or found.table.blocks > 5
    return found


@both_orders
@any_size
def test_every_token_comes_once_an_epoch_and_on_any_hosts(size: int, order: str) -> None:
    rows = packed(size, order)
    for first in (0, size):
        epoch = [rows[row] for row in range(first, first + size)]
        assert_exactly_once(epoch, [documents(size)])
    group = [
        jaxdata.Loader(rows.repeat(2), batch_size=24, shard=(host, 3), prefetch=0)
        for host in range(3)
    ]
    assert_exactly_once((part for one in group for part in one), [documents(size)], epochs=2)


@both_orders
@any_size
def test_it_goes_on_everywhere(size: int, order: str) -> None:
    rows = packed(size, order).repeat(2)
    batch_size = max(size // 10, 2) // 2 * 2

    def loader(shard: tuple[int, int] = (0, 1)) -> jaxdata.Loader:
        return jaxdata.Loader(rows, batch_size=batch_size, shard=shard, prefetch=0)

    assert_resumes_everywhere(loader, tail=2)
    assert_same_on_hosts(loader, [2])
    one, state = loader(), loader()
    list(islice(state, 1))
    one.set_state(json.loads(json.dumps(state.get_state())))
    left = (iter(partial(next, each, None), None) for each in (one, state))  # perhaps nothing
    assert_same_batches(*left)


def counts_of(found: Segments, lengths: Ints) -> TokenCounts:
    """Totals of rows, slot by slot."""
    rows, slots = len(np.unique(found.row)), int(found.slots.sum())
    ends = found.start + found.slots == lengths[found.document]  # the last token has no target
    return TokenCounts(
        rows=rows,
        begun=int((found.start == 0).sum()),
        slots=rows * SEQ_LEN,
        trained_tokens=slots - int(ends.sum()) - int(found.context.sum()),
        overlap_tokens=int(found.context.sum()),
        padding=rows * SEQ_LEN - slots,
        finished=sum(
            int(lengths[d]) - 1 in range(first + (lengths[d] > 1), first + slots + 1)
            for d, first, slots in zip(found.document, found.start, found.slots, strict=True)
        ),
    )


def assert_arithmetic_holds(table: Any, lengths: Ints, stops: list[int], some: list[int]) -> None:
    """Check what is computed about rows against the segments of all rows of two epochs."""
    size = len(table)
    found = table.segments(np.arange(2 * size))
    for first in (0, size):
        epoch = found.take((found.row >= first) & (found.row < first + size))
        assert_same_places(epoch, lengths)
    for stop in stops:
        seen = found.take(found.row < stop)
        assert table.token_counts(stop) == {"train/web": counts_of(seen, lengths)}
    for document in some:
        rows = np.unique(found.row[found.document == document]).tolist()
        assert table.rows_with("train/web", document, 2 * size) == rows
    for stop in [stop for stop in stops if size <= stop < 2 * size]:
        rest, spans = table.remaining(stop)
        left = [table.planner.order.documents_of((a, a + count)) for a, count in spans.tolist()]
        in_rest = found.take(np.isin(found.row, rest))
        assert (rest >= stop).all()
        later = np.sort(np.concatenate([in_rest.document, *left]))
        assert later.tolist() == np.sort(found.document[found.row >= stop]).tolist()


def assert_same_places(epoch: Segments, lengths: Ints) -> None:
    """Check that the segments of an epoch are all documents, once, from beginning to end."""
    order = np.argsort(epoch.document)
    assert epoch.document[order].tolist() == list(range(len(lengths)))
    assert not epoch.start.any()
    assert (epoch.slots[order] == lengths - 1).all()
    used = np.bincount(epoch.row - epoch.row.min(), epoch.slots)
    assert used.max() <= SEQ_LEN


@both_orders
@any_size
def test_what_is_computed_is_what_rows_hold(size: int, order: str) -> None:
    stops = sorted({0, 1, size // 3, size - 1, size, size + 1, size + size // 2, 2 * size - 1})
    some = sorted({0, size // 2, size - 1})
    assert_arithmetic_holds(packed(size, order).table, lengths_of(size), stops, some)


class Zeros:
    """Documents whose tokens nobody needs."""

    name, fingerprint = "train/web", "zeros"

    def __init__(self, lengths: Ints) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Ints:
        return np.zeros(self.lengths[index], np.int64)


@cache
def a_million() -> Ints:
    return lengths_of(10**6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("lanes", [0, 1, 8, 512])
def test_a_million_rows(lanes: int) -> None:
    pools = {"segment_bytes": 2**16, "pool_bytes": 2**19, "lanes": lanes}
    order: Any = pools if lanes else {"order": 1}
    rows = jaxdata.pack(Zeros(a_million()), seq_len=SEQ_LEN, **order)
    assert 10**6 <= len(rows) < 1.001 * 10**6
    assert_arithmetic_holds(rows.table, a_million(), [777_777, 1_234_567], [5, 999_999])
    loader = jaxdata.Loader(rows, batch_size=1_000)
    for step in (0, 345, 999):
        assert_sorted_by_lane(loader.batch_rows(step), step * 1_000, 1_000, max(lanes, 1))


def assert_sorted_by_lane(numbers: Ints, first: int, count: int, lanes: int) -> None:
    assert sorted(numbers.tolist()) == list(range(first, first + count))
    bits = lanes.bit_length() - 1
    lane = [int(f"{number % lanes:0{bits}b}"[::-1], 2) if bits else 0 for number in numbers]
    places = list(zip(lane, numbers.tolist(), strict=True))
    assert all(one < other for one, other in pairwise(places))


@both_orders
@any_size
def test_a_mixture_takes_every_row(size: int, order: str) -> None:
    rows = {"web": packed(size, order), "code": packed(99, order, "code")}
    shares = {"web": 2 * size, "code": 99}
    epochs = {"web": 2, "code": 1}
    mixed = jaxdata.mix(rows, weights=shares, epochs=epochs, on_exhaustion="renormalize")
    loader = jaxdata.Loader(mixed, batch_size=20, extras=("source", "document"), prefetch=0)
    batches, seen = list(loader), Counter[str]()
    for batch in batches:
        first = batch["source"][:, 0].tolist()
        seen.update(mixed.table.names[source] for source in first if source >= 0)
    assert seen == shares
    for name, times in epochs.items():
        mine = [_of_source(batch, mixed.table.names.index(name)) for batch in batches]
        assert_exactly_once(mine, [rows[name].table.documents[0]], times)


def _of_source(batch: Any, source: int) -> Any:
    held = batch["source"][:, 0] == source
    return {name: array[held] for name, array in batch.items()}


@both_orders
@any_size
def test_packed_anew_from_any_row_on(size: int, order: str) -> None:
    """In the middle of a lane, twice, at the edge of an epoch, and from order to order."""
    others = [name for name in ORDERS if name != order]
    for first in sorted({1, size // 2, size - 1, size}):
        mixed = jaxdata.mix({"web": packed(size, order)}, epochs={"web": 2})
        for number, other in enumerate(others[:: 1 + size // 100]):
            at = first + (len(mixed) - first) * number // 3
            if at < len(mixed):
                seq_len = (16, 48)[number % 2]
                again = packed(size, other, seq_len=seq_len)
                mixed = mixed.amend(at, rows={"web": again})
        batches = list(jaxdata.Loader(mixed, batch_size=max(size // 20, 2), prefetch=0))
        assert_exactly_once(batches, [documents(size)], epochs=2)
