"""A record format: how a row becomes a record, and a record a row again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.materializer.row_manifest import Field
from jaxdata.rows.table import Batch


class RecordFormat(NamedTuple):
    """One way to write rows as records."""

    encode: Callable[[Batch, Sequence[Field]], Iterator[bytes]]
    """The records of a batch, one a row."""
    decode: Callable[[bytes, Sequence[Field]], Batch]
    """The row of a record."""


def fields_of(batch: Batch) -> list[Field]:
    """Names, dtypes and shapes of the arrays of a row, little-endian.

    Constants of a batch belong to no row, and are not written.

    Raises:
        InputError: a layout made something else than one row, by names, of a batch of one.
    """
    named = isinstance(batch, dict)
    arrays = {name: array for name, array in batch.items() if np.ndim(array)} if named else {}
    for name, array in arrays.items() or [("", None)]:
        if array is None or len(array) != 1:
            what = f"{name!r} of shape {array.shape}" if array is not None else type(batch).__name__
            raise InputError(
                f"rows cannot be written in this layout: of one row it makes {what}, expected a "
                "dict of arrays with that row alone"
            )
    return [
        (name, array.dtype.newbyteorder("<").str, array.shape[1:]) for name, array in arrays.items()
    ]


def row_bytes(fields: Sequence[Field]) -> int:
    """Bytes of the arrays of a row."""
    return row_dtype(fields).itemsize


def row_dtype(fields: Sequence[Field]) -> np.dtype[Any]:
    """The structured dtype of a row, without padding."""
    return np.dtype([(name, dtype, tuple(shape)) for name, dtype, shape in fields])


def rows_in(batch: Batch) -> int:
    """Rows of a batch."""
    return len(next(iter(batch.values())))


def native(array: NDArray[Any]) -> NDArray[Any]:
    """The same array in the byte order of this machine."""
    return np.asarray(array, array.dtype.newbyteorder("="))
