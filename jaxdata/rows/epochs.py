"""Indices beyond an epoch, and epochs on end, as `grain.MapDataset` counts them."""

from __future__ import annotations

import operator
import sys
from typing import Any, SupportsIndex

from jaxdata.errors import InputError


def row_number(index: SupportsIndex, rows: int) -> int:
    """The row at an index; a negative one counts from the end of an epoch of `rows` rows.

    >>> [row_number(index, 5) for index in (3, 8, -1, -6)]
    [3, 8, 4, 4]
    """
    row = whole_index(index)
    return row % max(rows, 1) if row < 0 else row


def whole_index(index: SupportsIndex) -> int:
    """An index as an integer; raises IndexError if no array could have it."""
    row = operator.index(index)
    if abs(row) > sys.maxsize:
        raise IndexError("row index out of range: it does not fit in 64 bits")
    return row


def rows_of_epochs(rows: int, num_epochs: Any) -> int:
    """The rows of several epochs of `rows` rows each; None for epochs without end.

    >>> rows_of_epochs(5, 3), rows_of_epochs(5, None) > 10**18
    (15, True)
    """
    if num_epochs is None:
        return sys.maxsize if rows else 0
    if not isinstance(num_epochs, int) or num_epochs < 1:
        raise InputError(
            f"repeat({num_epochs!r}): expected a whole number of epochs of at least 1, or None for "
            "epochs without end; mix(..., epochs={name: 1.5}) takes fractions"
        )
    if rows * num_epochs > sys.maxsize:
        raise InputError(f"repeat({num_epochs}) of {rows:,} rows: expected fewer than 2^63 rows")
    return rows * num_epochs
