"""A stock of items by size, from which many rows take what fits them best at once."""

from __future__ import annotations

import numpy as np

from jaxdata.ragged import AnyInts, Ints, stable_order


class SizeStock:
    """Items, sorted by key: the size of an item in a block (`PooledRows.keys`).

    Args:
        keys: (items,) the key of each.
        items: (items,) their numbers.
        largest: no key, and no wish, is larger.
    """

    def __init__(self, keys: AnyInts, items: Ints, largest: int) -> None:
        order = stable_order(keys, largest)
        self._largest = largest
        # The first is no item, and below all others.
        lowest = np.full(1, np.iinfo(keys.dtype).min, keys.dtype)
        self._keys: AnyInts = np.concatenate([lowest, keys[order]])
        self._items: Ints = np.append(-1, items[order])

    def take(self, wanted: AnyInts, slack: AnyInts | int) -> tuple[Ints, Ints, Ints]:
        """Take for each wish the item of the wanted key, or the nearest one below.

        Of wishes whose nearest item is the same, the first takes it, the next the one below, as far
        as that is not the nearest of another wish; all others may ask again.

        Args:
            wanted: (wishes,) keys.
            slack: the key may be so much lower; a number, or one for each wish.

        Returns:
            The wishes that can be met at all; those that are met; and the items that they get.
        """
        order: Ints = stable_order(wanted, self._largest).astype(np.int64, copy=False)
        most = wanted[order]
        least = most - (slack if isinstance(slack, int) else slack[order])
        below = np.searchsorted(self._keys, most, side="right") - 1  # 0: there is none
        able = self._keys[below] >= least
        if not able.all():
            order, below, least = order[able], below[able], least[able]
        if not len(order):
            return order, order, order
        first = np.flatnonzero(np.append(True, below[1:] != below[:-1]))
        wishes = np.diff(first, append=len(below))
        turn = np.arange(len(below)) - np.repeat(first, wishes)
        at = np.maximum(below - turn, 0)
        met = at > np.repeat(np.append(0, below[first[1:] - 1]), wishes)  # the nearest of others
        met &= self._keys[at] >= least
        return order, order[met], self._without(at[met])

    def _without(self, at: Ints) -> Ints:
        """Remove some items, and return them."""
        taken: Ints = self._items[at]
        stay = np.ones(len(self._items), bool)
        stay[at] = False
        self._keys, self._items = self._keys[stay], self._items[stay]
        return taken
