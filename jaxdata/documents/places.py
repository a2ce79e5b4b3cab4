"""Where the tokens of documents lie: bytes of files, known without reading them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxdata.documents.base import Documents
from jaxdata.ragged import Ints


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


class Placed(Protocol):
    """Documents whose files and bytes are known."""

    @property
    def file_sizes(self) -> Ints:
        """Bytes of each file up to the end of its last document; int64 (files,)."""
        ...

    def first_bytes(self, documents: Ints) -> tuple[Ints, Ints]:
        """The file of some documents, and the byte in it where each begins."""
        ...

    def places(self, documents: Ints, starts: Ints, counts: Ints) -> Places:
        """The bytes of tokens `[starts[k], starts[k] + counts[k])` of `documents[k]`.

        Those of their stored masks are among them.
        """
        ...


class OneFile:
    """Documents as one file that holds the tokens, and masks, of each, end to end.

    So they are numbered into pages by `page_ends`, unless they know their files.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._item, self._masked = documents.dtype.itemsize, documents.masked

    @cached_property
    def _edges(self) -> Ints:
        """(documents + 1,) the byte where each document begins, and the end."""
        numbers = np.arange(len(self._documents))
        lengths = np.asarray(self._documents.lengths[numbers], np.int64)
        return np.append(0, np.cumsum(lengths * (self._item + self._masked)))

    @property
    def file_sizes(self) -> Ints:
        """See `Placed`."""
        return self._edges[-1:]

    def first_bytes(self, documents: Ints) -> tuple[Ints, Ints]:
        """See `Placed`."""
        return np.zeros_like(documents), self._edges[documents]

    def places(self, documents: Ints, starts: Ints, counts: Ints) -> Places:
        """See `Placed`."""
        owner, file = np.arange(len(documents)), np.zeros_like(documents)
        begin = self._edges[documents] + starts * self._item
        tokens = Places(owner, file, begin, begin + counts * self._item)
        if not self._masked:
            return tokens
        lengths = np.asarray(self._documents.lengths[documents], np.int64)
        begin = self._edges[documents] + lengths * self._item + starts
        return Places.join(tokens, Places(owner, file, begin, begin + counts))


def placed(documents: Documents) -> Placed:
    """The documents themselves where they know their files, else as one file."""
    known: Any = documents
    return known if hasattr(known, "places") else OneFile(documents)
