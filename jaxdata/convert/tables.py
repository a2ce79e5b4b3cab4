"""The text column of parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxdata.convert.inputs import InputFile, reading
from jaxdata.errors import InputError

__all__ = ["check_column", "group_sizes", "values"]

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


def group_sizes(file: InputFile, key: str) -> list[int]:
    """Return the bytes of the text column in each row group, before compression."""
    with reading(file), _open(file) as table:
        metadata = table.metadata
        leaves = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        column = leaves.index(key)
        return [
            metadata.row_group(group).column(column).total_uncompressed_size
            for group in range(metadata.num_row_groups)
        ]


def values(file: InputFile, key: str, start: int, stop: int | None) -> Iterator[bytes | None]:
    """Give the text column of row groups [start, stop), a value a row, as it lies in the file."""
    import pyarrow as pa

    with reading(file), _open(file) as table:
        groups = list(range(start, table.metadata.num_row_groups if stop is None else stop))
        for batch in table.iter_batches(_ROWS, row_groups=groups, columns=[key]):
            column = batch.column(0)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            # As bytes: pyarrow does not check UTF-8, and fails on a whole batch for one bad row.
            yield from column.cast(pa.large_binary()).to_pylist()


def _open(file: InputFile) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(file.path)
