"""On request, more arrays of a batch: source and document of each slot, and side arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.manifest import TARGET
from jaxdata.rows.reading import EXTRAS, BatchSegments, Reading, side_name
from jaxdata.rows.table import Batch, RowTable, Segments

_MOST_IN_32_BITS = 2**31


def check_extras(given: Any, table: RowTable | None) -> tuple[str, ...]:
    """Check `extras` as a user gives it: some of `EXTRAS`, and side arrays.

    Refused for transformed rows (None), and for side arrays that not every source has.
    """
    extras = (given,) if isinstance(given, str) else tuple(given)
    if table is None:
        if extras:
            raise InputError(
                f"extras={given!r} take rows as pack and mix return them, but these were "
                "transformed: apply the function to the batches of the loader instead"
            )
        return extras
    sides = sorted({name for documents in _sources(table) for name in documents.side})
    known = (*EXTRAS, *sides, *(TARGET + name for name in sides))
    if not {*extras} <= {*known} or len(set(extras)) < len(extras):
        raise InputError(
            f"extras={given!r}: expected some of {known}, each once; a name beyond {EXTRAS} is "
            "that of a side array of the documents (--keep-per-token)"
        )
    for name in extras:
        extra_dtype(table, name)
    return extras


def extra_dtype(table: RowTable, name: str) -> np.dtype[Any] | type[np.int32 | np.int64]:
    """int32; int64 for document ids if a source has more than 2^31 documents; a side array's.

    Raises:
        InputError: not every source has the side array, in one dtype.
    """
    if name in EXTRAS:
        most = max((len(documents.base) for documents in table.documents), default=0)
        return np.int64 if name == "document" and most > _MOST_IN_32_BITS else np.int32
    side, dtypes = side_name(name), dict[np.dtype[Any], str]()
    for documents in _sources(table):
        if side not in documents.side:
            raise InputError(
                f"extras: {documents.name!r} has no side array {side!r}, which other sources of "
                "these rows have: each must have it, since no value that could be filled in is "
                f"right for all; convert it with --keep-per-token {side}, or leave {name!r} out"
            )
        dtypes.setdefault(documents.side[side].dtype, documents.name)
    if len(dtypes) > 1:
        told = ", ".join(f"{dtype.name} in {source!r}" for dtype, source in dtypes.items())
        raise InputError(
            f"extras: the side array {side!r} is {told}: convert them to one type "
            f"(--keep-per-token {side}:{next(iter(dtypes)).name})"
        )
    return next(iter(dtypes))


def _sources(table: RowTable) -> Iterator[Documents]:
    for _, section in table.sections():
        yield from section.documents


def slot_extras(reading: Reading, extras: Sequence[str]) -> Iterator[Batch]:
    """Each of `extras` for every slot of each batch: (batch_size, seq_len).

    In padding source and document are -1, side arrays 0. These have the value of the slot's input;
    with `target_` before the name that of its target, 0 where it has none.
    """
    seq_len, slots = reading.table.seq_len, reading.batch_size * reading.table.seq_len
    for segments, found, batch in _with_sides(reading, extras):
        taken = found.slots + -found.slots % reading.table.multiple
        before = np.cumsum(taken) - taken
        first = found.row * seq_len + before - before[np.searchsorted(found.row, found.row)]
        run = np.diff(first, prepend=0, append=slots)
        for name in [extra for extra in extras if extra in EXTRAS]:
            values = getattr(found, name).astype(extra_dtype(reading.table, name))
            ids = np.repeat(np.append(values.dtype.type(-1), values), run)
            for begin, stop in segments.padding:
                ids[begin:stop] = -1
            ids[segments.gaps] = -1
            batch[name] = ids.reshape(-1, seq_len)
        yield batch


def _with_sides(
    reading: Reading, extras: Sequence[str]
) -> Iterator[tuple[BatchSegments, Segments, Batch]]:
    """The segments of each batch, also as the dataset counts, and the side arrays of its slots."""
    found = reading.table.origins(reading.found)
    found = found.take(np.flatnonzero(found.slots))
    sides = [extra for extra in extras if extra not in EXTRAS]
    streams = {name: reading.side(name) for name in {*map(side_name, sides)}}
    size = reading.batch_size
    bounds = np.searchsorted(found.row, np.arange(len(reading.batches) + 1) * size).tolist()
    for number, segments in enumerate(reading.batches):
        mine = found.take(slice(*bounds[number : number + 2]))
        values, batch = {name: next(stream) for name, stream in streams.items()}, Batch()
        for extra in sides:
            # In the stream each segment has one token more than slots: the target of its last.
            left_out = segments.first if extra.startswith(TARGET) else segments.last
            batch[extra] = np.delete(values[side_name(extra)], left_out).reshape(size, -1)
        yield segments, replace(mine, row=mine.row - number * size), batch
