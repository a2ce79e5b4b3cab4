"""Records on disk, sorted by a key: what sorting within bounded memory consists of.

A unit sorts its own records and writes them as one file, a run. Records whose keys lie between two
fences are one range of bytes of every run, so that whoever merges a part of all keys reads these
ranges and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.storage import Store

PARTS = 256
"""Parts of the keys that can be merged one by one."""
Columns = Sequence[NDArray[Any]]
"""The keys, uint64, and what belongs to each."""


def even_fences(end: int) -> NDArray[np.uint64]:
    """`PARTS + 1` keys that cut [0, end) evenly; the last is `end`, at most 2^64 - 1."""
    return np.array([end * part // PARTS for part in range(PARTS + 1)], np.uint64)


class Section(NamedTuple):
    """Where the records of one kind lie in a run."""

    start: int
    records: int
    dtypes: list[str]
    fences: list[int]
    """the record at which each part begins"""


Layout = Mapping[str, Section]


def encode_run(sections: Mapping[str, Columns], fences: NDArray[np.uint64]) -> tuple[bytes, Layout]:
    """Sort the records of each section by their keys; the bytes of the run, and where they lie."""
    parts: list[bytes] = []
    layout = {}
    start = 0
    for name, columns in sections.items():
        order = np.argsort(columns[0], kind="stable")
        ordered = [column[order] for column in columns]
        cuts = [0, *ordered[0].searchsorted(fences[1:-1]).tolist(), len(order)]
        layout[name] = Section(start, len(order), [c.dtype.str for c in columns], cuts)
        parts += [column.tobytes() for column in ordered]
        start += sum(column.nbytes for column in columns)
    return b"".join(parts), layout


def read_part(
    store: Store, runs: Mapping[str, Section], first: int, stop: int
) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """The records of parts `[first, stop)` of all runs, by the names of their files.

    Returns:
        Each column, end to end; and how many records come from each run.
    """
    begin, end, start, size = np.array(
        [(one.fences[first], one.fences[stop], one.start, one.records) for one in runs.values()]
    ).T
    there = np.flatnonzero(end > begin)
    names = [name for name, has in zip(runs, end > begin, strict=True) if has]
    columns = []
    for dtype in map(np.dtype, next(iter(runs.values())).dtypes):
        where, until = (start + edge * dtype.itemsize for edge in (begin, end))
        ranges = store.gather(names, np.arange(len(names)), where[there], until[there])
        columns.append(np.frombuffer(ranges.join(), dtype))
        start = start + size * dtype.itemsize
    return columns, end - begin
