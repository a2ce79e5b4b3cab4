"""The order of rows inside a batch.

Rows that lie in lanes are sorted by their lane, as a fraction of the lanes of their source: then a
host of any number of hosts reads the same few lanes step after step. The set of rows of a step
does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.ragged import Ints
from jaxdata.rows.table import RowTable

Key = NDArray[np.uint64]
_MASKS = [
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F))
]


def reversed_bits(numbers: Ints) -> NDArray[np.uint64]:
    """Numbers with their 64 bits reversed.

    >>> (reversed_bits(np.array([0, 1, 2, 3])) >> np.uint64(62)).tolist()
    [0, 2, 1, 3]
    """
    value = numbers.astype(np.uint64)
    for shift, mask in _MASKS:
        value = ((value >> shift) & mask) | ((value & mask) << shift)
    return value.byteswap()


def joint_key(
    tables: NDArray[Any], rows: Ints, key_of: Callable[[int, Ints], Key | None]
) -> Key | None:
    """Keys of rows that several tables hold; where some have lanes, the others are spread evenly.

    Args:
        tables: (rows,) number of the table that holds each row.
        rows: (rows,) its number there.
        key_of: finds `RowTable.batch_key` of rows of one table.
    """
    found, any_lanes = reversed_bits(rows), False
    for number in np.unique(tables).tolist():
        mine = np.flatnonzero(tables == number)
        key = key_of(number, rows[mine])
        if key is not None:
            found[mine], any_lanes = key, True
    return found if any_lanes else None


def in_batch_order(table: RowTable, rows: Ints) -> Ints:
    """The rows of a batch, given in increasing order, as the batch holds them."""
    key = table.batch_key(rows) if table.lanes > 1 else None
    return rows if key is None else rows[np.argsort(key, kind="stable")]
