"""What a view makes of a source, before it is written: which documents go, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.kept import KeptDocuments
from jaxdata.errors import InputError
from jaxdata.ragged import AnyInts, Ints

_AT_ONCE = 2**24  # documents
_MOST_REASONS = 256


def _none() -> Ints:
    return np.empty(0, np.int64)


class MaskedRanges(NamedTuple):
    """Ranges of tokens that have no loss; (ranges,) each, in any order, overlapping or not."""

    document: Ints
    start: Ints
    stop: Ints
    reason: AnyInts
    """number in the view's `reasons`"""

    def take(self, chosen: Ints | NDArray[np.bool_]) -> MaskedRanges:
        """Some of the ranges."""
        document, start, stop, reason = self
        return MaskedRanges(document[chosen], start[chosen], stop[chosen], reason[chosen])

    def merged(self, kept: AnyInts, lengths: NDArray[np.uint32]) -> MaskedRanges:
        """Those of documents that are `kept` (ascending), ascending and apart.

        Where two of a document meet they are one, with the reason of the first.

        >>> ranges = (np.array(each) for each in ([3, 3, 1], [2, 0, 0], [9, 2, 5]))
        >>> found = MaskedRanges(*ranges, np.zeros(3, np.uint8)).merged(
        ...     np.array([0, 3]), np.array([9, 9, 9, 7]))
        >>> found.document.tolist(), found.start.tolist(), found.stop.tolist()
        ([3], [0], [7])
        """
        at = np.searchsorted(kept, self.document.astype(kept.dtype))
        there = kept.take(at, mode="clip") == self.document if len(kept) else at < 0
        found = self.take(there)
        found = found.take(np.lexsort((found.start, found.document)))
        stop = np.minimum(found.stop, lengths[found.document])
        # On one line, document after document, with room between them: then stops only rise.
        own = np.unique(found.document, return_inverse=True)[1]
        before = own * (int(lengths.max(initial=0)) + 1)
        reach: Ints = np.maximum.accumulate(before + stop) if len(before) else before
        heads = np.flatnonzero(np.append(True, (before + found.start)[1:] > reach[:-1]))
        heads = heads[: len(before)]
        tails = np.append(heads[1:], len(before))[: len(heads)] - 1
        one = found.take(heads)._replace(stop=reach[tails] - before[tails])
        return one.take(one.start < one.stop)  # one beyond the end of its document is none


NO_RANGES = MaskedRanges(_none(), _none(), _none(), np.empty(0, np.uint8))


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceView:
    """What a view makes of one source; documents have the numbers of the source itself.

    >>> view = SourceView(documents=4, dropped=np.array([2]), reasons=["near"])
    >>> [part.tolist() for part in view.listed()]
    [[0, 1, 3]]
    """

    documents: int
    """of the source"""
    dropped: Ints = field(default_factory=_none)
    """(dropped,) those that are not kept, ascending, each once"""
    reason: NDArray[np.uint8] | None = None
    """(dropped,) number in `reasons`; None: the first"""
    reasons: Sequence[str] = ()
    """why, in a word or two: "near", "where" """
    survivor_source: NDArray[np.int32] | None = None
    """(dropped,) number in `survivors` of what each is a copy of, -1 for nothing; None: of none"""
    survivor: Ints | None = None
    """(dropped,) number of that document there; for a file, its line or row"""
    survivors: Sequence[str] = ()
    """names of sources, or of files of a benchmark"""
    copies: AnyInts | None = None
    """(documents,) times that each is listed, where it is not dropped; None: once"""
    masked: MaskedRanges = NO_RANGES

    def __post_init__(self) -> None:
        dropped, reasons = self.dropped, self.reason_of_each
        wrong = {
            "dropped is not ascending": (dropped[1:] <= dropped[:-1]).any(),
            "dropped is out of range": len(dropped)
            and not 0 <= dropped[0] <= dropped[-1] < self.documents,
            "reason is of another length": len(reasons) != len(dropped),
            "a reason has no name": max(
                reasons.max(initial=0) if len(dropped) else -1,
                self.masked.reason.max(initial=0) if len(self.masked.reason) else -1,
            )
            >= len(self.reasons),
            "copies are of another number of documents": self.copies is not None
            and len(self.copies) != self.documents,
            "a document without copies is not dropped": _lost(self.copies, dropped),
            "there are too many reasons": len(self.reasons) > _MOST_REASONS,
            "a masked range is none": (self.masked.start >= self.masked.stop).any()
            or (self.masked.start < 0).any(),
        }
        for what, holds in wrong.items():
            if holds:
                raise InputError(f"a view cannot be made of this: {what}")

    @property
    def reason_of_each(self) -> NDArray[np.uint8]:
        """(dropped,) number in `reasons`."""
        return np.zeros(len(self.dropped), np.uint8) if self.reason is None else self.reason

    @property
    def source_of_each(self) -> NDArray[np.int32]:
        """(dropped,) number in `survivors`, -1 for nothing."""
        given = self.survivor_source
        return np.full(len(self.dropped), -1, np.int32) if given is None else given

    @property
    def survivor_of_each(self) -> Ints:
        """(dropped,) number of the survivor, -1 for none."""
        return np.full(len(self.dropped), -1) if self.survivor is None else self.survivor

    def listed(self) -> Iterator[Ints]:
        """The documents that are kept, copies after each other, some at a time; ascending."""
        for first in range(0, self.documents, _AT_ONCE):
            stop = min(first + _AT_ONCE, self.documents)
            a, b = np.searchsorted(self.dropped, [first, stop])
            times = self.times(slice(first, stop))
            times[self.dropped[a:b] - first] = 0
            yield np.repeat(np.arange(first, stop), times)

    def times(self, chosen: slice) -> Ints:
        """Copies of some documents, as if none were dropped; int64, the caller's own."""
        if self.copies is None:
            return np.ones(len(range(*chosen.indices(self.documents))), np.int64)
        return self.copies[chosen].astype(np.int64)


def _lost(copies: AnyInts | None, dropped: Ints) -> bool:
    """Whether documents are listed no times and yet are not among those dropped."""
    if copies is None:
        return False
    none, dropped_none = (int((each <= 0).sum()) for each in (copies, copies[dropped]))
    return none > dropped_none or int(copies.min(initial=0)) < 0


def content_of(docs: KeptDocuments) -> SourceView:
    """What a view that was written makes of its source: the base of another one."""
    view, total = docs.view, len(docs.base)
    reason, source, survivor = map(view.read, ("reason", "survivor_source", "survivor"))
    copies, masked = None, NO_RANGES
    if len(docs) + len(view.dropped) != total:
        copies = np.bincount(docs.document, minlength=total)
    if view.masks:
        document, start, stop = (column.astype(np.int64) for column in view.masked)
        masked = MaskedRanges(document, start, stop, view.read("mask_reason"))
    return SourceView(
        documents=total,
        dropped=view.dropped.astype(np.int64),
        reason=reason,
        reasons=view.entry.reasons,
        survivor_source=source,
        survivor=survivor,
        survivors=view.entry.survivors,
        copies=copies,
        masked=masked,
    )


def stacked(lower: SourceView, upper: SourceView) -> SourceView:
    """What both drop and mask, in numbers of the source; copies multiply.

    A document that both drop keeps the reason of the lower one.

    >>> lower = SourceView(documents=4, dropped=np.array([2]), reasons=["near"])
    >>> upper = SourceView(documents=4, dropped=np.array([0, 2]), reasons=["where"])
    >>> both = stacked(lower, upper)
    >>> both.dropped.tolist(), [both.reasons[each] for each in both.reason]
    ([0, 2], ['where', 'near'])
    """
    copies = None
    if lower.copies is not None or upper.copies is not None:
        every = slice(None)
        copies = lower.times(every) * upper.times(every)
    return replace(_together(lower, upper), copies=copies)


def of_both_sides(one: SourceView, other: SourceView) -> tuple[SourceView, SourceView]:
    """The views of the two sides of preference pairs: what one drops, the other drops too."""
    copies = None
    if one.copies is not None or other.copies is not None:
        every = slice(None)
        copies = np.minimum(_or_most(one, every), _or_most(other, every))
    unmasked = [replace(each, masked=NO_RANGES) for each in (other, one)]
    first, second = (_together(*sides) for sides in zip((one, other), unmasked, strict=True))
    return replace(first, copies=copies), replace(second, copies=copies)


def _or_most(view: SourceView, every: slice) -> Ints:
    """Copies of each document; where nothing is said of them, as many as the other side wants."""
    return np.full(view.documents, 2**62) if view.copies is None else view.times(every)


def _together(first: SourceView, second: SourceView) -> SourceView:
    """What either drops and masks, with the reasons of the first where both do."""
    both = first, second
    reasons = list(dict.fromkeys([*first.reasons, *second.reasons]))
    survivors = list(dict.fromkeys([*first.survivors, *second.survivors]))
    fresh = np.flatnonzero(~np.isin(second.dropped, first.dropped, assume_unique=True))
    order = np.argsort(np.concatenate([first.dropped, second.dropped[fresh]]))

    def joined(one: AnyInts, other: AnyInts) -> Ints:
        return np.concatenate([one, other[fresh]]).astype(np.int64)[order]

    named = [_renumbered(view.reason_of_each, view.reasons, reasons) for view in both]
    found = [_renumbered(view.source_of_each, view.survivors, survivors) for view in both]
    masked = [
        each.masked._replace(reason=_renumbered(each.masked.reason, each.reasons, reasons))
        for each in both
    ]
    return SourceView(
        documents=first.documents,
        dropped=joined(first.dropped, second.dropped),
        reason=joined(*named).astype(np.uint8),
        reasons=reasons,
        survivor_source=joined(*found).astype(np.int32),
        survivor=joined(first.survivor_of_each, second.survivor_of_each),
        survivors=survivors,
        masked=MaskedRanges(*(np.concatenate(each) for each in zip(*masked, strict=True))),
    )


def _renumbered(numbers: AnyInts, names: Sequence[str], among: list[str]) -> Ints:
    """Numbers of names as numbers of the same names in another list; -1 stays."""
    places = np.array([*map(among.index, names), -1])
    found: Ints = places[numbers]
    return found
