"""Online best fit: items are placed in the order given, each in the fullest row that has room.

`crop_online` fills row by row instead, and crops. Python loops, for few items; rows mix sizes as
the order does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

import numpy as np

from jaxdata.packing.random_rows import scrambled
from jaxdata.packing.windows import RowItems
from jaxdata.ragged import AnyInts

_PLACED = 1024
"""items that may be placed in looking for a better order"""


def assign_online(sizes: AnyInts, capacity: int, limit: int) -> RowItems:
    """Place items larger than half a row, largest first, then the others in the order given.

    Of several orders of the others, the first that needs the fewest rows is taken.
    """
    large = np.where(2 * sizes > capacity, sizes, 0)
    least = -(-int(sizes.sum(dtype=np.int64)) // capacity)
    order, found = np.arange(len(sizes)), list[RowItems]()
    for _ in range(max(1, _PLACED // max(len(sizes), 1))):
        by_size = order[np.argsort(-large[order], kind="stable")]
        rows = _best_fit(sizes[by_size].tolist(), capacity, limit)
        found.append(RowItems.of_lists(rows).numbered(by_size))
        if found[-1].rows <= least:
            break
        order = order[scrambled(len(order))]
    return min(found, key=lambda each: each.rows)


def _best_fit(sizes: list[int], capacity: int, limit: int) -> list[list[int]]:
    rows: list[list[int]] = []
    open_rows: defaultdict[int, list[list[int]]] = defaultdict(list)  # by room
    rooms: list[int] = []
    for item, size in enumerate(sizes):
        at = bisect_left(rooms, size)
        if at < len(rooms):
            room = rooms[at]
            row = open_rows[room].pop()
            if not open_rows[room]:
                del open_rows[room], rooms[at]
        else:
            room, row = capacity, []
            rows.append(row)
        row.append(item)
        if room > size and len(row) < limit:
            if room - size not in open_rows:
                insort(rooms, room - size)
            open_rows[room - size].append(row)
    return rows


def crop_online(sizes: AnyInts, capacity: int, limit: int) -> tuple[RowItems, AnyInts]:
    """Fill row by row with the next item; when it does not fit, crop the one that loses least.

    Args:
        sizes: (items,) slots of each, 1 to `capacity`.
        capacity: slots of a row.
        limit: most items of a row.

    Returns:
        The rows, full but for the last and those of `limit` items, and (items,) the slots that are
        left of each item.

    >>> rows, slots = crop_online(np.array([5, 6, 2, 4, 9]), 9, 9)
    >>> rows.items.tolist(), slots.tolist()
    ([0, 3, 1, 2, 4], [5, 6, 2, 4, 1])
    """
    given = sizes.tolist()
    slots, following = sizes.copy(), list(range(len(given) - 1, -1, -1))
    waiting = sorted((size, item) for item, size in enumerate(given))
    rows: list[list[int]] = []
    while waiting:
        row, room = list[int](), capacity
        while room and waiting and len(row) < limit:
            item = following[-1]
            if given[item] > room:
                item = waiting[bisect_left(waiting, (room, -1))][1]
            row.append(item)
            slots[item] = min(given[item], room)
            room -= int(slots[item])
            del waiting[bisect_left(waiting, (given[item], item))]
            following.remove(item)
        rows.append(row)
    return RowItems.of_lists(rows), slots
