"""Connected components of a graph whose edges come in batches: union-find in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxdata.ragged import AnyInts


class Components:
    """The components of nodes `[0, count)`; each is called by its smallest node.

    Batches in any order, and edges in any order, give the same components.

    >>> found = Components(5)
    >>> found.connect(np.array([4, 1]), np.array([3, 4]))
    >>> found.labels().tolist()
    [0, 1, 2, 1, 1]
    """

    def __init__(self, count: int) -> None:
        self._parent = np.arange(count, dtype=np.uint32)

    def connect(self, one: AnyInts, other: AnyInts) -> None:
        """Add edges between `one[k]` and `other[k]`."""
        while True:
            one, other = self.find(one), self.find(other)
            differ = one != other
            if not differ.any():
                return
            one, other = one[differ], other[differ]
            larger = np.maximum(one, other)
            np.minimum.at(self._parent, larger, np.minimum(one, other))
            self._shorten(larger)

    def find(self, nodes: AnyInts) -> NDArray[np.uint32]:
        """The component of each node."""
        root = self._parent[nodes]
        while not np.array_equal(root, up := self._parent[root]):
            root = up
        self._parent[nodes] = root
        return root

    def labels(self) -> NDArray[np.uint32]:
        """The component of every node, uint32 (count,)."""
        self._shorten(slice(None))
        return self._parent

    def _shorten(self, nodes: AnyInts | slice) -> None:
        """Let nodes point to their roots; halves their distance from them each time."""
        while True:
            parent = self._parent[nodes]
            above = self._parent[parent]
            if np.array_equal(parent, above):
                return
            self._parent[nodes] = above
