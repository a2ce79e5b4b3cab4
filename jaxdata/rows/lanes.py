"""Lanes: how the rows of an epoch are spread, so that a host reads the same few step after step."""

import math
from collections.abc import Iterable

import numpy as np

from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import Ints
from jaxdata.rows.table import reversed_bits
from jaxdata.storage.pages.page_cache import PAGE_BYTES

DEAR = 1.5
"""downloads above that many times the bytes of a dataset are warned of"""


def downloads(hosts: int, lanes: int, blocks: int, spread: float) -> float:
    """How often hosts download chunks of which each of them fetches what it reads once an epoch.

    That is how many hosts read rows of a block, on average: those whose part of the sorted batches
    its lanes overlap, neighbours of as many equal parts as there are hosts. Blocks are taken to
    hold rows of every host, and batches several rows of a host.

    Args:
        hosts: that share a batch.
        lanes: of the source.
        blocks: of chunks, which the lanes divide.
        spread: the part of a batch over which a lane moves; see `spread_of`.

    >>> [round(downloads(8, lanes, 8 * lanes, 0.0), 1) for lanes in (64, 2)]
    [1.0, 4.2]
    """
    edges = (np.arange(blocks + 1) + 0.5) * lanes / blocks  # of blocks, beside lanes'
    first = np.floor(edges[:-1]) / lanes - spread / 2
    stop = np.ceil(edges[1:]) / lanes + spread / 2
    readers = np.ceil(stop * hosts).clip(max=hosts) - np.floor(first * hosts).clip(min=0)
    return float(readers.mean())


def spread_of(counts: Iterable[int], batch_size: int) -> float:
    """The part of a batch over which a lane moves from one to the next, since sources share it.

    How many rows of the others come before one of a lane differs by up to one a source, and with
    many sources as a sum of chances does; found by counting, of up to 256 of them.

    Args:
        counts: the rows of each source in the run.
        batch_size: rows of the global batch.
    """
    some = [count for count in counts if count]
    a_row = batch_size / max(sum(some), 1)
    chances = sum(min(1 / 4, a_row * count / 6) for count in some)
    return min(max(len(some) - 1, 0), 7 * math.sqrt(chances)) / batch_size


def better_packing(hosts: int) -> dict[str, int]:
    """Fields of `pack` with which hosts download the dataset about once."""
    return {"lanes": 2 ** (hosts - 1).bit_length(), "chunk_bytes": PAGE_BYTES}


class Lanes:
    """The rows of an epoch, in block order, cut into lanes that differ by at most a row.

    Row *j* of the epoch lies in lane `bitreverse(j mod count)` at place `j div count`: consecutive
    rows are spread evenly over the lanes. A *position* is a place in block order.

    Args:
        rows: rows of an epoch.
        count: number of lanes, a power of two.

    >>> Lanes(6, 4).position(np.arange(6)).tolist()
    [0, 3, 2, 5, 1, 4]
    """

    def __init__(self, rows: int, count: int) -> None:
        self.rows, self.count = rows, count

    @cached_property
    def _reversed(self) -> Ints:
        """(lanes,) the bit-reversed number of each; its own inverse."""
        reversed_ = reversed_bits(np.arange(self.count)) >> np.uint64(65 - self.count.bit_length())
        return reversed_.astype(np.int64)

    @cached_property
    def starts(self) -> Ints:
        """(lanes + 1,) the position where each lane begins."""
        return np.append(0, np.cumsum(self._held(self.rows)))

    def _held(self, rows: int) -> Ints:
        """(lanes,) how many of the first `rows` rows lie in each lane."""
        return rows // self.count + (self._reversed < rows % self.count)

    def position(self, rows: Ints) -> Ints:
        """Where rows of the epoch lie in block order; (rows,)."""
        place, turn = np.divmod(rows, self.count)
        found: Ints = self.starts[self._reversed[turn]] + place
        return found

    def lane(self, positions: Ints) -> Ints:
        """The lane of each position; (positions,)."""
        found: Ints = np.searchsorted(self.starts, positions, side="right") - 1
        return found

    def row(self, positions: Ints) -> Ints:
        """The inverse of `position`."""
        lane = self.lane(positions)
        return (positions - self.starts[lane]) * self.count + self._reversed[lane]

    def visited_before(self, positions: Ints, rows: int) -> Ints:
        """How many positions of the first `rows` rows come before each; (positions,)."""
        held = self._held(rows)
        lane = np.minimum(self.lane(positions), self.count - 1)
        before = np.cumsum(held) - held
        return np.asarray(before[lane] + np.minimum(positions - self.starts[lane], held[lane]))
