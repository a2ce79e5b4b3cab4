"""MinHash: equal band hashes for documents that share most of their n-grams.

Of each of `bands * rows` random orders of all n-grams, the first one that a document has: two
documents agree in it with the probability of their Jaccard similarity *s* (Broder 1997). `rows` of
them make a band; some band of `bands` is equal with probability 1 - (1 - s^rows)^bands (Leskovec,
Rajaraman, Ullman, Mining of Massive Datasets, 3.4).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxdata.hashing.ngrams import Hashes, Pieces, mixed
from jaxdata.ragged import Ints
from jaxdata.seeds import derive

_AT_ONCE = 2**14  # n-grams: an array of them fits in a core's cache
_BASE = np.uint64(0x9E3779B97F4A7C15)


class Bands:
    """The band hashes of documents, for one choice of bands and rows.

    >>> bands = Bands(bands=14, rows=8)
    >>> bands(Pieces(np.arange(5, dtype=np.uint64), np.array([2, 3]))).shape
    (14, 2)
    """

    def __init__(self, bands: int, rows: int) -> None:
        self.bands, self.rows = bands, rows
        names = [derive(0, "minhash", number) for number in range(bands * rows)]
        keys = mixed(np.array(names, np.uint64))
        self._factors = (keys >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
        self._offsets = keys.astype(np.uint32)

    def __call__(self, grams: Pieces) -> Hashes:
        """uint64 (bands, documents); documents without n-grams may not be among them."""
        smallest = self._smallest(grams.values.astype(np.uint32), grams.counts)
        by_row = smallest.reshape(self.bands, self.rows, -1).astype(np.uint64)
        hashes = np.arange(self.bands, dtype=np.uint64)[:, None].repeat(by_row.shape[2], 1)
        for row in range(self.rows):
            hashes = hashes * _BASE + by_row[:, row]
        return mixed(hashes)

    def of_all(self, grams: Pieces) -> Hashes:
        """The same of any documents: 0 in each band for those without n-grams."""
        known = grams.counts > 0
        found = np.zeros((self.bands, len(known)), np.uint64)
        if known.any():
            found[:, known] = self(Pieces(grams.values, grams.counts[known]))
        return found

    def _smallest(self, values: NDArray[np.uint32], counts: Ints) -> NDArray[np.uint32]:
        """The smallest value of each document under each function, (functions, documents)."""
        begins = np.cumsum(counts) - counts
        pieces = np.union1d(begins, np.arange(0, len(values), _AT_ONCE))
        found = np.empty((len(self._factors), len(pieces)), np.uint32)
        for first in range(0, len(values), _AT_ONCE):
            some = values[first : first + _AT_ONCE]
            here = slice(*np.searchsorted(pieces, [first, first + len(some)]))
            self._fill(found[:, here], some, pieces[here] - first)
        if len(pieces) == len(begins):
            return found
        return np.minimum.reduceat(found, np.searchsorted(pieces, begins), axis=1)

    def _fill(
        self, found: NDArray[np.uint32], values: NDArray[np.uint32], starts: NDArray[np.int64]
    ) -> None:
        buffer = np.empty_like(values)
        for number, (factor, offset) in enumerate(zip(self._factors, self._offsets, strict=True)):
            np.multiply(values, factor, out=buffer)
            np.add(buffer, offset, out=buffer)
            found[number] = np.minimum.reduceat(buffer, starts)
