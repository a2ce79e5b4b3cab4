"""The columns of a view: a kept list of a source's documents, and why the others are dropped.

A kept document costs 8 bytes on disk and no memory, as columns are mapped: its number in the source
and its length. So 10^9 of them are 8 GB beside an index of 17, and a list is looked up as a source
is. A copy is a document listed again; a dropped document costs 5 bytes, and 12 more where some of
them are copies of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.facts import digest
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.dataset.index import Columns, Kinds
from jaxdata.dataset.manifest import Manifest, ViewEntry
from jaxdata.storage import Store

CONTENT = ("document", "length", "mask_document", "mask_start", "mask_stop")
"""the columns that decide what is read, with `start` where there is one; the others say why"""
Kind = Literal["mask", "cut"]
"""what becomes of a range of tokens: it has no loss, or is not there"""
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
    little = column.dtype.newbyteorder("<")
    return hashlib.sha256(np.ascontiguousarray(column, little).data).hexdigest()


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

    @cached_property
    def dropped(self) -> AnyInts:
        """(dropped,) numbers in the source of documents that are not kept, ascending."""
        return self.column("dropped")

    @property
    def cuts(self) -> bool:
        """Whether ranges are cut out: documents may then be pieces of those of the source."""
        return self.has("start")

    @property
    def masks(self) -> bool:
        """Whether there are ranges without loss."""
        return self.has("mask_document")

    def starts(self, numbers: Ints | slice) -> Ints | int:
        """The token of the source's document at which some kept documents begin."""
        return self.column("start")[numbers].astype(np.int64) if self.cuts else 0

    def placed(self, numbers: Ints, starts: Ints) -> tuple[Ints, Ints]:
        """Documents and tokens in the source, of tokens in some kept documents."""
        found = self.documents[numbers].astype(np.int64)
        if len(found) and not 0 <= found.min() <= found.max() < self.total:
            raise self.damaged("it lists documents that the source does not have")
        return found, starts + self.starts(numbers)

    def fits(self, numbers: Ints | slice, lengths: NDArray[np.uint32]) -> bool:
        """Whether some kept documents can be of documents of these lengths."""
        own = self.lengths[numbers]
        if not self.cuts:
            return np.array_equal(lengths, own)
        return bool((self.starts(numbers) + own <= lengths).all())

    def check(self, lengths: NDArray[np.uint32]) -> None:
        """Compare what decides what is read with its checksums and with a source's lengths.

        Raises:
            DatasetError: it is not what was written, or not of a source of these lengths.
        """
        for name in filter(self.has, (*CONTENT, "start")):
            if checksum(self.column(name)) != self.entry.checksums[name]:
                raise self.damaged(f"its column {name} is not what was written")
        last = tokens = 0
        for first in range(0, self.entry.documents, _AT_ONCE):
            here = slice(first, first + _AT_ONCE)
            numbers = self.documents[here]
            if int(numbers[0]) < last or (numbers[1:] < numbers[:-1]).any():
                raise self.damaged("its documents are not in ascending order")
            last = int(numbers[-1])
            if last >= self.total or not self.fits(here, lengths[numbers]):
                raise self.damaged("its lengths are not those of its documents")
            tokens += int(self.lengths[here].sum(dtype=np.int64))
        if tokens != self.entry.tokens:
            raise self.damaged("its lengths do not add up to its tokens")

    def damaged(self, what: str) -> DatasetError:
        """The error for columns that cannot be those that were written."""
        return DatasetError(
            f"{self.store.url}: view {self.name!r} of {self.source} is damaged: {what}; jaxdata "
            f"verify {self.store.url} names what is damaged"
        )

    def ranges(self, kind: Kind) -> tuple[AnyInts, NDArray[np.uint32], NDArray[np.uint32]]:
        """Ranges of a kind, (ranges,) each: document of the source, start, stop; ascending."""
        names = (f"{kind}_document", f"{kind}_start", f"{kind}_stop")
        document, start, stop = (self.column(name) for name in names)
        if not len(document) == len(start) == len(stop):
            raise self.damaged("its ranges are not complete")
        return document, start, stop

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

    def read(self, column: str) -> Any:
        """A column by its name; None if this view has no such column."""
        return self.column(column) if self.has(column) else None

    def fate(self, document: int) -> Fate | None:
        """Why a document of the source is not listed; None if it is, or is unknown."""
        at = int(np.searchsorted(self.dropped, self.dropped.dtype.type(document)))
        if at == len(self.dropped) or self.dropped[at] != document:
            return None
        with self._sound():
            reason, survivor = self.entry.reasons[self.column("reason")[at]], None
            if self.has("survivor"):
                place = int(self.column("survivor_source")[at]), int(self.column("survivor")[at])
                survivor = self._named(*place)
            return Fate(reason, survivor)

    def ranges_of(self, document: int, kind: Kind = "mask") -> list[Span]:
        """The ranges of a document of the source that have no loss, or are cut out."""
        if not self.has(f"{kind}_document"):
            return []
        numbers, _, _ = self.ranges(kind)
        same = numbers.dtype.type(document)
        first, last = (int(np.searchsorted(numbers, same, side)) for side in ("left", "right"))
        return [self.span(kind, at) for at in range(first, last)]

    def span(self, kind: Kind, at: int) -> Span:
        """One of the ranges of a kind."""
        _, start, stop = self.ranges(kind)
        firsts = self.firsts(kind)
        with self._sound():
            reason = self.entry.reasons[self.column(f"{kind}_reason")[at]]
            first = None if firsts is None else self._named(*firsts[at].tolist())
            return Span(int(start[at]), int(stop[at]), reason, first)

    def _named(self, survivor: int, *place: int) -> Any:
        """A place in one of the entry's survivors, by its name; None for none."""
        return (self.entry.survivors[survivor], *place) if survivor >= 0 else None

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Columns that say why are not verified before they are used."""
        try:
            yield
        except LookupError:
            raise self.damaged("its columns name no reason, or no source") from None

    @property
    def columns(self) -> Kinds:
        """See `Columns`."""
        number, kept = number_type(self.total), self.entry.documents
        known: Kinds = {
            "document": (number, kept),
            "length": (np.uint32, kept),
            "dropped": (number, None),
            "reason": (np.uint8, None),
            "survivor_source": (np.int32, None),
            "survivor": (np.int64, None),
            "start": (np.uint32, kept),
        }
        for kind in ("mask", "cut"):
            known |= {f"{kind}_document": (number, None), f"{kind}_reason": (np.uint8, None)}
            known |= {f"{kind}_start": (np.uint32, None), f"{kind}_stop": (np.uint32, None)}
            known[f"{kind}_first"] = (np.int64, None)
        return {name: known[name] for name in known if self.has(name)}

    def file(self, column: str) -> str:
        """See `Columns`."""
        return f"{view_folder(self.source, self.name)}/{self.entry.folder}/{column}"


def views_of(store: Store, manifest: Manifest) -> Iterator[ViewIndex]:
    """All views of a dataset, those of earlier generations of their sources too."""
    for name, source in manifest.sources.items():
        for view, entry in source.views.items():
            made = source.generation_of(entry) or source
            yield ViewIndex(store, name, view, entry, made.documents)
