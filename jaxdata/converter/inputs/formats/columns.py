"""The columns of tables: what they hold, and their rows as records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.converter.inputs.raw_records import Unreadable, too_long
from jaxdata.converter.inputs.units import ReadSettings


def column_of(schema: Any, key: str) -> Any:
    """The type of the field that a key names, None where there is none."""
    import pyarrow as pa

    names = [key] if key in schema.names else key.split(".")
    kind: Any = pa.struct(list(schema))
    for name in names:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def rows(batch: Any, settings: ReadSettings) -> Iterator[dict[str, Any] | Unreadable]:
    """Give the rows of a record batch as records."""
    names = batch.schema.names
    values = [
        (_arrays(column) if name in settings.arrays else None)
        or _values(column, settings.record_bytes)
        for name, column in zip(names, batch.columns, strict=True)
    ]
    for row in zip(*values, strict=True):
        bad = next((value for value in row if isinstance(value, Unreadable)), None)
        yield bad or dict(zip(names, row, strict=True))


def _arrays(column: Any) -> list[NDArray[Any] | None] | None:
    """The lists of a column as views of one array; None if it has others, or a number is null."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    edges = column.offsets.to_numpy()
    numbers = column.values.slice(edges[0], edges[-1] - edges[0])  # the column may be a slice
    if numbers.null_count or not (
        pa.types.is_primitive(numbers.type) and not pa.types.is_temporal(numbers.type)
    ):
        return None
    every = numbers.to_numpy(zero_copy_only=False)
    pairs = pairwise((edges - edges[0]).tolist())
    views: list[NDArray[Any] | None] = [every[start:stop] for start, stop in pairs]
    for number in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
        views[number] = None
    return views


def _values(column: Any, limit: int) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type in string_types():
        # pyarrow does not check UTF-8, and would fail on a whole batch for one bad row.
        return [_text(data, limit) for data in column.cast(pa.large_binary()).to_pylist()]
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # one of them
        values = [_value(one) for one in column]
    return values


def _text(data: bytes | None, limit: int) -> str | Unreadable | None:
    if data is None:
        return None
    if len(data) > limit:
        return too_long(data, limit)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Unreadable("not UTF-8", data)


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return Unreadable("not UTF-8", None)
    except (ValueError, OverflowError) as error:
        return Unreadable(f"a value that Python cannot hold ({type(error).__name__})", None)


def string_types() -> tuple[Any, ...]:
    """The types of columns of text."""
    import pyarrow as pa

    return pa.string(), pa.large_string(), pa.string_view()
