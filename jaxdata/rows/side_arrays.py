"""Side arrays in batches: read, cut, packed and padded as the tokens that they lie beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxdata.documents.base import Documents, side_arrays
from jaxdata.errors import InputError
from jaxdata.format.side_rules import TARGET
from jaxdata.rows.reading import Reading
from jaxdata.rows.table import Batch, RowTable


def known_sides(table: RowTable) -> list[str]:
    """The names under which batches can have side arrays of some source: inputs', targets'."""
    names = sorted({name for documents in _sources(table) for name in side_arrays(documents)})
    return [*names, *(TARGET + name for name in names)]


def side_dtype(table: RowTable, extra: str) -> np.dtype[Any]:
    """The dtype of a side array; raises InputError unless every source has it, and in one dtype."""
    name, dtypes = side_name(extra), dict[np.dtype[Any], str]()
    for documents in _sources(table):
        side = side_arrays(documents).get(name)
        if side is None:
            raise InputError(
                f"extras: {documents.name!r} has no side array {name!r}, which other sources of "
                "these rows have: each must have it, since no value that could be filled in is "
                f"right for all; convert it with --keep-per-token {name}, or leave {extra!r} out"
            )
        dtypes.setdefault(side.dtype, documents.name)
    if len(dtypes) > 1:
        told = ", ".join(f"{dtype.name} in {source!r}" for dtype, source in dtypes.items())
        raise InputError(
            f"extras: the side array {name!r} is {told}: convert them to one type "
            f"(--keep-per-token {name}:{next(iter(dtypes)).name})"
        )
    return next(iter(dtypes))


def side_name(extra: str) -> str:
    """The name of the side array that an extra is of.

    >>> side_name("weight"), side_name("target_weight")
    ('weight', 'weight')
    """
    return extra.removeprefix(TARGET)


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
