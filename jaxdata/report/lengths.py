"""How long the documents of each source are: a histogram by powers of two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxdata.documents.base import Documents

_AT_ONCE = 2**22  # documents


@dataclass(frozen=True)
class Histogram:
    """Documents, and their tokens, by length; bin *k* holds lengths of `[edges[k], edges[k + 1])`.

    Edges are powers of two; empty bins at both ends are left out.
    """

    edges: list[int]
    """(bins + 1,)"""
    documents: list[int]
    """(bins,)"""
    tokens: list[int]
    """(bins,) of these documents, with EOD"""

    @property
    def document_shares(self) -> list[float]:
        """Of all documents, by bin."""
        return _shares(self.documents)

    @property
    def token_shares(self) -> list[float]:
        """Of all tokens, by bin."""
        return _shares(self.tokens)


def length_histogram(documents: Documents) -> Histogram:
    """Count the lengths of a source.

    >>> from jaxdata.documents.in_memory import ArrayDocuments
    >>> length_histogram(ArrayDocuments([[1], [1, 2], [1, 2, 3], [1] * 9]))
    Histogram(edges=[1, 2, 4, 8, 16], documents=[1, 2, 0, 1], tokens=[1, 5, 0, 9])
    """
    lengths = documents.lengths
    counts, tokens = np.zeros(66, np.int64), np.zeros(66, np.int64)
    for first in range(0, len(lengths), _AT_ONCE):
        some = lengths[first : first + _AT_ONCE].astype(np.int64)
        bins = np.frexp(some)[1]  # the bits of each: frexp is exact below 2^53
        counts += np.bincount(bins, minlength=66)
        tokens += _sums(bins, some)
    used = np.flatnonzero(counts)
    if not len(used):
        return Histogram([], [], [])
    first, last = int(used[0]), int(used[-1])
    edges = [0 if bits == 0 else 2 ** (bits - 1) for bits in range(first, last + 2)]
    return Histogram(edges, counts[first : last + 1].tolist(), tokens[first : last + 1].tolist())


def _sums(bins: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of the values in each bin, exact: `bincount` would add them up as floats."""
    order = np.argsort(bins, kind="stable")
    before = np.append(0, np.cumsum(values[order]))
    edges = np.searchsorted(bins[order], np.arange(67))
    return np.diff(before[edges])


def _shares(counts: list[int]) -> list[float]:
    whole = sum(counts) or 1
    return [count / whole for count in counts]
