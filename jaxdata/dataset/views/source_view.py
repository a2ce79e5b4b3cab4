"""What a view makes of a source: which documents and tokens go, and why; how many that are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyInts, Ints, expand, merged
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.manifest import Amount, ViewAccount, ViewEntry
from jaxdata.dataset.views.kept_documents import KINDS, KeptDocuments, number_type

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

    def merged(self, lengths: NDArray[np.uint32], *, least: int = 1) -> TokenRanges:
        """The same tokens as ranges that are ascending and apart, none beyond its document's end.

        Where two of a document meet they are one, with the reason of the first. What is left
        before, between and after them has at least so many tokens: less belongs to them, too.

        >>> ranges = TokenRanges.of(*map(np.array, ([3, 3, 1], [2, 0, 0], [9, 2, 5])))
        >>> found = ranges.merged(np.array([9, 9, 9, 7]))
        >>> found.document.tolist(), found.start.tolist(), found.stop.tolist()
        ([1, 3], [0, 0], [5, 7])
        """
        found = self.take(np.lexsort((self.start, self.document)))
        found = found.take(found.start < lengths[found.document])
        length = lengths[found.document].astype(np.int64)
        stop = np.where(found.stop > length - least, length, found.stop)
        start = np.where(found.start < least, 0, found.start)
        _, start, stop, owner = merged(found.document, start, stop, gap=least - 1)
        firsts = np.unique(owner, return_index=True)[1]
        return found.take(firsts)._replace(start=start, stop=stop)


NO_RANGES = TokenRanges.of(_none(), _none(), _none())


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
        none = np.full(len(self.dropped), -1)
        self.reason = self.reason if len(self.reason) else none + 1
        self.survivor_source = self.survivor_source if len(self.survivor_source) else none
        self.survivor = self.survivor if len(self.survivor) else none
        ranges = TokenRanges.join([self.masked, self.cut])
        whys = np.concatenate([self.reason, ranges.reason])
        copies = np.ones(self.documents) if self.copies is None else self.copies
        edges = np.concatenate([[-1], self.dropped, [self.documents]])
        right = (
            (edges[1:] > edges[:-1]).all()
            and len({len(getattr(self, name)) for name in _OF_DROPPED}) == 1
            and (whys < min(len({*self.reasons}), _MOST_REASONS)).all()
            and (self.survivor_source < len(self.survivors)).all()
            and len(copies) == self.documents
            and np.isin(np.flatnonzero(copies <= 0), self.dropped).all()
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


def content_of(docs: KeptDocuments) -> SourceView:
    """What a view that was written makes of its source: the base of another one."""
    view, total = docs.view, len(docs.base)
    numbers = np.asarray(docs.document)
    if view.cuts:  # of a document, the first of its pieces
        starts = np.asarray(view.starts(slice(None)))
        _, at, counts = np.unique(numbers, return_index=True, return_counts=True)
        numbers = numbers[starts == starts[at].repeat(counts)]
    known = len(numbers) + len(view.column("dropped"))
    once = known == total and (numbers[1:] != numbers[:-1]).all()
    return SourceView(
        documents=total,
        **{name: view.column(name).astype(np.int64) for name in _OF_DROPPED if view.has(name)},
        reasons=view.entry.reasons,
        survivors=view.entry.survivors,
        copies=None if once else np.bincount(numbers, minlength=total),
        masked=TokenRanges(*view.ranges("mask")),
        cut=TokenRanges(*view.ranges("cut")),
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
    return _together(lower, upper, np.multiply)


def of_both_sides(one: SourceView, other: SourceView) -> SourceView:
    """The view of one of the two sides of preference pairs: what one drops, the other drops too."""
    return _together(one, replace(other, masked=NO_RANGES), np.minimum)


def _together(first: SourceView, second: SourceView, copies: np.ufunc) -> SourceView:
    """What either drops, masks and cuts, with the reasons of the first where both do."""
    reasons, why = _joined(first.reasons, second.reasons)
    survivors, whose = _joined(first.survivors, second.survivors)
    second = replace(
        second,
        reasons=reasons,
        survivors=survivors,
        reason=why[second.reason],
        survivor_source=whose[second.survivor_source],
        masked=second.masked._replace(reason=why[second.masked.reason]),
        cut=second.cut._replace(reason=why[second.cut.reason]),
    )
    both: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in _OF_DROPPED
    }
    _, at = np.unique(both["dropped"], return_index=True)  # of two equal ones, the first
    given = [each.copies.astype(np.int64) for each in (first, second) if each.copies is not None]
    return replace(
        second,
        **{name: column[at] for name, column in both.items()},
        masked=TokenRanges.join([first.masked, second.masked]),
        cut=TokenRanges.join([first.cut, second.cut]),
        copies=copies.reduce(given) if given else None,
    )


def _joined(first: Sequence[str], second: Sequence[str]) -> tuple[list[str], Ints]:
    """The names of both, and which of them those of the second are; -1 stays."""
    names = [*first, *(name for name in second if name not in first)]
    return names, np.array([*map(names.index, second), -1])


def _apart(line: AnyInts, lengths: NDArray[np.uint32]) -> Ints:
    """Where documents begin on one line, with room between them."""
    return line.astype(np.int64) * (int(lengths.max(initial=0)) + 1)


def pieces(documents: AnyInts, lengths: NDArray[np.uint32], cut: TokenRanges) -> TokenRanges:
    """What is left of some documents between ranges that are ascending and apart.

    >>> cut = TokenRanges.of(*map(np.array, ([3, 3], [0, 5], [2, 6])))
    >>> [each.tolist() for each in pieces(np.array([1, 3]), np.array([9, 9, 9, 8]), cut)[:3]]
    [[1, 3, 3], [0, 2, 6], [9, 5, 8]]
    """
    cut = cut.take(np.isin(cut.document, documents))
    begin, inner = (_apart(each, lengths) for each in (documents, cut.document))
    # On one line what is left ends where the next range starts, or its document ends.
    starts = np.sort(np.concatenate([begin, inner + cut.stop]))
    stops = np.sort(np.concatenate([begin + lengths[documents], inner + cut.start]))
    owner = np.sort(np.concatenate([documents, cut.document]))
    left = TokenRanges.of(owner, starts - _apart(owner, lengths), stops - _apart(owner, lengths))
    return left.take(left.start < left.stop)


def outside(ranges: TokenRanges, lengths: NDArray[np.uint32], cut: TokenRanges) -> TokenRanges:
    """The parts of ranges that are not cut out; both are ascending and apart."""
    left = pieces(np.unique(ranges.document), lengths, cut)
    place, piece = (_apart(each.document, lengths) for each in (ranges, left))
    first = np.searchsorted(piece + left.stop, place + ranges.start, "right")
    last = np.searchsorted(piece + left.start, place + ranges.stop, "left")
    which, number = expand(np.maximum(last - first, 0))
    at = first[which] + number
    found = ranges.take(which)
    return found._replace(
        start=np.maximum(found.start, left.start[at]), stop=np.minimum(found.stop, left.stop[at])
    )


def settled(view: SourceView, lengths: NDArray[np.uint32]) -> SourceView:
    """The view with its ranges ascending and apart, of documents that it keeps.

    A document of which nothing is left is dropped, and so is one without tokens, which was deleted.
    A single token that is left is cut as well: it is nobody's target.
    """
    if len(deleted := np.flatnonzero(lengths == 0)):
        without = SourceView(documents=view.documents, dropped=deleted, reasons=("deleted",))
        view = _together(without, view, np.multiply)
    cut = _of_kept(view, view.cut).merged(lengths, least=2)
    whole = cut.stop - cut.start == lengths[cut.document]
    if len(gone := cut.take(whole).document):
        why = cut.reason[whole]
        lost = SourceView(documents=view.documents, dropped=gone, reason=why, reasons=view.reasons)
        view = _together(view, lost, np.multiply)
    masked = _of_kept(view, view.masked).merged(lengths)
    cut = cut.take(~whole)
    masked = outside(masked, lengths, cut) if len(cut.document) else masked
    return replace(view, cut=cut, masked=masked)


def _of_kept(view: SourceView, ranges: TokenRanges) -> TokenRanges:
    return ranges.take(~np.isin(ranges.document, view.dropped))


def described_fate(documents: Documents, document: int) -> dict[str, Any]:
    """What the view through which documents are read makes of one; empty where there is none."""
    if not isinstance(documents, KeptDocuments):
        return {}
    view, listed = documents.view, documents.numbers_of(document)
    fate = view.fate(document)
    masked, cut = ([span._asdict() for span in view.ranges_of(document, kind)] for kind in KINDS)
    starts = np.broadcast_to(view.starts(np.array(listed, int)), len(listed)).tolist()
    found = {
        "name": view.name,
        "copies": starts.count(starts[0]) if starts else 0,
        "reason": None if fate is None else fate.reason,
        "survivor": None if fate is None else fate.survivor,
        "masked": masked,
    }
    return {"view": found | ({"cut": cut, "pieces": len({*starts})} if cut else {})}


def fate_lines(view: Mapping[str, Any]) -> Iterator[str]:
    """What a view makes of a document: whether it is trained, why not, and what without loss."""
    name = f"view {view['name']}"
    if not view["copies"]:
        survivor = view["survivor"]
        survives = f"; {survivor[0]}:{survivor[1]} survives" if survivor else ""
        yield f"not trained with {name}: {view['reason'] or 'not listed'}{survives}"
    elif view["copies"] > 1:
        yield f"{name} lists it {view['copies']:,} times"
    for done, ranges in (("masks", view["masked"]), ("cuts out", view.get("cut", []))):
        for each in ranges:
            where = f"tokens {each['start']:,} to {each['stop'] - 1:,}"
            yield f"{name} {done} {where}: {each['reason']}"
    if view.get("pieces", 1) > 1:
        yield f"{name} makes {view['pieces']:,} documents of what is left"


def account_of(
    lengths: NDArray[np.uint32], view: SourceView, listed: Amount, *, masked: bool
) -> ViewAccount:
    """The account of a view that is settled, of documents of `lengths` tokens.

    `masked` says whether the source has loss masks of its own.
    """
    tokens = int(lengths.sum(dtype=np.int64))
    lost = _amounts(view, view.reason, lengths[view.dropped], "documents")
    hidden, gone = (
        _amounts(view, each.reason, each.stop - each.start, "ranges")
        for each in (view.masked, view.cut)
    )
    left = tokens - sum(each.tokens for each in (*lost.values(), *gone.values()))
    return ViewAccount(
        source=Amount(documents=view.documents, tokens=tokens),
        kept=Amount(documents=view.documents - len(view.dropped), tokens=left),
        listed=listed,
        dropped=lost,
        masked=hidden,
        cut=gone,
        loss_tokens=None if masked or hidden else listed.tokens - listed.documents,
    )


def _amounts(view: SourceView, reason: AnyInts, sizes: AnyInts, of: str) -> dict[str, Amount]:
    """How many there are of each reason that occurs, and the sum of their sizes."""
    counts = np.bincount(reason, minlength=len(view.reasons)).tolist()
    tokens = np.bincount(reason, sizes, len(view.reasons)).tolist()  # exact up to 2**53
    found = zip(view.reasons, counts, tokens, strict=True)
    return {name: Amount(**{of: count}, tokens=int(sum_)) for name, count, sum_ in found if count}


def described_view(view: ViewEntry) -> dict[str, Any]:
    """A view as plain JSON values: its size, its account and what it was made with."""
    names = {"generation", "documents", "tokens", "fingerprint", "parameters", "account"}
    return view.model_dump(include=names)


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
