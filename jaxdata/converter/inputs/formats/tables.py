"""Tables: what they have in common, their rows as records, and parquet files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.formats.base import Format, format_named, register
from jaxdata.converter.inputs.parsing import Raw, Unreadable, reading, too_long
from jaxdata.converter.inputs.streams import FREE, expands_too_much
from jaxdata.converter.inputs.units import Block, FilePart, ReadSettings

if TYPE_CHECKING:
    from jaxdata.converter.inputs.files import InputFile


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


_ROWS = 1_024
BATCH_BYTES = 2**24  # a batch of long texts has fewer rows
_BUFFER = 2**20


@dataclass(frozen=True)
class Table:
    """An open table; column names may be None for all columns.

    Attributes:
        schema: pyarrow's.
        sizes: from column names to the bytes of them in each group, before compression.
        read: from the numbers of groups, column names, and the most bytes that may be in memory,
            to record batches.
    """

    schema: Any
    sizes: Callable[[Sequence[str] | None], list[int]]
    read: Callable[[range, Sequence[str] | None, int], Iterator[Any]]

    def batches(
        self, file: InputFile, settings: ReadSettings, start: int = 0, stop: int | None = None
    ) -> Iterator[Any]:
        """Give groups [start, stop) as record batches of the columns that are read.

        Raises:
            InputError: they are larger than the expansion limit of the file allows.
        """
        groups = range(start, len(self.sizes([])) if stop is None else stop)
        most, size = _most_bytes(file, settings), 0
        for batch in self.read(groups, settings.columns, most):
            size += sum(map(_bytes_of, batch.columns))
            if size > most:
                raise expands_too_much(file.where, settings.expansion)
            yield batch


class TableFormat(Format):
    """A table, cut between groups; a huge group is read here."""

    table = True
    magic: bytes
    """What a file begins and ends with."""

    @abstractmethod
    def open(self, file: InputFile) -> AbstractContextManager[Table]:
        """Open a file; what is wrong with it, then or while it is read, is an InputError."""

    def claims(self, head: bytes, tail: bytes) -> bool:
        return head.startswith(self.magic) and tail.endswith(self.magic)

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[Any]:
        raise AssertionError(f"{self.name} is never read as a stream: {stream} {settings}")

    def cut(
        self, number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
    ) -> Iterator[Block]:
        """Runs of groups, each closed when its text reaches `unit_bytes`."""
        with self.open(file) as table:
            sizes = table.sizes(settings.columns)
            if sum(sizes) > _most_bytes(file, settings):
                raise expands_too_much(file.where, settings.expansion)
            share = file.size / max(1, sum(sizes))
            start = held = 0
            for group, size in enumerate(sizes):
                if size >= 2 * unit_bytes:
                    if group > start:
                        yield (FilePart(number, start, group),), int(held * share), held
                    yield from _cut_group(number, file, table, group, settings, unit_bytes, share)
                    start, held = group + 1, 0
                    continue
                held += size
                if held >= unit_bytes or group + 1 == len(sizes):
                    yield (FilePart(number, start, group + 1),), int(held * share), held
                    start, held = group + 1, 0

    def read_part(self, file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Raw]:
        with self.open(file) as table:
            for batch in table.batches(file, settings, part.start, part.stop):
                yield from rows(batch, settings)

    def read_data(self, data: bytes, settings: ReadSettings) -> Iterator[Raw]:
        import pyarrow as pa

        for batch in pa.ipc.open_stream(data):  # of a huge group, see `packed`
            yield from rows(batch, settings)


class Parquet(TableFormat):
    """Parquet files."""

    name = "parquet"
    suffixes = ("parquet",)
    magic = b"PAR1"

    @contextmanager
    def open(self, file: InputFile) -> Iterator[Table]:
        import pyarrow.parquet as pq

        # pyarrow's own setting takes all of a row group into memory, however large.
        with (
            reading(file.where),
            file.open() as opened,
            pq.ParquetFile(
                opened if file.is_object else file.path, buffer_size=_BUFFER, pre_buffer=False
            ) as parquet,
        ):
            yield _parquet(parquet)


def check_columns(file: InputFile, keys: Sequence[str], options: str = "--text-key") -> None:
    """Raise InputError unless a table has a column for each key; `options` name keys."""
    with _open(file) as table:
        schema = table.schema
    for key in keys:
        if column_of(schema, key) is None:
            raise InputError(
                f"{file.where} has no column {key!r}; it has "
                f"{', '.join(map(repr, schema.names))}: name one of these with {options}"
            )


def check_strings(file: InputFile, keys: Sequence[str]) -> None:
    """Raise InputError unless the columns of some keys are of strings."""
    import pyarrow as pa

    check_columns(file, keys)
    with _open(file) as table:
        kinds = {key: column_of(table.schema, key) for key in keys}
    for key, kind in kinds.items():
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind not in (*string_types(), pa.binary(), pa.large_binary()):
            raise InputError(f"column {key!r} of {file.where} is {kind}; expected strings")


def list_type(file: InputFile, key: str) -> str:
    """The numpy type of the numbers of a column of lists; raises InputError if it has none."""
    import pyarrow as pa

    check_columns(file, [key], "--keep-per-token")
    with _open(file) as table:
        kind = column_of(table.schema, key)
    lists = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    if any(each(kind) for each in lists):
        value = kind.value_type
        if pa.types.is_integer(value) or pa.types.is_floating(value):
            return str(np.dtype(value.to_pandas_dtype()).name)
    raise InputError(f"column {key!r} of {file.where} is {kind}; expected lists of numbers")


def _bytes_of(column: Any) -> int:
    """The size of a column; of a dictionary's values as often as they are there."""
    import pyarrow as pa

    decoded = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    size: int = decoded.nbytes
    return size


def _most_bytes(file: InputFile, settings: ReadSettings) -> int:
    """What a file may be in memory."""
    return max(FREE, settings.expansion * file.size)


def _open(file: InputFile) -> AbstractContextManager[Table]:
    table = format_named(file.kind.format)
    assert isinstance(table, TableFormat)
    return table.open(file)


def _parquet(parquet: Any) -> Table:
    metadata = parquet.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = [metadata.schema.column(number).path for number in range(metadata.num_columns)]

    def sizes(columns: Sequence[str] | None) -> list[int]:
        wanted = [
            number
            for number, leaf in enumerate(leaves)
            if columns is None or any(f"{leaf}.".startswith(f"{name}.") for name in columns)
        ]
        return [sum(group.column(n).total_uncompressed_size for n in wanted) for group in groups]

    def read(numbers: range, columns: Sequence[str] | None, most: int) -> Iterator[Any]:
        names = None if columns is None else list(columns)
        for number in numbers:
            size = sizes(columns)[number]
            average = size // max(1, groups[number].num_rows)
            # A value of the dictionary may be as large as the group, and be that of every row.
            rows = max(1, min(_ROWS, BATCH_BYTES // max(1, average), most // max(1, size)))
            yield from parquet.iter_batches(rows, row_groups=[number], columns=names)

    return Table(parquet.schema_arrow, sizes, read)


def _cut_group(
    number: int,
    file: InputFile,
    table: Table,
    group: int,
    settings: ReadSettings,
    unit_bytes: int,
    share: float,
) -> Iterator[Block]:
    """Read a group here: workers cannot begin in the middle of one."""
    read = table.batches(file, settings, group, group + 1)
    yield from cut_batches(number, group, read, unit_bytes, share)


def cut_batches(
    number: int, group: int, read: Iterable[Any], unit_bytes: int, share: float
) -> Iterator[Block]:
    """Give the batches of a group in blocks of about `unit_bytes`, each with its rows in it."""
    batches = []
    size = 0
    for batch in (piece for whole in read for piece in in_slices(whole, unit_bytes)):
        batches.append(batch)
        size += batch.nbytes
        if size >= unit_bytes:
            yield (FilePart(number, group, data=packed(batches)),), int(size * share), size
            batches, size = [], 0
    if batches:
        yield (FilePart(number, group, data=packed(batches)),), int(size * share), size


def in_slices(batch: Any, size: int) -> Iterator[Any]:
    """Give a batch in slices of about `size` bytes, and no more rows than a batch has."""
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


register(Parquet())
