"""Tables of columns: parquet, and Arrow files as Hugging Face's `save_to_disk` writes them.

Both are runs of groups: row groups, record batches. A file is cut between these.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice, pairwise
from operator import attrgetter
from typing import IO, Any, NamedTuple

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyArray, in_runs
from jaxdata.converter.inputs.files import Blocks, FilePart, InputFile, ReadSettings
from jaxdata.converter.inputs.parsing import Raw, Unreadable, reading, too_long
from jaxdata.converter.inputs.reading import SplittableFormat, reader_of, register
from jaxdata.converter.inputs.streams import EXPANSION, FREE, expands_too_much

_ROWS = 1_024
_BATCH_BYTES = 2**24  # a batch of long texts has fewer rows
_BUFFER = 2**20
_ENDLESS = 2**62


class Group(NamedTuple):
    """A row group or a record batch: its bytes before compression, and what reads it in slices."""

    size: int
    read: Callable[[], Iterable[Any]]


class TableFormat(SplittableFormat):
    """A table, cut between groups; a huge group is read here, as workers cannot begin in it."""

    table = True
    streamed: bool = False
    """Whether an object is read here, once, since nobody can pass over its groups."""

    @abstractmethod
    def open(self, file: InputFile) -> AbstractContextManager[Any]:
        """Open a file; what is wrong with it, then or while it is read, is an InputError."""

    @abstractmethod
    def schema(self, opened: Any) -> Any:
        """The schema of an open table."""

    @abstractmethod
    def groups(self, opened: Any, columns: Sequence[str] | None, most: int) -> Iterator[Group]:
        """Some columns of every group, None for all; at most so many bytes are in memory."""

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[Any]:
        """The rows of what `_packed` made."""
        import pyarrow as pa

        for batch in pa.ipc.open_stream(stream):
            yield from rows(batch, settings)

    def cut(self, number: int, file: InputFile, settings: ReadSettings, unit_bytes: int) -> Blocks:
        """Runs of groups, each closed when its text reaches `unit_bytes`."""
        here = self.streamed and file.is_object
        with self.open(file) as opened:
            every = partial(self.groups, opened, settings.columns, _most_bytes(file))
            total = file.size if here else sum(group.size for group in every())
            if total > _most_bytes(file):
                raise expands_too_much(file.where)
            share = file.size / max(1, total)
            for start, groups in runs_of_groups(every(), unit_bytes):
                size = sum(group.size for group in groups)
                huge = len(groups) == 1 and size >= 2 * unit_bytes
                if here or huge:
                    step, batches = unit_bytes if huge else _ENDLESS, _batches(file, groups)
                    yield from cut_batches(number, start, batches, step, share)
                else:
                    part = FilePart(number, start, start + len(groups))
                    yield (part,), int(size * share), size

    def read_part(self, file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Raw]:
        with self.open(file) as opened:
            groups = self.groups(opened, settings.columns, _most_bytes(file))
            for batch in _batches(file, islice(groups, part.start, part.stop)):
                yield from rows(batch, settings)


class Parquet(TableFormat):
    """Parquet files."""

    name = "parquet"
    suffixes = ("parquet",)
    magic = b"PAR1"

    @contextmanager
    def open(self, file: InputFile) -> Iterator[Any]:
        import pyarrow.parquet as pq

        # pyarrow's own setting takes all of a row group into memory, however large.
        with (
            reading(file.where),
            file.open() as opened,
            pq.ParquetFile(
                opened if file.is_object else file.path, buffer_size=_BUFFER, pre_buffer=False
            ) as parquet,
        ):
            yield parquet

    def schema(self, opened: Any) -> Any:
        return opened.schema_arrow

    def groups(self, opened: Any, columns: Sequence[str] | None, most: int) -> Iterator[Group]:
        known, names = opened.metadata, None if columns is None else list(columns)
        leaves = [f"{known.schema.column(number).path}." for number in range(known.num_columns)]
        begins: str | tuple[str, ...] = "" if names is None else tuple(f"{name}." for name in names)
        wanted = [number for number, leaf in enumerate(leaves) if leaf.startswith(begins)]
        for number in range(known.num_row_groups):
            group = known.row_group(number)
            size = sum(group.column(n).total_uncompressed_size for n in wanted)
            average = size // max(1, group.num_rows)
            # A value of the dictionary may be as large as the group, and be that of every row.
            least = _BATCH_BYTES // max(1, average), most // max(1, size)
            batch_rows = max(1, min(_ROWS, *least))
            read = partial(opened.iter_batches, batch_rows, row_groups=[number], columns=names)
            yield Group(size, read)


class Arrow(TableFormat):
    """Arrow files: those for random access, and streams."""

    name = "arrow"
    suffixes = ("arrow",)
    magic = b"ARROW1"
    streamed = True

    @contextmanager
    def open(self, file: InputFile) -> Iterator[Any]:
        import pyarrow as pa

        with (
            reading(file.where),
            file.open() if file.is_object else pa.memory_map(str(file.path)) as opened,
        ):
            yield opened

    def schema(self, opened: Any) -> Any:
        return self._reader(opened).schema

    def groups(self, opened: Any, columns: Sequence[str] | None, _: int) -> Iterator[Group]:
        reader = self._reader(opened)
        is_file = hasattr(reader, "get_batch")
        every = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        for batch in every:  # a file is mapped: passing over a batch reads nothing of it
            own = batch if columns is None else batch.select(_top(reader.schema, columns))
            yield Group(own.nbytes, partial(_sound_slices, own))

    def _reader(self, opened: Any) -> Any:
        """Pyarrow's reader of a file for random access, or of a stream."""
        import pyarrow as pa

        opened.seek(0)
        is_file = opened.read(len(self.magic)) == self.magic
        opened.seek(0)
        return pa.ipc.open_file(opened) if is_file else pa.ipc.open_stream(opened)


def _sound_slices(batch: Any) -> Iterator[Any]:
    """Check that a batch's offsets stay in its buffers, which pyarrow trusts the file with.

    Strings are looked at as bytes, so that one that is no UTF-8 costs its row alone.
    """
    import pyarrow as pa

    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    columns = [c.cast(as_bytes[c.type]) if c.type in as_bytes else c for c in batch.columns]
    pa.RecordBatch.from_arrays(columns, names=batch.schema.names).validate(full=True)
    return in_slices(batch, _BATCH_BYTES)


def _top(schema: Any, columns: Sequence[str]) -> list[str]:
    """The columns that hold fields, which may be dotted; each once."""
    tops = (column if column in schema.names else column.split(".")[0] for column in columns)
    return [top for top in dict.fromkeys(tops) if top in schema.names]


def _most_bytes(file: InputFile) -> int:
    """What a file may be in memory."""
    return max(FREE, EXPANSION * file.size)


def _batches(file: InputFile, groups: Iterable[Group]) -> Iterator[Any]:
    """The batches of groups; a dictionary's values count as often as they are there."""
    import pyarrow as pa

    size = 0
    for batch in (batch for group in groups for batch in group.read()):
        for column in batch.columns:
            coded = pa.types.is_dictionary(column.type)
            size += (column.dictionary_decode() if coded else column).nbytes
        if size > _most_bytes(file):
            raise expands_too_much(file.where)
        yield batch


def runs_of_groups(groups: Iterable[Group], unit_bytes: int) -> Iterator[tuple[int, list[Group]]]:
    """Runs of groups, each with the number of its first; one as large as two units is alone."""
    run: list[Group] = []
    start = held = 0
    for number, group in enumerate(groups):
        if run and (held >= unit_bytes or group.size >= 2 * unit_bytes):
            yield start, run
            run, start, held = [], number, 0
        run.append(group)
        held += group.size
    if run:
        yield start, run


def cut_batches(
    number: int, group: int, read: Iterable[Any], unit_bytes: int, share: float
) -> Blocks:
    """Give batches in blocks of about `unit_bytes`, each with its rows in it."""
    pieces = (piece for whole in read for piece in in_slices(whole, unit_bytes))
    for batches, size in in_runs(pieces, attrgetter("nbytes"), lambda: unit_bytes):
        yield (FilePart(number, group, data=_packed(batches)),), int(size * share), size
        batches.clear()  # before the next are read


def in_slices(batch: Any, size: int) -> Iterator[Any]:
    """Give a batch in slices of about `size` bytes, and no more rows than a batch has."""
    average = batch.nbytes // max(1, batch.num_rows)
    rows = max(1, min(_ROWS, size // max(1, average)))
    for start in range(0, max(1, batch.num_rows), rows):
        yield batch.slice(start, rows)


def _packed(batches: Sequence[Any]) -> bytes:
    """Some batches as bytes, for another process."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


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


def _arrays(column: Any) -> list[AnyArray | None] | None:
    """The lists of a column as views of one array; None if it has others, or a number is null."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    edges = column.offsets.to_numpy()
    numbers = column.values.slice(edges[0], edges[-1] - edges[0])  # the column may be a slice
    plain = pa.types.is_primitive(numbers.type) and not pa.types.is_temporal(numbers.type)
    if numbers.null_count or not plain:
        return None
    every = numbers.to_numpy(zero_copy_only=False)
    pairs = pairwise((edges - edges[0]).tolist())
    views: list[AnyArray | None] = [every[start:stop] for start, stop in pairs]
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
        return [*column.to_pylist()]
    except (ValueError, OverflowError):  # one of them
        return [_value(one) for one in column]


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


def check_columns(
    file: InputFile, keys: Sequence[str], options: str = "--text-key", through_lists: bool = False
) -> list[Any]:
    """The types of the columns of a table that keys name, also of objects in a list if asked for.

    Raises:
        InputError: there is none for a key; `options` name keys.
    """
    table = reader_of(file.kind)
    assert isinstance(table, TableFormat)
    with table.open(file) as opened:
        schema = table.schema(opened)
    kinds = {key: _column_of(schema, key, through_lists) for key in keys}
    if missing := [key for key, kind in kinds.items() if kind is None]:
        raise InputError(
            f"{file.where} has no column {missing[0]!r}; it has "
            f"{', '.join(map(repr, schema.names))}: name one of these with {options}"
        )
    return [*kinds.values()]


def _column_of(schema: Any, key: str, through_lists: bool) -> Any:
    """The type of the field that a key names, None where there is none."""
    import pyarrow as pa

    names = [key] if key in schema.names else key.split(".")
    kind: Any = pa.struct(list(schema))
    for name in names:
        kind = kind.value_type if through_lists and _is_list(kind) else kind
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    is_kind = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    return any(each(kind) for each in is_kind)


def check_strings(file: InputFile, keys: Sequence[str], through_lists: bool = False) -> None:
    """Raise InputError unless the columns of some keys are of strings."""
    import pyarrow as pa

    kinds = check_columns(file, keys, through_lists=through_lists)
    for key, kind in zip(keys, kinds, strict=True):
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if plain not in (*string_types(), pa.binary(), pa.large_binary()):
            raise InputError(f"column {key!r} of {file.where} is {plain}; expected strings")


def list_type(file: InputFile, key: str) -> str:
    """The numpy type of the numbers of a column of lists; raises InputError if it has none."""
    import pyarrow as pa

    [kind] = check_columns(file, [key], "keep_per_token")
    value = kind.value_type if _is_list(kind) else pa.null()
    if pa.types.is_integer(value) or pa.types.is_floating(value):
        return str(np.dtype(value.to_pandas_dtype()).name)
    raise InputError(f"column {key!r} of {file.where} is {kind}; expected lists of numbers")


register(Parquet())
register(Arrow())
