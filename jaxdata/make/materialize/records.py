"""How a row becomes a record, and a record a row again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.make.materialize.rowset import Field
from jaxdata.rows.table import Batch

__all__ = ["RECORD_FORMATS", "RecordFormat", "fields_of", "row_bytes"]


class RecordFormat(NamedTuple):
    """A way to write rows down."""

    encode: Callable[[Batch, Sequence[Field]], Iterator[bytes]]
    """The records of a batch, one a row."""
    decode: Callable[[bytes, Sequence[Field]], Batch]
    """The row of a record."""


def fields_of(batch: Batch) -> list[Field]:
    """Names, dtypes and shapes of the arrays of a row, little-endian."""
    return [
        (name, array.dtype.newbyteorder("<").str, array.shape[1:]) for name, array in batch.items()
    ]


def row_bytes(fields: Sequence[Field]) -> int:
    """Bytes of the arrays of a row."""
    return _dtype(fields).itemsize


def _encode_plain(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
    """The arrays of a row one behind the other."""
    rows = np.empty(_size(batch), _dtype(fields))
    for name, _, _ in fields:
        rows[name] = batch[name]
    return (row.tobytes() for row in rows)


def _decode_plain(record: bytes, fields: Sequence[Field]) -> Batch:
    row = np.frombuffer(bytearray(record), _dtype(fields))[0]
    return {name: _native(row[name]) for name, _, _ in fields}


def _encode_example(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
    from jaxdata.make.materialize.examples import encode_example

    for number in range(_size(batch)):
        row = {name: batch[name][number] for name, _, _ in fields}
        yield encode_example(row | _column_of_maxtext(row))


def _column_of_maxtext(row: Batch) -> Batch:
    """The tokens of a row in MaxText's layout as it reads them: one column, without padding.

    It makes inputs and targets of that, and its own padding; a column called `inputs` it deletes.
    """
    if "inputs_segmentation" not in row:
        return {}
    return {"text": row["inputs"][row["inputs_segmentation"] > 0]}


def _decode_example(record: bytes, fields: Sequence[Field]) -> Batch:
    from jaxdata.make.materialize.examples import decode_example

    row = decode_example(record)
    return {name: _native(row[name].astype(dtype).reshape(shape)) for name, dtype, shape in fields}


RECORD_FORMATS = {
    "plain": RecordFormat(_encode_plain, _decode_plain),
    "tf_example": RecordFormat(_encode_example, _decode_example),
}


def _size(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _dtype(fields: Sequence[Field]) -> np.dtype[Any]:
    return np.dtype([(name, dtype, tuple(shape)) for name, dtype, shape in fields])


def _native(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array, array.dtype.newbyteorder("="))
