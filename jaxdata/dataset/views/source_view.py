"""What a view makes of a source: which documents and tokens go, and why; how many that are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyInts, Ints, expand
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.manifest import Amount, ViewAccount
from jaxdata.dataset.views.kept_documents import KeptDocuments, Kind, ViewIndex, number_type

_MOST_REASONS = 256
_OF_DROPPED = ("dropped", "reason", "survivor_source", "survivor")


def _none() -> Ints:
    return np.empty(0, np.int64)


class TokenRanges(NamedTuple):
    """Ranges of tokens in documents; (ranges,) each, in any order, overlapping or not."""

    document: Ints
    start: Ints
    stop: Ints
    reason: AnyInts
    """number in the view's `reasons`"""

    @classmethod
    def of(cls, document: Ints, start: Ints, stop: Ints, *, reason: int = 0) -> TokenRanges:
        """Ranges of one reason."""
        return cls(document, start, stop, np.full(len(document), reason, np.uint8))

    @classmethod
    def join(cls, parts: Iterable[TokenRanges]) -> TokenRanges:
        """The ranges of all parts."""
        return cls(*map(np.concatenate, zip(NO_RANGES, *parts, strict=True)))

    def take(self, chosen: Ints | NDArray[np.bool_]) -> TokenRanges:
        """Some of the ranges."""
        columns: Iterable[Any] = (each[chosen] for each in self)
        return TokenRanges(*columns)

    def merged(self, kept: AnyInts, lengths: NDArray[np.uint32], *, least: int = 1) -> TokenRanges:
        """Those of documents that are `kept` (ascending), ascending and apart.

        Where two of a document meet they are one, with the reason of the first. What is left
        before, between and after them has at least so many tokens: less belongs to them, too.

        >>> ranges = (np.array(each) for each in ([3, 3, 1], [2, 0, 0], [9, 2, 5]))
        >>> found = TokenRanges.of(*ranges).merged(
        ...     np.array([0, 3]), np.array([9, 9, 9, 7]))
        >>> found.document.tolist(), found.start.tolist(), found.stop.tolist()
        ([3], [0], [7])
        """
        at = np.searchsorted(kept, self.document.astype(kept.dtype))
        there = kept.take(at, mode="clip") == self.document if len(kept) else at < 0
        found = self.take(there)
        found = found.take(np.lexsort((found.start, found.document)))
        found = found.take(found.start < lengths[found.document])  # beyond the end is none
        length = lengths[found.document].astype(np.int64)
        stop = np.where(found.stop > length - least, length, found.stop)
        start = np.where(found.start < least, 0, found.start)
        # On one line, document after document, with room between them: then stops only rise.
        own = np.unique(found.document, return_inverse=True)[1]
        before = own * (int(lengths.max(initial=0)) + least)
        reach: Ints = np.maximum.accumulate(before + stop) if len(before) else before
        heads = np.flatnonzero(np.append(True, (before + start)[1:] > reach[:-1] + least - 1))
        heads = heads[: len(before)]
        tails = np.append(heads[1:], len(before))[: len(heads)] - 1
        return found._replace(start=start).take(heads)._replace(stop=reach[tails] - before[tails])


NO_RANGES = TokenRanges.of(_none(), _none(), _none())


def _largest(numbers: AnyInts) -> int:
    return int(numbers.max()) if len(numbers) else -1


@dataclass(kw_only=True, eq=False)
class SourceView:
    """What a view makes of one source; documents have the numbers of the source itself.

    >>> view = SourceView(documents=4, dropped=np.array([2]), reasons=["near"])
    >>> view.listed().tolist()
    [0, 1, 3]
    """

    documents: int
    """of the source"""
    dropped: Ints = field(default_factory=_none)
    """(dropped,) those that are not kept, ascending, each once"""
    reason: AnyInts = field(default_factory=_none)
    """(dropped,) number in `reasons`; none given: the first"""
    reasons: Sequence[str] = ()
    """why, in a word or two: "near", "where" """
    survivor_source: AnyInts = field(default_factory=_none)
    """(dropped,) number in `survivors` of what each is a copy of, -1 for nothing; none given: of
    none"""
    survivor: Ints = field(default_factory=_none)
    """(dropped,) number of that document there; for a file, its line or row"""
    survivors: Sequence[str] = ()
    """names of sources, or of files of a benchmark"""
    copies: AnyInts | None = None
    """(documents,) times that each is listed, where it is not dropped; None: once"""
    masked: TokenRanges = NO_RANGES
    """that have no loss"""
    cut: TokenRanges = NO_RANGES
    """that are not there: what is left between them are documents of their own"""

    def __post_init__(self) -> None:
        dropped, none = self.dropped, np.full(len(self.dropped), -1)
        self.reason = self.reason if len(self.reason) else np.zeros(len(dropped), np.uint8)
        self.survivor_source = self.survivor_source if len(self.survivor_source) else none
        self.survivor = self.survivor if len(self.survivor) else none
        ranges = TokenRanges.join([self.masked, self.cut])
        named = max(map(_largest, (self.reason, ranges.reason)))
        lengths = {len(getattr(self, name)) for name in _OF_DROPPED}
        copies = np.ones(self.documents) if self.copies is None else self.copies
        right = (
            (dropped[1:] > dropped[:-1]).all()
            and (not len(dropped) or 0 <= dropped[0] <= dropped[-1] < self.documents)
            and (len(lengths), len(copies)) == (1, self.documents)
            and named < min(len(self.reasons), _MOST_REASONS)
            and _largest(self.survivor_source) < len(self.survivors)
            and np.isin(np.flatnonzero(copies <= 0), dropped).all()
            and ((ranges.start >= 0) & (ranges.start < ranges.stop)).all()
        )
        if not right:
            raise InputError(
                "this is no view: expected documents of the source that ascend, each with a reason "
                "and a survivor that have names, ranges that hold tokens, and copies of each "
                "document, none only of those dropped"
            )

    def listed(self) -> AnyInts:
        """The documents that are kept, copies after each other, ascending."""
        numbers = np.arange(self.documents, dtype=number_type(self.documents))
        kept: AnyInts = np.delete(numbers, self.dropped)
        return kept if self.copies is None else np.repeat(kept, self.copies[kept])

    def named(self, reasons: list[str], survivors: list[str]) -> SourceView:
        """The same with its reasons and survivors numbered as in longer lists of names."""
        why, of = (
            np.array([*map(names.index, own), -1])
            for names, own in ((reasons, self.reasons), (survivors, self.survivors))
        )

        return replace(
            self,
            reason=why[self.reason],
            reasons=reasons,
            survivor_source=of[self.survivor_source],
            survivors=survivors,
            masked=self.masked._replace(reason=why[self.masked.reason]),
            cut=self.cut._replace(reason=why[self.cut.reason]),
        )


def content_of(docs: KeptDocuments) -> SourceView:
    """What a view that was written makes of its source: the base of another one."""
    view, total = docs.view, len(docs.base)
    columns = {name: view.read(name) for name in _OF_DROPPED}
    return SourceView(
        documents=total,
        **{name: each.astype(np.int64) for name, each in columns.items() if each is not None},
        reasons=view.entry.reasons,
        survivors=view.entry.survivors,
        copies=None if len(docs) + len(view.dropped) == total else _copies(docs),
        masked=_ranges(view, "mask"),
        cut=_ranges(view, "cut"),
    )


def _copies(docs: KeptDocuments) -> Ints:
    """How often each document of the source is listed; of one that is cut, its first piece."""
    numbers = np.asarray(docs.document)
    if docs.view.cuts:
        starts = np.asarray(docs.view.starts(slice(None)))
        _, at, counts = np.unique(numbers, return_index=True, return_counts=True)
        numbers = numbers[starts == starts[at].repeat(counts)]
    return np.bincount(numbers, minlength=len(docs.base))


def _ranges(view: ViewIndex, kind: Kind) -> TokenRanges:
    """The ranges of a kind, as they were given."""
    reason = view.read(f"{kind}_reason")
    if reason is None:
        return NO_RANGES
    document, start, stop = (column.astype(np.int64) for column in view.ranges(kind))
    return TokenRanges(document, start, stop, reason)


def stacked(lower: SourceView, upper: SourceView) -> SourceView:
    """What both drop and mask, in numbers of the source; copies multiply.

    A document that both drop keeps the reason of the lower one.

    >>> lower = SourceView(documents=4, dropped=np.array([2]), reasons=["near"])
    >>> upper = SourceView(documents=4, dropped=np.array([0, 2]), reasons=["where"])
    >>> both = stacked(lower, upper)
    >>> both.dropped.tolist(), [both.reasons[each] for each in both.reason]
    ([0, 2], ['where', 'near'])
    """
    given = [each.copies.astype(np.int64) for each in (lower, upper) if each.copies is not None]
    copies = np.multiply.reduce(given) if given else None
    return replace(_together(lower, upper), copies=copies)


def of_both_sides(one: SourceView, other: SourceView) -> tuple[SourceView, SourceView]:
    """The views of the two sides of preference pairs: what one drops, the other drops too."""
    given = [each.copies for each in (one, other) if each.copies is not None]
    copies = np.minimum.reduce(given) if given else None
    unmasked = [replace(each, masked=NO_RANGES) for each in (other, one)]
    first, second = (_together(*sides) for sides in zip((one, other), unmasked, strict=True))
    return replace(first, copies=copies), replace(second, copies=copies)


def _together(first: SourceView, second: SourceView) -> SourceView:
    """What either drops and masks, with the reasons of the first where both do."""
    reasons = list(dict.fromkeys([*first.reasons, *second.reasons]))
    survivors = list(dict.fromkeys([*first.survivors, *second.survivors]))
    one, other = first.named(reasons, survivors), second.named(reasons, survivors)
    fresh = ~np.isin(other.dropped, one.dropped, assume_unique=True)
    order = np.argsort(np.concatenate([one.dropped, other.dropped[fresh]]))
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(one, name), getattr(other, name)[fresh]])[order]
        for name in _OF_DROPPED
    }
    masked, cut = TokenRanges.join([one.masked, other.masked]), [one.cut, other.cut]
    return replace(one, **columns, masked=masked, cut=TokenRanges.join(cut), copies=None)


class Pieces(NamedTuple):
    """What is left of documents; int64 (pieces,) each, in order."""

    document: Ints
    start: Ints
    stop: Ints


def pieces(documents: AnyInts, lengths: NDArray[np.uint32], cut: TokenRanges) -> Pieces:
    """What is left of some documents between ranges that are ascending and apart.

    >>> cut = TokenRanges.of(*map(np.array, ([3, 3], [0, 5], [2, 6])))
    >>> [each.tolist() for each in pieces(np.array([1, 3]), np.array([9, 9, 9, 8]), cut)]
    [[1, 3, 3], [0, 2, 6], [9, 5, 8]]
    """
    numbers = documents.astype(np.int64)
    first, last = (np.searchsorted(cut.document, numbers, side) for side in ("left", "right"))
    which, number = expand(last - first + 1)
    after = first[which] + number  # the range that ends each piece, but the last of a document
    stops, starts = np.append(cut.stop, 0), np.append(cut.start, 0)
    start = np.where(number == 0, 0, stops[after - 1])
    stop = np.where(after == last[which], lengths[numbers[which]], starts[after])
    left = start < stop
    return Pieces(numbers[which[left]], start[left], stop[left])


def outside(ranges: TokenRanges, lengths: NDArray[np.uint32], cut: TokenRanges) -> TokenRanges:
    """The parts of ranges that are not cut out; both are ascending and apart."""
    own, room = np.unique(ranges.document), int(lengths.max(initial=0)) + 1
    left = pieces(own, lengths, cut)
    place, piece = (room * np.searchsorted(own, each.document) for each in (ranges, left))
    first = np.searchsorted(piece + left.stop, place + ranges.start, "right")
    last = np.searchsorted(piece + left.start, place + ranges.stop, "left")
    which, number = expand(np.maximum(last - first, 0))
    at = first[which] + number
    found = ranges.take(which)
    return found._replace(
        start=np.maximum(found.start, left.start[at]), stop=np.minimum(found.stop, left.stop[at])
    )


def settled(view: SourceView, lengths: NDArray[np.uint32]) -> SourceView:
    """The view with its cut ranges ascending and apart, of documents that it keeps.

    A document of which nothing is left is dropped, and so is one without tokens, which was deleted.
    A single token that is left is cut as well: it is nobody's target.
    """
    deleted = np.flatnonzero(lengths == 0)
    if len(deleted):
        without = SourceView(documents=view.documents, dropped=deleted, reasons=("deleted",))
        view = replace(_together(without, view), copies=view.copies)
    if not len(view.cut.document):
        return view
    kept = np.setdiff1d(np.arange(view.documents), view.dropped, assume_unique=True)
    cut = view.cut.merged(kept, lengths, least=2)
    whole = cut.stop - cut.start == lengths[cut.document]
    gone = cut.take(whole)
    lost = SourceView(
        documents=view.documents, dropped=gone.document, reason=gone.reason, reasons=view.reasons
    )
    both = _together(replace(view, cut=NO_RANGES), lost)
    return replace(both, copies=view.copies, cut=cut.take(~whole))


DONE: Mapping[Kind, str] = {"mask": "masks", "cut": "cuts out"}
"""what a view does with ranges"""


def described_fate(documents: Documents, document: int) -> dict[str, Any]:
    """What the view through which documents are read makes of one; empty where there is none."""
    if not isinstance(documents, KeptDocuments):
        return {}
    fate = documents.view.fate(document)
    masked, cut = (documents.view.ranges_of(document, kind) for kind in DONE)
    listed = documents.numbers_of(document)
    starts = np.broadcast_to(documents.view.starts(np.array(listed, int)), len(listed)).tolist()
    return {
        "view": {
            "name": documents.view.name,
            "copies": starts.count(starts[0]) if starts else 0,
            "reason": None if fate is None else fate.reason,
            "survivor": None if fate is None else fate.survivor,
            "masked": [span._asdict() for span in masked],
            **({"cut": [span._asdict() for span in cut], "pieces": len({*starts})} if cut else {}),
        }
    }


def fate_lines(view: Mapping[str, Any]) -> Iterator[str]:
    """What a view makes of a document: whether it is trained, why not, and what without loss."""
    name = f"view {view['name']}"
    if not view["copies"]:
        survivor = view["survivor"]
        survives = f"; {survivor[0]}:{survivor[1]} survives" if survivor else ""
        yield f"not trained with {name}: {view['reason'] or 'not listed'}{survives}"
    elif view["copies"] > 1:
        yield f"{name} lists it {view['copies']:,} times"
    for done, ranges in zip(DONE.values(), (view["masked"], view.get("cut", [])), strict=True):
        for each in ranges:
            where = f"tokens {each['start']:,} to {each['stop'] - 1:,}"
            yield f"{name} {done} {where}: {each['reason']}"
    if view.get("pieces", 1) > 1:
        yield f"{name} makes {view['pieces']:,} documents of what is left"


Columns = Mapping[str, NDArray[Any]]


def account_of(
    lengths: NDArray[np.uint32], view: SourceView, columns: Columns, *, masked: bool
) -> ViewAccount:
    """The account of a view of documents of `lengths` tokens, from the columns to be written.

    `masked` says whether the source has loss masks of its own.
    """
    dropped, tokens = columns["dropped"], int(lengths.sum(dtype=np.int64))
    lost = _amounts(view, columns["reason"], lengths[dropped], "documents")
    ranges = {
        kind: _amounts(
            view,
            columns[f"{kind}_reason"],
            columns[f"{kind}_stop"].astype(np.int64) - columns[f"{kind}_start"],
            "ranges",
        )
        for kind in DONE
        if f"{kind}_reason" in columns
    }
    gone = [*lost.values(), *ranges.get("cut", {}).values()]
    listed = Amount(
        documents=len(columns["document"]), tokens=int(columns["length"].sum(dtype=np.int64))
    )
    return ViewAccount(
        source=Amount(documents=len(lengths), tokens=tokens),
        kept=Amount(
            documents=len(lengths) - len(dropped),
            tokens=tokens - sum(each.tokens for each in gone),
        ),
        listed=listed,
        dropped=lost,
        masked=ranges.get("mask", {}),
        cut=ranges.get("cut", {}),
        loss_tokens=None if masked or "mask" in ranges else listed.tokens - listed.documents,
    )


def _amounts(view: SourceView, reason: AnyInts, sizes: AnyInts, of: str) -> dict[str, Amount]:
    """How many there are of each reason that occurs, and the sum of their sizes."""
    counts = np.bincount(reason, minlength=len(view.reasons)).tolist()
    tokens = np.bincount(reason, sizes, len(view.reasons)).tolist()  # exact up to 2**53
    found = zip(view.reasons, counts, tokens, strict=True)
    return {name: Amount(**{of: count}, tokens=int(sum_)) for name, count, sum_ in found if count}


def account_lines(account: ViewAccount) -> Iterator[str]:
    """An account in words, a line for what is kept, and one for each reason."""
    source, kept, listed = account.source, account.kept, account.listed
    share = 100 * kept.tokens / max(source.tokens, 1)
    yield (
        f"kept {kept.documents:,} of {source.documents:,} documents, {kept.tokens:,} of "
        f"{source.tokens:,} tokens ({share:.2f} %)"
    )
    if listed != kept:
        yield f"listed as {listed.documents:,} documents with {listed.tokens:,} tokens an epoch"
    for reason, lost in account.dropped.items():
        yield f"dropped {lost.documents:,} documents, {lost.tokens:,} tokens: {reason}"
    for done, ranges in (("masked", account.masked), ("cut out", account.cut)):
        for reason, amount in ranges.items():
            yield f"{done} {amount.tokens:,} tokens in {amount.ranges:,} ranges: {reason}"
