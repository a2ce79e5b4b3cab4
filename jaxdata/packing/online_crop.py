"""Online cropping: items are placed in the order given, and one is cropped where a row ends.

A Python loop, for few items; rows mix sizes as the order does.
"""

from __future__ import annotations

from bisect import bisect_left

from jaxdata.packing.windows import RowItems
from jaxdata.ragged import AnyInts


def crop_online(sizes: AnyInts, capacity: int, limit: int) -> tuple[RowItems, AnyInts]:
    """Fill row by row with the next item; when it does not fit, crop the one that loses least.

    Args:
        sizes: (items,) slots of each, 1 to `capacity`.
        capacity: slots of a row.
        limit: most items of a row.

    Returns:
        The rows, full but for the last and those of `limit` items, and (items,) the slots that are
        left of each item.

    >>> import numpy as np
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
