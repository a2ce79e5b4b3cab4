"""The columns of a view: a kept list of a source's documents, and why the others are dropped.

A kept document costs 8 bytes on disk and no memory, as columns are mapped: its number in the source
and its length. So 10^9 of them are 8 GB beside an index of 17, and a list is looked up as a source
is. A copy is a document listed again; a dropped document costs 5 bytes, and 12 more where some of
them are copies of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.facts import digest
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.dataset.index import Columns
from jaxdata.dataset.manifest import Manifest, ViewEntry
from jaxdata.storage import Store

CONTENT = ("document", "length", "mask_document", "mask_start", "mask_stop")
"""the columns that decide what is read, with `start` where there is one; the others say why"""
Kind = Literal["mask", "cut"]
"""what becomes of a range of tokens: it has no loss, or is not there"""


_RANGE = ("document", "start", "stop")
_AT_ONCE = 2**22  # documents


def number_type(documents: int) -> type[np.uint32 | np.uint64]:
    """The type of numbers of so many documents."""
    return np.uint32 if documents < 2**32 else np.uint64


def view_folder(source: str, view: str) -> str:
    """Where the folders of a view's columns are; each content has its own.

    >>> view_folder("train/web", "d1")
    'train/web/views/d1'
    """
    return f"{source}/views/{view}"


def view_fingerprint(generation: str, checksums: Mapping[str, str]) -> str:
    """The fingerprint of documents in a view: of the source's, and of what the view lists."""
    content = {name: checksums.get(name) for name in CONTENT}
    cut = {"start": checksums["start"]} if "start" in checksums else {}
    return digest([generation, content | cut])


def checksum(column: NDArray[Any]) -> str:
    """The sha256 that a column has when it is written."""
    content = hashlib.sha256()
    for first in range(0, len(column), _AT_ONCE):
        part = np.ascontiguousarray(column[first : first + _AT_ONCE])
        content.update(part.astype(column.dtype.newbyteorder("<"), copy=False).data)
    return content.hexdigest()


class Fate(NamedTuple):
    """Why a view does not list a document."""

    reason: str
    survivor: tuple[str, int] | None
    """the source (or file) and number of the document that it is a copy of"""


class Span(NamedTuple):
    """A range of tokens of a document that has no loss in a view, or is cut out."""

    start: int
    stop: int
    reason: str
    first: tuple[str, int, int] | None
    """where the same tokens stay, if that is known: source (or file), document, and token (-1:
    in its text)"""


@dataclass(frozen=True)
class ViewIndex(Columns):
    """The columns of one view; each is read when it is first used."""

    store: Store
    source: str
    """`"<split>/<source>"`"""
    name: str
    entry: ViewEntry
    total: int
    """documents of the source"""

    def __reduce__(self) -> tuple[Any, ...]:
        return ViewIndex, (self.store, self.source, self.name, self.entry, self.total)

    @cached_property
    def documents(self) -> AnyInts:
        """(documents,) number in the source of each that is kept; they do not fall."""
        return self.column("document")

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """(documents,) tokens of each."""
        return self.column("length")

    def in_source(self, numbers: Ints) -> Ints:
        """Numbers in the source of some kept documents."""
        found = self.documents[numbers].astype(np.int64)
        if len(found) and not 0 <= found.min() <= found.max() < self.total:
            raise self.damaged("it lists documents that the source does not have")
        return found

    @property
    def cuts(self) -> bool:
        """Whether ranges are cut out: documents may then be pieces of those of the source."""
        return "start" in self.checksums

    @cached_property
    def starts(self) -> NDArray[np.uint32]:
        """(documents,) the token of the source's document at which each begins, if any is cut."""
        return self.column("start")

    def placed(self, numbers: Ints, starts: Ints) -> tuple[Ints, Ints]:
        """Documents and tokens in the source, of tokens in some kept documents."""
        found = self.in_source(numbers)
        return found, starts + self.starts[numbers] if self.cuts else starts

    def fits(self, numbers: Ints | slice, lengths: NDArray[np.uint32]) -> bool:
        """Whether some kept documents can be of documents of these lengths."""
        own = self.lengths[numbers]
        if not self.cuts:
            return np.array_equal(lengths, own)
        return bool((self.starts[numbers].astype(np.int64) + own <= lengths).all())

    def changed(self) -> str | None:
        """Which column that decides what is read differs from its checksum; None for none."""
        for name in (*CONTENT, "start"):
            if name in self.checksums and checksum(self.column(name)) != self.checksums[name]:
                return f"its column {name} is not what was written"
        return None

    def misfit(self, lengths: NDArray[np.uint32]) -> str | None:
        """What is wrong with the list, for a source of these lengths; None if it fits."""
        last = tokens = 0
        for first in range(0, self.entry.documents, _AT_ONCE):
            here = slice(first, first + _AT_ONCE)
            numbers, own = self.documents[here], self.lengths[here]
            if int(numbers[0]) < last or (numbers[1:] < numbers[:-1]).any():
                return "its documents are not in ascending order"
            last = int(numbers[-1])
            if last >= self.total or not self.fits(here, lengths[numbers]):
                return "its lengths are not those of its documents"
            tokens += int(own.sum(dtype=np.int64))
        return None if tokens == self.entry.tokens else "its lengths do not add up to its tokens"

    def damaged(self, what: str) -> DatasetError:
        """The error for columns that cannot be those that were written."""
        return DatasetError(
            f"{self.store.url}: view {self.name!r} of {self.source} is damaged: {what}; jaxdata "
            f"verify {self.store.url} names what is damaged"
        )

    @property
    def masks(self) -> bool:
        """Whether there are ranges without loss."""
        return "mask_document" in self.checksums

    @cached_property
    def masked(self) -> tuple[AnyInts, NDArray[np.uint32], NDArray[np.uint32]]:
        """Ranges without loss, (ranges,) each: document of the source, start, stop; ascending."""
        return self.ranges("mask")

    def ranges(self, kind: Kind) -> tuple[AnyInts, NDArray[np.uint32], NDArray[np.uint32]]:
        """Ranges of a kind, as `masked`."""
        document, start, stop = (self.column(f"{kind}_{each}") for each in _RANGE)
        if not len(document) == len(start) == len(stop):
            raise self.damaged("its ranges are not complete")
        return document, start, stop

    def fate(self, document: int) -> Fate | None:
        """Why a document of the source is not listed; None if it is, or is unknown."""
        at = int(np.searchsorted(self.dropped, self.dropped.dtype.type(document)))
        if at == len(self.dropped) or self.dropped[at] != document:
            return None
        return Fate(self._reason("reason", at), self._survivor(at))

    def ranges_of(self, document: int, kind: Kind = "mask") -> list[Span]:
        """The ranges of a document of the source that have no loss, or are cut out."""
        if f"{kind}_document" not in self.checksums:
            return []
        numbers, _, _ = self.ranges(kind)
        first, last = (
            int(np.searchsorted(numbers, numbers.dtype.type(document), side))
            for side in ("left", "right")
        )
        return [self.span(kind, at) for at in range(first, last)]

    def span(self, kind: Kind, at: int) -> Span:
        """One of the ranges of a kind."""
        _, start, stop = self.ranges(kind)
        reason, firsts = self._reason(f"{kind}_reason", at), self.firsts(kind)
        if firsts is None:
            return Span(int(start[at]), int(stop[at]), reason, None)
        source, *place = firsts[at].tolist()
        if source >= len(self.entry.survivors):
            raise self.damaged(f"its column {kind}_first names no source")
        first = (self.entry.survivors[source], *place) if source >= 0 else None
        return Span(int(start[at]), int(stop[at]), reason, first)

    def firsts(self, kind: Kind) -> Ints | None:
        """(ranges, 3) where the tokens of each range stay, as `Span.first` has it; source: -1: no.

        The source is a number in the entry's `survivors`. None where nothing is known of any.
        """
        found = self.read(f"{kind}_first")
        if found is None:
            return None
        if len(found) != 3 * len(self.ranges(kind)[0]):
            raise self.damaged("its ranges are not complete")
        return np.asarray(found).reshape(-1, 3)

    @cached_property
    def dropped(self) -> AnyInts:
        """(dropped,) numbers in the source of documents that are not kept, ascending."""
        return self.column("dropped")

    def read(self, column: str) -> Any:
        """A column by its name; None if this view has no such column."""
        return self.column(column) if column in self.checksums else None

    def _reason(self, column: str, at: int) -> str:
        number = self.column(column)[at : at + 1]
        if not len(number) or number[0] >= len(self.entry.reasons):
            raise self.damaged(f"its column {column} names no reason")
        return self.entry.reasons[int(number[0])]

    def _survivor(self, at: int) -> tuple[str, int] | None:
        if "survivor" not in self.checksums:
            return None
        source, number = (
            self.column(name)[at : at + 1] for name in ("survivor_source", "survivor")
        )
        if not len(source) or not len(number) or source[0] >= len(self.entry.survivors):
            raise self.damaged("its column survivor_source names no source")
        return (self.entry.survivors[int(source[0])], int(number[0])) if source[0] >= 0 else None

    @property
    def columns(self) -> dict[str, tuple[type[np.generic], int | None]]:
        """See `Columns`."""
        number, kept = number_type(self.total), self.entry.documents
        columns: dict[str, tuple[type[np.generic], int | None]] = {
            "document": (number, kept),
            "length": (np.uint32, kept),
            "dropped": (number, None),
            "reason": (np.uint8, None),
        }
        if "survivor" in self.checksums:
            columns |= {"survivor_source": (np.int32, None), "survivor": (np.int64, None)}
        if self.cuts:
            columns["start"] = (np.uint32, kept)
        for kind in ("mask", "cut"):
            if f"{kind}_document" in self.checksums:
                columns |= {f"{kind}_document": (number, None), f"{kind}_reason": (np.uint8, None)}
                columns |= {f"{kind}_{edge}": (np.uint32, None) for edge in ("start", "stop")}
            if f"{kind}_first" in self.checksums:
                columns[f"{kind}_first"] = (np.int64, None)
        return columns

    def file(self, column: str) -> str:
        """See `Columns`."""
        return f"{view_folder(self.source, self.name)}/{self.entry.folder}/{column}"


def views_of(store: Store, manifest: Manifest) -> Iterator[ViewIndex]:
    """All views of a dataset, those of earlier generations of their sources too."""
    for name, source in manifest.sources.items():
        for view, entry in source.views.items():
            made = source.generation_of(entry) or source
            yield ViewIndex(store, name, view, entry, made.documents)
