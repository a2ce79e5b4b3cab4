"""Tables: parquet files, and the Arrow files that Hugging Face's `save_to_disk` writes.

What can be skipped to is called a group here: a row group of parquet, a record batch of Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from jaxdata.convert.inputs import InputFile, reading

__all__ = ["Table", "in_pieces", "open_table", "packed", "unpacked_batches"]

_ROWS = 1_024
_BATCH_BYTES = 2**24  # a batch of long texts has fewer rows
_BUFFER = 2**20


class Table:
    """An open table.

    Args:
        file: a parquet or Arrow file of pyarrow's.
        sizes: from column names to the bytes of them in each group, before compression.
        read: from the numbers of groups, and column names, to record batches.
    """

    def __init__(
        self,
        schema: Any,
        sizes: Callable[[Sequence[str] | None], list[int]],
        read: Callable[[range, Sequence[str] | None], Iterator[Any]],
    ) -> None:
        self.schema = schema
        self.sizes = sizes
        self._read = read

    def batches(
        self, columns: Sequence[str] | None, start: int = 0, stop: int | None = None
    ) -> Iterator[Any]:
        """Give groups [start, stop) as record batches of some columns, None for all of them."""
        groups = range(start, len(self.sizes([])) if stop is None else stop)
        return self._read(groups, columns)


@contextmanager
def open_table(file: InputFile) -> Iterator[Table]:
    """Open a table; what is wrong with it, then or while it is read, is an InputError."""
    with reading(file.path):
        if file.kind.format == "parquet":
            import pyarrow.parquet as pq

            # pyarrow's own setting takes all of a row group into memory, however large.
            with pq.ParquetFile(file.path, buffer_size=_BUFFER, pre_buffer=False) as parquet:
                yield _parquet(parquet)
        else:
            import pyarrow as pa

            with pa.memory_map(str(file.path)) as mapped:
                yield _arrow(mapped)


def _parquet(parquet: Any) -> Table:
    metadata = parquet.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = [metadata.schema.column(number).path for number in range(metadata.num_columns)]

    def sizes(columns: Sequence[str] | None) -> list[int]:
        wanted = [number for number, leaf in enumerate(leaves) if _is_within(leaf, columns)]
        return [sum(group.column(n).total_uncompressed_size for n in wanted) for group in groups]

    def read(numbers: range, columns: Sequence[str] | None) -> Iterator[Any]:
        names = None if columns is None else list(columns)
        for number in numbers:
            average = sizes(columns)[number] // max(1, groups[number].num_rows)
            rows = max(1, min(_ROWS, _BATCH_BYTES // max(1, average)))
            yield from parquet.iter_batches(rows, row_groups=[number], columns=names)

    return Table(parquet.schema_arrow, sizes, read)


def _is_within(leaf: str, columns: Sequence[str] | None) -> bool:
    """Tell whether a leaf of the schema belongs to one of some columns."""
    return columns is None or any(f"{leaf}.".startswith(f"{column}.") for column in columns)


def _arrow(mapped: Any) -> Table:
    import pyarrow as pa

    is_file = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    reader = pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)
    schema = reader.schema

    def every() -> Iterator[Any]:
        mapped.seek(0)
        if not is_file:
            yield from pa.ipc.open_stream(mapped)
            return
        yield from map(reader.get_batch, range(reader.num_record_batches))

    def chosen(batch: Any, columns: Sequence[str] | None) -> Any:
        return batch if columns is None else batch.select(_top(schema, columns))

    def sizes(columns: Sequence[str] | None) -> list[int]:
        return [chosen(batch, columns).nbytes for batch in every()]

    def read(numbers: range, columns: Sequence[str] | None) -> Iterator[Any]:
        # The file is mapped: passing over a batch reads nothing of it.
        for batch in islice(every(), numbers.start, numbers.stop):
            yield from in_pieces(_sound(chosen(batch, columns)), _BATCH_BYTES)

    return Table(schema, sizes, read)


def _sound(batch: Any) -> Any:
    """Check that a batch's offsets stay in its buffers: pyarrow itself trusts the file.

    Strings are looked at as bytes, so that one that is no UTF-8 costs its row alone.
    """
    import pyarrow as pa

    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    columns = [c.cast(as_bytes[c.type]) if c.type in as_bytes else c for c in batch.columns]
    pa.RecordBatch.from_arrays(columns, names=batch.schema.names).validate(full=True)
    return batch


def _top(schema: Any, columns: Sequence[str]) -> list[str]:
    """The columns that hold fields, which may be dotted; each once."""
    tops = (column if column in schema.names else column.split(".")[0] for column in columns)
    return list(dict.fromkeys(tops))


def in_pieces(batch: Any, size: int) -> Iterator[Any]:
    """Give a batch in pieces of about `size` bytes, and no more rows than a batch has."""
    average = batch.nbytes // max(1, batch.num_rows)
    rows = max(1, min(_ROWS, size // max(1, average)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def packed(batches: Sequence[Any]) -> bytes:
    """Some batches as bytes, for another process."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpacked_batches(data: bytes) -> Iterator[Any]:
    """The batches that :func:`packed` packed."""
    import pyarrow as pa

    yield from pa.ipc.open_stream(data)
