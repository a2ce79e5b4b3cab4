"""Plain records: the arrays of a row, end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from jaxdata.materializer.formats.contract import RecordFormat, native, row_dtype, rows_in
from jaxdata.materializer.row_manifest import Field
from jaxdata.rows.table import Batch


def _encode(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
    rows = np.empty(rows_in(batch), row_dtype(fields))
    for name, _, _ in fields:
        rows[name] = batch[name]
    return (row.tobytes() for row in rows)


def _decode(record: bytes, fields: Sequence[Field]) -> Batch:
    (row,) = np.frombuffer(bytearray(record), row_dtype(fields))
    return {name: native(row[name]) for name, _, _ in fields}


FORMAT = RecordFormat(_encode, _decode)
