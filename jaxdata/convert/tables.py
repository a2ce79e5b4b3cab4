"""The text column of parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxdata.convert.inputs import InputFile, reading
from jaxdata.errors import InputError

__all__ = ["check_column", "group_sizes", "rows"]

_ROWS = 1_024


def check_column(file: InputFile, key: str) -> None:
    """Raise InputError unless a table has a column `key` of strings."""
    import pyarrow as pa

    with reading(file), _open(file) as table:
        schema = table.schema_arrow
    if key not in schema.names:
        raise InputError(
            f"{file.path} has no column {key!r}; it has {', '.join(map(repr, schema.names))}: "
            "name one of these with --text-key"
        )
    kind = schema.field(key).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())
    if kind not in texts:
        raise InputError(f"column {key!r} of {file.path} is {kind}; expected strings")


def group_sizes(file: InputFile, columns: Sequence[str]) -> list[int]:
    """Return the bytes of some columns in each row group, before compression."""
    with reading(file), _open(file) as table:
        metadata = table.metadata
        leaves = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        wanted = [i for i, leaf in enumerate(leaves) if _is_within(leaf, columns)]
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return [sum(group.column(i).total_uncompressed_size for i in wanted) for group in groups]


def rows(
    file: InputFile, columns: Sequence[str], start: int, stop: int | None
) -> Iterator[dict[str, Any]]:
    """Give the rows of row groups [start, stop), of some columns; strings are bytes as they lie.

    pyarrow does not check UTF-8, and would fail on a whole batch for one bad row.
    """
    with reading(file), _open(file) as table:
        groups = list(range(start, table.metadata.num_row_groups if stop is None else stop))
        for batch in table.iter_batches(_ROWS, row_groups=groups, columns=list(columns)):
            names = batch.schema.names
            values = [_values(batch.column(number)) for number in range(len(names))]
            for row in zip(*values, strict=True):
                yield dict(zip(names, row, strict=True))


def _values(column: Any) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type in (pa.string(), pa.large_string(), pa.string_view()):
        column = column.cast(pa.large_binary())
    values: list[Any] = column.to_pylist()
    return values


def _is_within(leaf: str, columns: Sequence[str]) -> bool:
    """Tell whether a leaf of the schema belongs to one of some columns."""
    return any(f"{leaf}.".startswith(f"{column}.") for column in columns)


def _open(file: InputFile) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(file.path)
