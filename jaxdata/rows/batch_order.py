"""The order of rows inside a batch.

Rows that lie in lanes are sorted by their lane, as a fraction of the lanes of their source: then a
host of any number of hosts reads the same few lanes step after step. The set of rows of a step
does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdata.ragged import Ints

Key = NDArray[np.uint64]
_MASKS = [
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F))
]


class KeyedRows(Protocol):
    """Rows that know their place in a batch."""

    @property
    def lanes(self) -> int:
        """Most lanes of a source; 1: the rows of a batch keep their order."""
        ...

    def batch_key(self, rows: Ints) -> Key:
        """What sorts some rows in a batch, (rows,): each row's lane, as a fraction of 2**64.

        Rows of sources without lanes are spread evenly.
        """
        ...


def reversed_bits(numbers: Ints) -> NDArray[np.uint64]:
    """Numbers with their 64 bits reversed.

    >>> (reversed_bits(np.array([0, 1, 2, 3])) >> np.uint64(62)).tolist()
    [0, 2, 1, 3]
    """
    value = numbers.astype(np.uint64)
    for shift, mask in _MASKS:
        value = ((value >> shift) & mask) | ((value & mask) << shift)
    return value.byteswap()


def cyclic_key(rows: Ints, epoch: Ints | int, lanes: Ints | int) -> Key:
    """Keys of rows of which row *j* of an epoch is in lane `bitreverse(j mod lanes)`.

    Args:
        rows: numbers of rows.
        epoch: rows of an epoch, of each row's source or of all.
        lanes: number of lanes, as `epoch`; a power of two.
    """
    return reversed_bits(np.where(np.equal(lanes, 1), rows, rows % epoch % lanes))


def joint_key(tables: NDArray[Any], rows: Ints, key_of: Callable[[int, Ints], Key]) -> Key:
    """Keys of rows that several tables hold.

    Args:
        tables: (rows,) number of the table that holds each row.
        rows: (rows,) its number there.
        key_of: finds `KeyedRows.batch_key` of rows of one table.
    """
    found = np.empty(len(rows), np.uint64)
    for number in np.unique(tables).tolist():
        mine = np.flatnonzero(tables == number)
        found[mine] = key_of(number, rows[mine])
    return found


def in_batch_order(keyed: KeyedRows, rows: Ints) -> Ints:
    """The rows of a batch, given in increasing order, as the batch holds them."""
    if keyed.lanes == 1:
        return rows
    return rows[np.argsort(keyed.batch_key(rows), kind="stable")]
