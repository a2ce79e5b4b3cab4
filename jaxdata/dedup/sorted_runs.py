"""Records on disk, sorted by a key: what sorting within bounded memory consists of.

A unit sorts its own records and writes them as one file, a run. Records whose keys lie between two
fences are one range of bytes of every run, so that whoever merges a part of all keys reads these
ranges and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.dataset.checksums import checked_bytes, with_checksum
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


def encode_run(
    sections: Mapping[str, Columns], fences: NDArray[np.uint64]
) -> tuple[bytes, dict[str, Section]]:
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


def encode_layout(layout: Layout) -> bytes:
    """A receipt that says where the records of a run lie."""
    return with_checksum(json.dumps(layout).encode())


def decode_layout(data: bytes) -> dict[str, Section]:
    """The layout in a receipt; raises ValueError if it differs from its checksum."""
    content = checked_bytes(data)
    if content is None:
        raise ValueError("a receipt differs from its checksum")
    return {name: Section(*fields) for name, fields in json.loads(content).items()}


def read_part(
    store: Store, runs: Mapping[str, Layout], section: str, first: int, stop: int
) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """The records of parts `[first, stop)` of all runs, by the names of their files.

    Returns:
        Each column, end to end; and how many records come from each run.
    """
    every = [layout[section] for layout in runs.values()]
    counts = np.array([one.fences[stop] - one.fences[first] for one in every], np.int64)
    runs = {name: layout for name, layout in runs.items() if _has(layout[section], first, stop)}
    found = [layout[section] for layout in runs.values()]
    begin = np.array([one.fences[first] for one in found], np.int64)
    end = np.array([one.fences[stop] for one in found], np.int64)
    start = np.array([one.start for one in found], np.int64)
    count = np.array([one.records for one in found], np.int64)
    columns = []
    for dtype in map(np.dtype, every[0].dtypes):
        where = start + begin * dtype.itemsize
        size = (end - begin) * dtype.itemsize
        ranges = store.gather([*runs], np.arange(len(found)), where, where + size)
        columns.append(np.frombuffer(ranges.join(), dtype))
        start = start + count * dtype.itemsize
    return columns, counts


def _has(section: Section, first: int, stop: int) -> bool:
    """Whether records lie between two fences."""
    return section.fences[first] < section.fences[stop]
