"""Full rows of random items: a stream of items is cut, and items that leave gaps are exchanged.

1. The stream is cut where an item ends nearest to each full row.
2. A row that is `gap` slots short, or over, exchanges one of its items for one that is larger by
   `gap`, from the quarter of the items that was not dealt.

All of it is numpy over many rows at once: a row takes no step of its own.
"""

from __future__ import annotations

import numpy as np

from jaxdata.packing.windows import RowItems
from jaxdata.ragged import AnyInts, Ints, consecutive, stable_order

_DEALT = 0.75
"""share of the items that rows are made of; the others are there to be exchanged"""
_EXCHANGES = 6
"""items of a row that are tried"""


class RandomRows:
    """Rows dealt from a stream of items in random order; what is not dealt is the pool.

    A row has a place for an item larger than half of it, one for each smaller item, and a free one.

    Args:
        sizes: (items,) slots of each item.
        capacity: slots of a row.
        stream: numbers of the items to deal.
    """

    def __init__(self, sizes: AnyInts, capacity: int, stream: Ints) -> None:
        self._sizes = np.append(sizes, sizes.dtype.type(0))  # -1 is no item
        self._capacity = capacity
        large = 2 * sizes[stream] > capacity
        leads, small = stream[large], stream[~large]
        rows = -(-int(sizes[stream].sum(dtype=np.int64)) // capacity)
        led, others = -(-3 * len(leads) // 4), max(int((rows - len(leads)) * _DEALT), 0)
        lead = np.append(leads[:led], np.full(others, -1))
        lead = lead[scrambled(len(lead))]
        made = self._cut(lead, small)
        unused = lead[made:]
        pool = (small[self._dealt :], leads[led:], unused[unused >= 0])
        self._pool: Ints = np.concatenate(pool)

    def _cut(self, lead: Ints, small: Ints) -> int:
        """Fill rows with small items up to the end nearest to full; returns how many it could."""
        ends = np.append(0, np.cumsum(self._sizes[small]))
        full = np.append(0, np.cumsum(self._capacity - self._sizes[lead]))
        rows = int(np.searchsorted(full, ends[-1], side="right")) - 1
        full = full[: rows + 1]
        after = np.searchsorted(ends, full)
        before = np.maximum(after - 1, 0)
        cut = np.where(full - ends[before] < ends[after] - full, before, after)
        self._dealt = int(cut[-1])
        self._gap = np.diff(full) - np.diff(ends[cut])
        self._counts = np.diff(cut) + 2
        self._first = np.cumsum(self._counts) - self._counts
        self._items: Ints = np.full(int(self._counts.sum()), -1)
        self._items[self._first] = lead[:rows]
        self._items[consecutive(self._first + 1, np.diff(cut))] = small[: self._dealt]
        return rows

    def full_rows(self, limit: int) -> tuple[RowItems, Ints]:
        """The rows that come out full, of at most `limit` items, and all other items."""
        self._exchange()
        there = self._items >= 0
        held = np.diff(np.append(0, np.cumsum(there))[np.append(self._first, len(there))])
        full = (self._gap == 0) & (held <= limit)
        of_full = np.repeat(full, self._counts)
        rest = np.concatenate([self._items[there & ~of_full], self._pool[self._pool >= 0]])
        return RowItems(held[full], self._items[there & of_full]), rest[scrambled(len(rest))]

    def _exchange(self) -> None:
        """Exchange an item of each row, or its free place, for an item that fills the gap."""
        self._sort_pool()
        rows = np.flatnonzero(self._gap)
        for attempt in range(_EXCHANGES):
            rows = rows[self._counts[rows] > attempt]
            last = self._counts[rows] - 1
            place = self._first[rows] + ((rows + attempt) % last if attempt else last)
            wanted = self._sizes[self._items[place]] + self._gap[rows]
            wanted[(wanted < 0) | (wanted > self._capacity)] = 0
            met, item = self._take(wanted)
            there = place[met]
            self._items[there], self._pool[item] = self._pool[item], self._items[there]
            self._gap[rows[met]] = 0
            rows = np.delete(rows, met)

    def _sort_pool(self) -> None:
        sizes = self._sizes[self._pool]
        self._by_size = stable_order(sizes, self._capacity)
        self._after = np.cumsum(np.bincount(sizes, minlength=self._capacity + 1))
        self._next = np.append(0, self._after[:-1])

    def _take(self, wanted: AnyInts) -> tuple[AnyInts, AnyInts]:
        """Items of the pool of the wanted sizes, as long as there are some.

        Returns:
            The wishes that are met, and the places in the pool of what meets them.
        """
        order = stable_order(wanted, self._capacity)
        size = wanted[order]
        at = self._next[size] + np.arange(len(size)) - np.searchsorted(size, size)
        met = at < self._after[size]
        np.add.at(self._next, size[met], 1)
        return order[met], self._by_size[at[met]]


def scrambled(count: int) -> Ints:
    """A fixed order of `count` things in which neighbours lie far apart."""
    golden = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.argsort((golden >> np.uint64(48)).astype(np.uint16), kind="stable")
