"""Documents that are ranges of others: those that a view lists, and those of a function."""

from abc import abstractmethod
from typing import Any

import numpy as np

from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import AnyArray, AnyInts, Ints
from jaxdata.dataset.documents import Documents, Gathered
from jaxdata.storage.pages.paged_files import PagedFiles, PageRanges


class DerivedDocuments(Documents):
    """Documents that are ranges of others, or those with other masks: no token is copied.

    Args:
        source: the others.
    """

    def __init__(self, source: Documents) -> None:
        self.source = source
        self.name, self.store, self.functions = source.name, source.store, source.functions
        self.dtype, self.masked = source.dtype, source.masked
        self.side = {name: _Beside(values, self) for name, values in source.side.items()}

    def in_source(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        """Documents and tokens as `source` numbers them."""
        return documents, starts

    @cached_property
    def lengths(self) -> AnyArray:
        return self.source.lengths

    @cached_property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self.source.tokens(*self.in_source(documents, starts), counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self.source.masks(*self.in_source(documents, starts), counts)

    @property
    def pages(self) -> PagedFiles:
        return self.source.pages

    def page_ranges(self, documents: Ints, starts: Ints, counts: Ints) -> PageRanges:
        return self.source.page_ranges(*self.in_source(documents, starts), counts)

    @property
    def base(self) -> Documents:
        return self.source.base

    def in_base(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        return self.source.in_base(*self.in_source(documents, starts))

    def numbers_of(self, document: int) -> list[int]:
        return self.source.numbers_of(document)

    def origin(self, index: int) -> tuple[str, int] | None:
        return self.source.origin(self._one_in_source(index))

    def kept(self, index: int) -> dict[str, Any]:
        return self.source.kept(self._one_in_source(index))

    def _one_in_source(self, index: int) -> int:
        number = np.array([range(len(self))[index]])
        return int(self.in_source(number, np.zeros_like(number))[0][0])


class ListedDocuments(DerivedDocuments):
    """Documents of others that are listed, those listed twice as two."""

    @property
    @abstractmethod
    def document(self) -> AnyInts:
        """(documents,) the number of each in the source; they do not fall."""

    def __len__(self) -> int:
        return len(self.document)

    def page_ends(self, size: int) -> Ints:
        """See `Documents`; the pages of the source, as far as documents in them are listed."""
        ends = self.source.page_ends(size).astype(self.document.dtype)
        found = np.unique(np.searchsorted(self.document, ends))
        return found[found > 0].astype(np.int64)

    def numbers_of(self, document: int) -> list[int]:
        inner = self.source.numbers_of(document)
        return [each for number in inner for each in range(*self._run(number))]

    def _run(self, number: int) -> tuple[int, int]:
        """The first and last place, exclusive, of a number in the list."""
        same = self.document.dtype.type(number)  # of another type, all would be cast
        first = np.searchsorted(self.document, same)
        return int(first), int(np.searchsorted(self.document, same, "right"))


class _Beside(DerivedDocuments):
    """A side array of derived documents: the source's, found where their tokens are."""

    def __init__(self, values: Documents, derived: DerivedDocuments) -> None:
        super().__init__(values)
        self._derived = derived

    @property
    def lengths(self) -> AnyArray:
        return self._derived.lengths

    def in_source(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        return self._derived.in_source(documents, starts)
