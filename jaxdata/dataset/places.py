"""Where ranges of tokens lie in files, and with which pages these are fetched from a bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import Ints
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from jaxdata.storage.pages.paged_files import PageRanges

Extent = Callable[[Ints, Ints], tuple[Ints, Ints]]
"""Documents and their files -> the bytes of these at which each begins and ends; int64 (n,) each"""


class Places(NamedTuple):
    """Ranges of bytes that hold some ranges of tokens; int64 (places,) each."""

    owner: Ints
    """number of the range of tokens that each belongs to"""
    file: Ints
    start: Ints
    stop: Ints

    @classmethod
    def join(cls, *parts: Places) -> Places:
        """All places of several lookups."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def in_pages(self, documents: Ints, extent: Extent) -> PageRanges:
        """As ranges of files in a bucket, of (ranges of tokens,) documents.

        Where documents are dealt by pages, a range is fetched with the page where its document
        begins, or with one that this fills; its last bytes, if they spill, with the page before.
        """
        of = documents[self.owner]
        begin, end = extent(of, self.file)
        own = self.start // PAGE_BYTES
        spills = (own > begin // PAGE_BYTES) & ((own + 1) * PAGE_BYTES > end)
        return PageRanges(self.file, self.start, self.stop, own - spills, of)


def ends_across(extent: Extent, documents: Ints, last: Ints, files: Ints, edges: Ints) -> Ints:
    """Where the documents end that lie across some bytes of files (see `Spills`).

    Args:
        extent: of documents in files.
        documents: one that begins before each byte, and near it.
        last: the last document of each file.
        files: of the bytes.
        edges: the bytes.

    >>> ends = np.array([3, 9, 12, 30])
    >>> extent = lambda documents, _: (np.append(0, ends)[documents], ends[documents])
    >>> ends_across(extent, *np.array([[0, 2], [3, 3], [0, 0], [8, 12]])).tolist()
    [9, 12]
    """

    def before(document: Ints) -> NDArray[np.bool_]:
        begin, _ = extent(np.minimum(document, last), files)
        return (document <= last) & (begin < edges)

    step = 1
    while before(documents + step).any():
        step *= 2
    while step := step // 2:
        documents = documents + step * before(documents + step)
    return np.maximum(extent(documents, files)[1], edges)
