"""The columns of tables: whether they hold what is asked for, and their rows as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxdata.convert.inputs import InputFile
from jaxdata.convert.splitting import Unreadable, too_long
from jaxdata.convert.tables import open_table
from jaxdata.errors import InputError

__all__ = ["check_columns", "check_strings", "rows"]


def check_columns(file: InputFile, keys: Sequence[str], options: str = "--text-key") -> None:
    """Raise InputError unless a table has a column for each key; `options` name keys."""
    with open_table(file) as table:
        schema = table.schema
    for key in keys:
        if _column_of(schema, key) is None:
            raise InputError(
                f"{file.path} has no column {key!r}; it has "
                f"{', '.join(map(repr, schema.names))}: name one of these with {options}"
            )


def check_strings(file: InputFile, keys: Sequence[str]) -> None:
    """Raise InputError unless the columns of some keys are of strings."""
    import pyarrow as pa

    check_columns(file, keys)
    with open_table(file) as table:
        kinds = {key: _column_of(table.schema, key) for key in keys}
    for key, kind in kinds.items():
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind not in (*_strings(), pa.binary(), pa.large_binary()):
            raise InputError(f"column {key!r} of {file.path} is {kind}; expected strings")


def _column_of(schema: Any, key: str) -> Any:
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
    if column.type in _strings():
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


def _strings() -> tuple[Any, ...]:
    import pyarrow as pa

    return pa.string(), pa.large_string(), pa.string_view()
