"""What a view makes of a source: which documents go, and why; what that is in tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.manifest import Amount, ViewAccount
from jaxdata.dataset.views.columns import Kind, Span, ViewIndex
from jaxdata.dataset.views.cuts import NO_RANGES, TokenRanges
from jaxdata.dataset.views.kept_documents import KeptDocuments

_AT_ONCE = 2**24  # documents
_MOST_REASONS = 256


def _none() -> Ints:
    return np.empty(0, np.int64)


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
    masked: TokenRanges = NO_RANGES
    """that have no loss"""
    cut: TokenRanges = NO_RANGES
    """that are not there: what is left between them are documents of their own"""

    def __post_init__(self) -> None:
        dropped, reasons = self.dropped, self.reason_of_each
        wrong = {
            "dropped is not ascending": (dropped[1:] <= dropped[:-1]).any(),
            "dropped is out of range": len(dropped)
            and not 0 <= dropped[0] <= dropped[-1] < self.documents,
            "reason is of another length": len(reasons) != len(dropped),
            "a reason has no name": any(
                len(each) and each.max() >= len(self.reasons)
                for each in (reasons, self.masked.reason, self.cut.reason)
            ),
            "copies are of another number of documents": self.copies is not None
            and len(self.copies) != self.documents,
            "a document without copies is not dropped": _lost(self.copies, dropped),
            "a survivor has no name": any(
                each.first[:, 0].max(initial=-1) >= len(self.survivors)
                for each in (self.masked, self.cut)
            ),
            "there are too many reasons": len(self.reasons) > _MOST_REASONS,
            "a masked range is none": _no_range(self.masked),
            "a range to be cut is none": _no_range(self.cut),
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


def _no_range(ranges: TokenRanges) -> bool:
    return bool((ranges.start >= ranges.stop).any() or (ranges.start < 0).any())


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
    copies = None
    if len(docs) + len(view.dropped) != total:
        copies = _copies(docs)
    return SourceView(
        documents=total,
        dropped=view.dropped.astype(np.int64),
        reason=reason,
        reasons=view.entry.reasons,
        survivor_source=source,
        survivor=survivor,
        survivors=view.entry.survivors,
        copies=copies,
        masked=_ranges(view, "mask"),
        cut=_ranges(view, "cut"),
    )


def _copies(docs: KeptDocuments) -> Ints:
    """How often each document of the source is listed; of one that is cut, its first piece."""
    if not docs.view.cuts:
        return np.bincount(docs.document, minlength=len(docs.base))
    _, at, counts = np.unique(docs.document, return_index=True, return_counts=True)
    first = docs.view.starts[at].repeat(counts)
    return np.bincount(docs.document[docs.view.starts == first], minlength=len(docs.base))


def _ranges(view: ViewIndex, kind: Kind) -> TokenRanges:
    """The ranges of a kind, as they were given."""
    reason = view.read(f"{kind}_reason")
    if reason is None:
        return NO_RANGES
    document, start, stop = (column.astype(np.int64) for column in view.ranges(kind))
    found = TokenRanges.of(document, start, stop, first=view.firsts(kind))
    return found._replace(reason=reason)


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
    return SourceView(
        documents=first.documents,
        dropped=joined(first.dropped, second.dropped),
        reason=joined(*named).astype(np.uint8),
        reasons=reasons,
        survivor_source=joined(*found).astype(np.int32),
        survivor=joined(first.survivor_of_each, second.survivor_of_each),
        survivors=survivors,
        masked=_all_ranges([each.masked for each in both], both, reasons, survivors),
        cut=_all_ranges([each.cut for each in both], both, reasons, survivors),
    )


def _all_ranges(
    ranges: Sequence[TokenRanges],
    views: Sequence[SourceView],
    reasons: list[str],
    survivors: list[str],
) -> TokenRanges:
    """The ranges of several views, with reasons and survivors in one list."""
    return TokenRanges.join(
        each._replace(
            reason=_renumbered(each.reason, view.reasons, reasons),
            first=np.column_stack(
                [_renumbered(each.first[:, 0], view.survivors, survivors), each.first[:, 1:]]
            ),
        )
        for each, view in zip(ranges, views, strict=True)
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
        documents=view.documents,
        dropped=gone.document,
        reason=gone.reason.astype(np.uint8),
        reasons=view.reasons,
    )
    both = _together(replace(view, cut=NO_RANGES), lost)
    return replace(both, copies=view.copies, cut=cut.take(~whole))


def _renumbered(numbers: AnyInts, names: Sequence[str], among: list[str]) -> Ints:
    """Numbers of names as numbers of the same names in another list; -1 stays."""
    places = np.array([*map(among.index, names), -1])
    found: Ints = places[numbers]
    return found


DONE: Mapping[Kind, str] = {"mask": "masks", "cut": "cuts out"}
"""what a view does with ranges"""


def described_fate(documents: Documents, document: int) -> dict[str, Any]:
    """What the view through which documents are read makes of one; empty where there is none."""
    if not isinstance(documents, KeptDocuments):
        return {}
    fate = documents.view.fate(document)
    masked, cut = (documents.view.ranges_of(document, kind) for kind in DONE)
    listed = documents.numbers_of(document)
    starts = documents.view.starts[listed].tolist() if cut else [0] * len(listed)
    return {
        "view": {
            "name": documents.view.name,
            "copies": starts.count(starts[0]) if starts else 0,
            "reason": None if fate is None else fate.reason,
            "survivor": None if fate is None else fate.survivor,
            "masked": [*map(_described, masked)],
            **({"cut": [*map(_described, cut)], "pieces": len({*starts})} if cut else {}),
        }
    }


def _described(span: Span) -> dict[str, Any]:
    """A range; where its tokens stay, if that is known."""
    return {name: value for name, value in span._asdict().items() if value is not None}


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
            yield f"{name} {done} {where}: {each['reason']}{stays(each.get('first'))}"
    if view.get("pieces", 1) > 1:
        yield f"{name} makes {view['pieces']:,} documents of what is left"


def stays(first: Sequence[Any] | None) -> str:
    """Where the same tokens stay, if that is known."""
    if first is None:
        return ""
    source, document, token = first
    return f"; {source}:{document} has them" + (f" from token {token:,} on" if token >= 0 else "")


Columns = Mapping[str, NDArray[Any]]


def account_of(
    lengths: NDArray[np.uint32], view: SourceView, columns: Columns, *, masked: bool
) -> ViewAccount:
    """The account of a view of documents of `lengths` tokens, from the columns to be written.

    `masked` says whether the source has loss masks of its own.
    """
    dropped = columns["dropped"]
    tokens = int(lengths.sum(dtype=np.int64))
    listed = Amount(
        documents=len(columns["document"]), tokens=int(columns["length"].sum(dtype=np.int64))
    )
    lost = {
        reason: Amount(documents=count, tokens=size)
        for reason, count, size in _by_reason(view, columns["reason"], lengths[dropped])
    }
    cut = dict(_ranges_of_account(view, columns, "cut"))
    return ViewAccount(
        source=Amount(documents=len(lengths), tokens=tokens),
        kept=Amount(
            documents=len(lengths) - len(dropped),
            tokens=tokens - sum(each.tokens for each in (*lost.values(), *cut.values())),
        ),
        listed=listed,
        dropped=lost,
        masked=dict(_ranges_of_account(view, columns, "mask")),
        cut=cut,
        loss_tokens=None if masked else listed.tokens - _without_loss(columns),
    )


def _ranges_of_account(
    view: SourceView, columns: Columns, kind: Kind
) -> Iterator[tuple[str, Amount]]:
    """Ranges of a kind by reason."""
    if f"{kind}_document" in columns:
        sizes = columns[f"{kind}_stop"].astype(np.int64) - columns[f"{kind}_start"]
        for reason, count, size in _by_reason(view, columns[f"{kind}_reason"], sizes):
            yield reason, Amount(ranges=count, tokens=size)


def _without_loss(columns: Columns) -> int:
    """Listed tokens without loss: the first of each document, and those in masked ranges."""
    listed = columns["document"]
    if "mask_document" not in columns:
        return len(listed)
    masked, begin = columns["mask_document"], np.zeros(1, np.int64)
    if "start" in columns:
        begin = columns["start"].astype(np.int64)
        listed = listed.astype(np.int64) << 32 | begin
        masked = masked.astype(np.int64) << 32 | columns["mask_start"]
    last = np.searchsorted(listed, masked, "right")
    first = np.searchsorted(listed, listed[last - 1])
    first_token = begin.take(last - 1, mode="clip")
    targets = columns["mask_stop"].astype(np.int64) - np.maximum(
        columns["mask_start"], first_token + 1
    )
    return len(listed) + int(((last - first) * targets).sum())


def _by_reason(
    view: SourceView, reason: NDArray[Any], sizes: NDArray[Any]
) -> Iterator[tuple[str, int, int]]:
    """Each reason that occurs, how often, and the sum of the sizes there."""
    for number, name in enumerate(view.reasons):
        mine = reason == number
        if count := int(mine.sum()):
            yield name, count, int(sizes[mine].sum(dtype=np.int64))


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
