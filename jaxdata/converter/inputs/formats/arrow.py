"""Arrow files, as Hugging Face's `save_to_disk` writes them: tables of record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from jaxdata.converter.inputs.formats.base import register
from jaxdata.converter.inputs.formats.tables import (
    BATCH_BYTES,
    Table,
    TableFormat,
    cut_batches,
    in_slices,
    packed,
)
from jaxdata.converter.inputs.parsing import reading
from jaxdata.converter.inputs.units import Block, FilePart, ReadSettings

if TYPE_CHECKING:
    from jaxdata.converter.inputs.files import InputFile


class Arrow(TableFormat):
    """Arrow files: those for random access, and streams."""

    name = "arrow"
    suffixes = ("arrow",)
    magic = b"ARROW1"

    @contextmanager
    def open(self, file: InputFile) -> Iterator[Table]:
        import pyarrow as pa

        with (
            reading(file.where),
            file.open() if file.is_object else pa.memory_map(str(file.path)) as opened,
        ):
            yield _arrow(opened)

    def cut(
        self, number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
    ) -> Iterator[Block]:
        """Runs of groups; those of an object are read here, once: nobody can pass over them."""
        if not file.is_object:
            yield from super().cut(number, file, settings, unit_bytes)
            return
        with reading(file.where), file.open() as opened:
            yield from _cut_here(number, opened, settings, unit_bytes)


def _arrow(opened: Any) -> Table:
    schema = _reader(opened).schema

    def sizes(columns: Sequence[str] | None) -> list[int]:
        return [batch.nbytes for batch in _batches(opened, columns)]

    def read(numbers: range, columns: Sequence[str] | None, _most: int) -> Iterator[Any]:
        # A file is mapped: passing over a batch reads nothing of it.
        for batch in islice(_batches(opened, columns), numbers.start, numbers.stop):
            yield from in_slices(_sound(batch), BATCH_BYTES)

    return Table(schema, sizes, read)


def _reader(opened: Any) -> Any:
    """Pyarrow's reader of a file for random access, or of a stream."""
    import pyarrow as pa

    opened.seek(0)
    is_file = opened.read(6) == b"ARROW1"
    opened.seek(0)
    return pa.ipc.open_file(opened) if is_file else pa.ipc.open_stream(opened)


def _batches(opened: Any, columns: Sequence[str] | None) -> Iterator[Any]:
    """Give some columns of every batch, None for all of them."""
    reader = _reader(opened)
    is_file = hasattr(reader, "get_batch")
    every = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
    for batch in every:
        yield batch if columns is None else batch.select(_top(reader.schema, columns))


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


def _cut_here(number: int, opened: Any, settings: ReadSettings, unit_bytes: int) -> Iterator[Block]:
    """Cut as `TableFormat.cut` does, in one pass: with the rows in the parts."""
    start = held = 0
    batches: list[Any] = []
    for group, batch in enumerate(_batches(opened, settings.columns)):
        size = batch.nbytes
        if batches and (held >= unit_bytes or size >= 2 * unit_bytes):
            yield (FilePart(number, start, data=packed(batches)),), held, held
            start, held, batches = group, 0, []
        slices = in_slices(_sound(batch), BATCH_BYTES)
        if size >= 2 * unit_bytes:
            yield from cut_batches(number, group, slices, unit_bytes, 1.0)
            start = group + 1
        else:
            held += size
            batches += slices
    if batches:
        yield (FilePart(number, start, data=packed(batches)),), held, held


register(Arrow())
