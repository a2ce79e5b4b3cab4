"""Lanes: how the rows of an epoch are spread, so that a host reads the same few step after step."""

import math

import numpy as np

from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import Bools, Ints

DEAR = 1.5
"""downloads above that many times the bytes of a dataset are warned of"""


def downloads(hosts: int, lanes: int, chunk_bytes: int) -> float:
    """How often hosts download a source whose pages each of them fetches once in an epoch.

    A lane of chunks is read by the hosts whose part of the sorted batches it overlaps: neighbours
    of as many equal parts as there are hosts. Where single documents are dealt, every host needs
    every page. Chunks are taken to hold rows of every host, and batches several rows of a host.

    >>> downloads(8, lanes=64, chunk_bytes=2**20), downloads(8, lanes=2, chunk_bytes=2**20)
    (1.0, 4.0)
    >>> downloads(12, lanes=8, chunk_bytes=2**20), downloads(12, lanes=1, chunk_bytes=0)
    (2.0, 12.0)
    """
    if not chunk_bytes:
        return float(hosts)
    return (hosts + lanes - math.gcd(hosts, lanes)) / lanes


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
        numbers, bits = np.arange(self.count), self.count.bit_length() - 1
        found = np.zeros_like(numbers)
        for bit in range(bits):
            found |= (numbers >> bit & 1) << (bits - 1 - bit)
        return found

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

    def visited(self, positions: Ints, rows: int) -> Bools:
        """Whether positions are those of the first `rows` rows; (positions,)."""
        lane = self.lane(positions)
        return positions - self.starts[lane] < self._held(rows)[lane]

    def visited_before(self, positions: Ints, rows: int) -> Ints:
        """How many positions of the first `rows` rows come before each; (positions,)."""
        held = self._held(rows)
        lane = np.minimum(self.lane(positions), self.count - 1)
        before = np.cumsum(held) - held
        return np.asarray(before[lane] + np.minimum(positions - self.starts[lane], held[lane]))
