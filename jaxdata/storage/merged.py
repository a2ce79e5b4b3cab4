"""Ranges of files that are asked for together: near ones in one request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxdata.base.ragged import Ints

GAP_BYTES = 2**12
"""that lie between two ranges and are fetched rather than asked for apart"""


class Extents(NamedTuple):
    """Merged ranges; int64 (extents,) each but the last."""

    file: Ints
    start: Ints
    stop: Ints
    owner: Ints
    """(ranges,) the extent that holds each range"""


def merged(file: Ints, start: Ints, stop: Ints, gap: int = GAP_BYTES) -> Extents:
    """The fewest extents that hold some ranges, if gaps of up to `gap` bytes are closed.

    >>> found = merged(np.array([0, 1, 0]), np.array([0, 5, 8]), np.array([4, 9, 12]), 4)
    >>> [column.tolist() for column in found]
    [[0, 1], [0, 5], [12, 9], [0, 1, 0]]
    """
    order = np.lexsort((start, file))
    files, starts, stops = file[order], start[order], stop[order]
    # The furthest end so far in a file: files lie apart by more than any has bytes.
    apart = files * (int(stops.max(initial=0)) + gap + 1)
    reach = np.maximum.accumulate(apart + stops)
    begins = np.append(True, apart[1:] + starts[1:] > reach[:-1] + gap)[: len(order)]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    owner = np.empty_like(order)
    owner[order] = np.cumsum(begins) - 1
    return Extents(files[first], starts[first], (reach - apart)[last], owner)
