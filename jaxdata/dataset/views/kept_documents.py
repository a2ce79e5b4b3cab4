"""A view as it is read: its columns, a kept list of a source's documents, and these documents.

A kept document costs 8 bytes on disk and no memory, as columns are mapped: its number in the source
and its length. So 10^9 of them are 8 GB beside an index of 17, and a list is looked up as a source
is. A copy is a document listed again; a dropped document costs 5 bytes, and 12 more where some of
them are copies of others.

No token is copied. Ranges that the view masks have no loss, whatever masks are stored. Where it
cuts ranges out, what is left between them are documents of their own: tokens in a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError, digest, nearest
from jaxdata.base.ragged import AnyInts, Ints, consecutive, expand
from jaxdata.dataset.documents import Documents, Gathered, ListedDocuments, StatedLengths
from jaxdata.dataset.index import Columns, Kinds, checksum
from jaxdata.dataset.manifest import Manifest, ViewEntry
from jaxdata.storage import Store

CONTENT = ("document", "length", "mask_document", "mask_start", "mask_stop")
"""the columns that decide what is read, with `start` where there is one; the others say why"""
Kind = Literal["mask", "cut"]
"""what becomes of a range of tokens: it has no loss, or is not there"""
KINDS: tuple[Kind, ...] = ("mask", "cut")
_AT_ONCE = 2**22  # documents


def number_type(documents: int) -> type[np.uint32 | np.uint64]:
    """The type of numbers of so many documents."""
    return np.uint32 if documents < 2**32 else np.uint64


def column_types(documents: int) -> dict[str, type[np.generic]]:
    """The types of all columns that views of so many documents may have."""
    number = number_type(documents)
    types: dict[str, type[np.generic]] = {"document": number, "length": np.uint32}
    types |= {"start": np.uint32, "dropped": number, "reason": np.uint8}
    types |= {"survivor_source": np.int32, "survivor": np.int64}
    for kind in KINDS:
        types |= {f"{kind}_document": number, f"{kind}_start": np.uint32}
        types |= {f"{kind}_stop": np.uint32, f"{kind}_reason": np.uint8}
    return types


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
        found = self.column("document")[numbers].astype(np.int64)
        if len(found) and not 0 <= found.min() <= found.max() < self.total:
            raise self.damaged("it lists documents that the source does not have")
        return found, starts + self.starts(numbers)

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
            numbers, own = (self.column(name)[here] for name in ("document", "length"))
            if int(numbers[0]) < last or (numbers[1:] < numbers[:-1]).any():
                raise self.damaged("its documents are not in ascending order")
            last = int(numbers[-1])
            if last >= self.total or (self.starts(here) + own > lengths[numbers]).any():
                raise self.damaged("its lengths are not those of its documents")
            tokens += int(own.sum(dtype=np.int64))
        if tokens != self.entry.tokens:
            raise self.damaged("its lengths do not add up to its tokens")

    def damaged(self, what: str) -> DatasetError:
        """The error for columns that cannot be those that were written."""
        return DatasetError(
            f"{self.store.url}: view {self.name!r} of {self.source} is damaged: {what}; jaxdata "
            f"verify {self.store.url} names what is damaged"
        )

    def ranges(self, kind: Kind) -> tuple[Ints, Ints, Ints, AnyInts]:
        """Ranges of a kind, (ranges,) each: document, start, stop and reason; ascending."""
        names = [f"{kind}_{name}" for name in ("document", "start", "stop", "reason")]
        found = [self.column(name) if self.has(name) else np.empty(0, np.int64) for name in names]
        document, start, stop, reason = found
        return document, start, stop, reason

    def fate(self, document: int) -> Fate | None:
        """Why a document of the source is not listed; None if it is, or is unknown."""
        dropped = self.column("dropped")
        at = int(np.searchsorted(dropped, dropped.dtype.type(document)))
        if at == len(dropped) or dropped[at] != document:
            return None
        reason, survivor = self._named(self.entry.reasons, self.column("reason")[at]), None
        if self.has("survivor") and (of := int(self.column("survivor_source")[at])) >= 0:
            survivor = self._named(self.entry.survivors, of), int(self.column("survivor")[at])
        return Fate(reason, survivor)

    def ranges_of(self, document: int, kind: Kind = "mask") -> list[Span]:
        """The ranges of a document of the source that have no loss, or are cut out."""
        numbers, *columns = self.ranges(kind)
        same = numbers.dtype.type(document)
        mine = slice(*(int(np.searchsorted(numbers, same, side)) for side in ("left", "right")))
        rows = zip(*(column[mine].tolist() for column in columns), strict=True)
        return [
            Span(start, stop, self._named(self.entry.reasons, why)) for start, stop, why in rows
        ]

    def _named(self, names: Sequence[str], number: int) -> str:
        """A name by its number, of columns that are not verified before they are used."""
        if number >= len(names):
            raise self.damaged("its columns name no reason, or no source")
        return names[number]

    @property
    def columns(self) -> Kinds:
        """See `Columns`; the account says how many entries they have."""
        account, types = self.entry.account, column_types(self.total)
        sizes = dict.fromkeys(("document", "length", "start"), self.entry.documents)
        for kind, ranges in (("mask", account.masked), ("cut", account.cut)):
            count = sum(each.ranges for each in ranges.values())
            sizes |= {name: count for name in types if name.startswith(f"{kind}_")}
        dropped = sum(each.documents for each in account.dropped.values())
        return {
            name: (kind, sizes.get(name, dropped)) for name, kind in types.items() if self.has(name)
        }

    def file(self, column: str) -> str:
        """See `Columns`."""
        return f"{view_folder(self.source, self.name)}/{self.entry.folder}/{column}"


def views_of(store: Store, manifest: Manifest) -> Iterator[ViewIndex]:
    """All views of a dataset, those of earlier generations of their sources too."""
    for name, source in manifest.sources.items():
        for view, entry in source.views.items():
            made = source.generation_of(entry) or source
            yield ViewIndex(store, name, view, entry, made.documents)


class KeptDocuments(ListedDocuments):
    """The documents that a view keeps of a source, in its order (see `Documents`).

    Args:
        source: of a converted dataset.
        view: its list.
    """

    def __init__(self, source: Documents, view: ViewIndex) -> None:
        super().__init__(source)
        self.view, self.fingerprint = view, view.entry.fingerprint
        self.masked = source.masked or view.masks
        # Where documents lie decides their pages as well.
        self.stated_lengths = StatedLengths(view.entry.tokens, self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptDocuments, (self.source, self.view)

    def __len__(self) -> int:
        return self.view.entry.documents

    @property
    def lengths(self) -> NDArray[np.uint32]:
        return self.view.column("length")

    @property
    def document(self) -> AnyInts:
        return self.view.column("document")

    def check_lengths(self) -> None:
        self.source.check_lengths()
        self.view.check(self.source.lengths)

    def in_source(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        return self.view.placed(documents, starts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """See `Documents`; stored masks, without the ranges that the view masks."""
        numbers, starts = self.in_source(documents, starts)
        if self.source.masked:
            stored = self.source.masks(numbers, starts, counts)
            if not self.view.masks:
                return stored
            mask = stored.views.array(np.uint8)
        else:
            mask = np.ones(int(counts.sum()), np.uint8)
        document, *edges = self.view.ranges("mask")[:3]
        same = numbers.astype(document.dtype)
        first, last = (np.searchsorted(document, same, side) for side in ("left", "right"))
        asked, number = expand(last - first)
        at = first[asked] + number
        begin, end = (
            np.clip(edge[at].astype(np.int64) - starts[asked], 0, counts[asked]) for edge in edges
        )
        before = np.cumsum(counts) - counts
        mask[consecutive(before[asked] + begin, np.maximum(end - begin, 0))] = 0
        return Gathered.cut(mask, counts)


def kept_documents(source: Documents, name: str) -> KeptDocuments:
    """The documents of a source that a view keeps.

    Raises:
        InputError: there is no such view of it.
        DatasetError: the view is of another generation of the source.
    """
    entry, store, known = source.entry, source.store, source.entry.views if source.entry else {}
    if entry is None or store is None or name not in known:
        raise InputError(
            f"{source.name} has no view {name!r}: it has {', '.join(known) or 'none'}"
            f"{nearest(name, known)} (jaxdata dedup makes views of what jaxdata converted)"
        )
    view, generations = entry.views[name], [each.fingerprint for each in entry.generations]
    if view.generation != entry.fingerprint:
        remedy = "make it again"
        if view.generation in generations:
            number, (_, _, own) = generations.index(view.generation), source.name.partition("/")
            remedy += (
                f", or read the source as it was then: generation={number}, in a config "
                f"generations: {{{own}: {number}}}"
            )
        raise DatasetError(
            f"{store.url}: view {name!r} of {source.name} was made of another generation of it "
            f"than this one of {entry.documents:,} documents: {remedy}"
        )
    return KeptDocuments(source, ViewIndex(store, source.name, name, view, entry.documents))


def identified(sources: Mapping[str, Documents]) -> dict[str, Any]:
    """What the state of a run says of its sources: data, and the views and functions before it.

    >>> from jaxdata.dataset.array_documents import ArrayDocuments
    >>> identified({"web": ArrayDocuments([[1, 0]])})
    {'data': {'web': 'b3db6650'}}
    """
    data = {name: each.fingerprint[:8] for name, each in sources.items()}
    kept = [(name, each) for name, each in sources.items() if isinstance(each, KeptDocuments)]
    views = {name: each.view.name for name, each in kept}
    through = {name: list(each.functions) for name, each in sources.items() if each.functions}
    facts = {"data": data, "views": views, "functions": through}
    return {name: value for name, value in facts.items() if value or name == "data"}


def in_source(documents: Documents, document: int, token: int = 0) -> tuple[Documents, int, int]:
    """The source, and a document and a token as it numbers them: what people are told."""
    number, start = documents.in_base(np.array([document]), np.array([token]))
    return documents.base, int(number[0]), int(start[0])


F = TypeVar("F", bound=Any)


def numbered_by_source(sources: Sequence[Documents], found: F) -> F:
    """Segments with the numbers that documents of views, and tokens, have in their sources."""
    if all(each.base is each for each in sources):
        return found
    document, start = found.document.copy(), found.start.copy()
    for number, each in enumerate(sources):
        mine = np.flatnonzero(found.source == number)
        document[mine], start[mine] = each.in_base(document[mine], start[mine])
    return replace(found, document=document, start=start)
