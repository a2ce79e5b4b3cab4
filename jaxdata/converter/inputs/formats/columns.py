"""The columns of tables: what they hold, and their rows as records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxdata.converter.inputs.raw_records import Unreadable, too_long


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


def rows(batch: Any, limit: int) -> Iterator[dict[str, Any] | Unreadable]:
    """Give the rows of a record batch as records."""
    names = batch.schema.names
    values = [_values(column, limit) for column in batch.columns]
    for row in zip(*values, strict=True):
        bad = next((value for value in row if isinstance(value, Unreadable)), None)
        yield bad or dict(zip(names, row, strict=True))


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
