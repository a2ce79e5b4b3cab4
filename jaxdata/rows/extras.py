"""On request, more arrays of a batch: source and document of each slot, and side arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.manifest import TARGET
from jaxdata.rows.reading import EXTRAS, Reading, side_name
from jaxdata.rows.table import Batch, RowTable, Segments


def known_sides(table: RowTable) -> list[str]:
    """The names under which batches can have side arrays of some source: inputs', targets'."""
    names = sorted({name for documents in _sources(table) for name in documents.side})
    return [*names, *(TARGET + name for name in names)]


def side_dtype(table: RowTable, extra: str) -> np.dtype[Any]:
    """The dtype of a side array; raises InputError unless every source has it, and in one dtype."""
    name, dtypes = side_name(extra), dict[np.dtype[Any], str]()
    for documents in _sources(table):
        values = documents.side.get(name)
        if values is None:
            raise InputError(
                f"extras: {documents.name!r} has no side array {name!r}, which other sources of "
                "these rows have: each must have it, since no value that could be filled in is "
                f"right for all; convert it with --keep-per-token {name}, or leave {extra!r} out"
            )
        dtypes.setdefault(values.dtype, documents.name)
    if len(dtypes) > 1:
        told = ", ".join(f"{dtype.name} in {source!r}" for dtype, source in dtypes.items())
        raise InputError(
            f"extras: the side array {name!r} is {told}: convert them to one type "
            f"(--keep-per-token {name}:{next(iter(dtypes)).name})"
        )
    return next(iter(dtypes))


def slot_sides(reading: Reading, extras: Sequence[str]) -> Iterator[Batch]:
    """Each of `extras` for every slot of each batch: (batch_size, seq_len), 0 in padding.

    The value of the slot's input; with `target_` before the name that of its target, 0 where it
    has none.
    """
    fill = reading.seq_len - reading.filled
    streams = {name: reading.side(name, fill) for name in {*map(side_name, extras)}}
    for segments in reading.batches():
        values = {name: next(stream) for name, stream in streams.items()}
        # In the stream each segment has one token more than slots: the target of its last.
        number = np.arange(len(segments.end))
        first, last = segments.begin + number, segments.end + number
        batch: Batch = {}
        for extra in extras:
            left_out = first if extra.startswith(TARGET) else last
            batch[extra] = np.delete(values[side_name(extra)], left_out)
        yield {name: array.reshape(reading.batch_size, -1) for name, array in batch.items()}


def _sources(table: RowTable) -> Iterator[Documents]:
    for _, section in table.sections():
        yield from section.documents


_MOST_IN_32_BITS = 2**31


def check_extras(given: Any, table: RowTable | None) -> tuple[str, ...]:
    """Check `extras` as a user gives it: some of `EXTRAS`, and side arrays.

    Refused for transformed rows (None), and for side arrays that not every source has.
    """
    extras = (given,) if isinstance(given, str) else tuple(given)
    if extras and table is None:
        raise InputError(
            f"extras={given!r} take rows as pack and mix return them, but these were transformed: "
            "apply the function to the batches of the loader instead"
        )
    known = EXTRAS if table is None else (*EXTRAS, *known_sides(table))
    if not {*extras} <= {*known} or len(set(extras)) < len(extras):
        raise InputError(
            f"extras={given!r}: expected some of {known}, each once; a name beyond {EXTRAS} is "
            "that of a side array of the documents (--keep-per-token)"
        )
    if table is not None:
        for name in extras:
            extra_dtype(table, name)
    return extras


def extra_dtype(table: RowTable, name: str) -> np.dtype[Any] | type[np.int32 | np.int64]:
    """int32; int64 for document ids if a source has more than 2^31 documents; a side array's."""
    if name not in EXTRAS:
        return side_dtype(table, name)
    most = max((len(documents.base) for documents in table.documents), default=0)
    return np.int64 if name == "document" and most > _MOST_IN_32_BITS else np.int32


def slot_extras(table: RowTable, reading: Reading, extras: Sequence[str]) -> Iterator[Batch]:
    """Each of `extras` for every slot of each batch: (batch_size, seq_len).

    In padding source and document are -1, side arrays 0.
    """
    own, sides = _apart(extras)
    ids = _slot_ids(table, reading, own) if own else repeat({})
    for found, more in zip(ids, slot_sides(reading, sides) if sides else repeat({}), strict=False):
        yield {**found, **more}


def _apart(extras: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of `EXTRAS`, and the side arrays."""
    own = [name for name in extras if name in EXTRAS]
    return own, [name for name in extras if name not in EXTRAS]


def _slot_ids(table: RowTable, reading: Reading, extras: Sequence[str]) -> Iterator[Batch]:
    rows = np.arange(reading.batch_size)
    for found, _ in _segments(table, reading):
        gaps = -found.slots % reading.multiple
        filled = np.bincount(found.row, found.slots + gaps, len(rows)).astype(np.int64)
        # Every row ends with a run of padding, and so does every segment; it may be empty.
        ends = np.searchsorted(found.row, rows, side="right")
        after = np.append(np.arange(1, len(gaps) + 1), ends)
        runs = np.insert(found.slots, after, np.append(gaps, reading.seq_len - filled))
        yield {
            name: np.repeat(np.insert(values, after, -1), runs).reshape(len(rows), -1)
            for name, values in _columns(table, found, extras)
        }


def segment_extras(
    table: RowTable, reading: Reading, extras: Sequence[str], widths: Sequence[int]
) -> Iterator[Batch]:
    """Each of `extras` for every segment of each batch: (batch_size, width), -1 after the last.

    Side arrays are for every slot: (batch_size, seq_len).
    """
    own, sides = _apart(extras)
    ids = _segment_ids(table, reading, own, widths) if own else repeat({})
    for found, more in zip(ids, slot_sides(reading, sides) if sides else repeat({}), strict=False):
        yield {**found, **more}


def _segment_ids(
    table: RowTable, reading: Reading, extras: Sequence[str], widths: Sequence[int]
) -> Iterator[Batch]:
    if table.merges_documents:
        raise InputError(
            f"extras={tuple(extras)} with expand='device': in this order a segment may "
            "span several documents; use expand='host'"
        )
    for (found, number), width in zip(_segments(table, reading), widths, strict=True):
        batch: Batch = {}
        for name, values in _columns(table, found, extras):
            batch[name] = np.full((reading.batch_size, width), -1, values.dtype)
            batch[name][found.row, number] = values
        yield batch


def _columns(
    table: RowTable, found: Segments, extras: Sequence[str]
) -> Iterator[tuple[str, NDArray[Any]]]:
    for name in extras:
        yield name, getattr(found, name).astype(extra_dtype(table, name))


def _segments(table: RowTable, reading: Reading) -> Iterator[tuple[Segments, NDArray[Any]]]:
    """The segments of each batch as the dataset counts, and the number of each in its row."""
    found = table.origins(reading.found)
    found = found.take(np.flatnonzero(found.slots))
    number = np.arange(len(found.row)) - np.searchsorted(found.row, found.row)
    first_rows = np.arange(0, len(reading.row_edges), reading.batch_size)
    bounds = np.searchsorted(found.row, first_rows).tolist()
    for row, here in zip(first_rows.tolist(), map(slice, bounds, bounds[1:]), strict=False):
        segments = found.take(here)
        yield replace(segments, row=segments.row - row), number[here]
