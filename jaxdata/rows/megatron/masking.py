"""What Megatron finds in tokens: EODs without loss, segments that end there, rows that cross."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxdata.base.ragged import AnyArray, Bools, Ints, expand
from jaxdata.dataset.derived_documents import DerivedDocuments
from jaxdata.dataset.documents import Documents, Gathered
from jaxdata.rows.megatron.order import GptSettings
from jaxdata.rows.reading import read_tokens
from jaxdata.rows.table import ReadRanges, RowTable, Segments


class MaskedDocuments(DerivedDocuments):
    """Documents with masks beyond those that they store: of `eod_mask_loss` and `pad_id`.

    By document, its first token has no loss as a target, since its input is the last token of the
    document before. By EOD, what follows an EOD has none, wherever documents end; what a token
    follows is the token before it in the ranges asked for, end to end: ranges of a segment are
    asked for in order, and its first token is no target. Pads have no loss, and are 0.
    """

    def __init__(self, source: Documents, settings: GptSettings) -> None:
        super().__init__(source)
        self._settings, self.masked = settings, True

    def __reduce__(self) -> tuple[Any, ...]:
        return MaskedDocuments, (self.source, self._settings)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        pad_id = self._settings.pad_id
        if pad_id is None:
            return self.source.tokens(documents, starts, counts)
        tokens = self._joined(documents, starts, counts)
        return Gathered.cut(np.where(tokens == pad_id, 0, tokens).astype(tokens.dtype), counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        mask, settings = np.ones(counts.sum(), np.uint8), self._settings
        if self.source.masked:
            mask &= self.source.masks(documents, starts, counts).views.array(np.uint8)
        if settings.eod_mask_loss and settings.eod_id is None:
            mask[(np.cumsum(counts) - counts)[(starts == 0) & (counts > 0)]] = 0
        elif settings.eod_mask_loss:
            tokens = self._joined(documents, starts, counts)
            mask[1:][tokens[:-1] == settings.eod_id] = 0
        if settings.pad_id is not None:
            mask[self._joined(documents, starts, counts) == settings.pad_id] = 0
        return Gathered.cut(mask, counts)

    def _joined(self, documents: Ints, starts: Ints, counts: Ints) -> AnyArray:
        return self.source.tokens(documents, starts, counts).views.array(self.dtype)


class MegatronRows(RowTable):
    """Rows in Megatron's order.

    With `reset`, segments end with documents, and the target of a document's last token is the
    first token of the next one; without, a row is one segment, whatever documents are in it.
    By EOD, segments end with each EOD in the tokens instead, wherever documents end.
    `segments` gives the documents of a row in all cases; where the last target is the first
    token of another document, that document comes last, with no slots.
    """

    ends = True

    def __init__(self, documents: Sequence[Documents], settings: GptSettings) -> None:
        self.documents, self.settings = documents, settings
        self.seq_len = settings.seq_len
        self.positions = settings.positions if settings.reset else "row"

    def read_ranges(self, found: Segments, ended: Bools) -> ReadRanges:
        last = np.append(found.row[1:] != found.row[:-1], True)[: len(ended)]
        if not self.settings.add_extra_token_to_sequence:
            ended = ended | last
        whole, eod_id = _merged(found, ended, last), self.settings.eod_id
        if not self.settings.reset:
            return whole
        if eod_id is None:
            return cut_after((np.cumsum(whole.tokens) - 1)[ended & ~last], whole)
        # Pads are 0 in rows, and so may EODs be.
        as_stored = [d.source if isinstance(d, MaskedDocuments) else d for d in self.documents]
        return cut_after(places_of(eod_id, as_stored, whole), whole)


def _merged(found: Segments, ended: Bools, last: Bools) -> ReadRanges:
    """Each row is one segment."""
    first = np.flatnonzero(np.append(True, last[:-1])[: len(last)])
    slots = np.add.reduceat(found.slots, first) if len(first) else found.slots
    whole = replace(found.take(first), slots=slots)
    owner = np.repeat(np.arange(len(first)), np.diff(first, append=len(last)))
    return ReadRanges(whole, ended[last], found, found.slots + ~ended, owner)


_AT_ONCE = 2**12  # ranges, of a row at most, whose tokens are in memory together


def places_of(eod_id: int, sources: Sequence[Documents], reads: ReadRanges) -> Ints:
    """Where this id is among the tokens of `reads`, numbered end to end; increasing."""
    gathered, dtype = read_tokens(sources, reads)
    found, before = [np.empty(0, np.int64)], 0
    for first in range(0, len(gathered.range), _AT_ONCE):
        views = gathered.views.take(slice(first, first + _AT_ONCE))
        tokens = np.frombuffer(views.join(), dtype)
        found.append(before + np.flatnonzero(tokens == eod_id))
        before += len(tokens)
    return np.concatenate(found)


def cut_after(places: Ints, reads: ReadRanges) -> ReadRanges:
    """Cut segments after some of their inputs; the next input is the target of such a one.

    Args:
        places: of these inputs, among the tokens of all ranges end to end.
        reads: segments, each of consecutive tokens and with at least a slot.
    """
    length = reads.segments.slots + ~reads.ended
    first = np.cumsum(length) - length
    stop = first + reads.segments.slots
    after = places + 1
    cut = np.searchsorted(first, after, side="right") - 1
    begin = np.sort(np.append(first, after[(first[cut] < after) & (after < stop[cut])]))
    owner = np.searchsorted(first, begin, side="right") - 1
    end = np.minimum(np.append(begin[1:], stop[-1:]), stop[owner])
    ended = reads.ended[owner] & (end == stop[owner])
    segments = replace(reads.segments.take(owner), slots=end - begin)
    return _ranges_of(begin, end + ~ended, reads)._replace(segments=segments, ended=ended)


def _ranges_of(begin: Ints, end: Ints, reads: ReadRanges) -> ReadRanges:
    """Read the tokens `[begin, end)`, numbered through all ranges of `reads`, for segment *k*."""
    edge = np.cumsum(reads.tokens)
    first = np.searchsorted(edge, begin, side="right")
    last = np.searchsorted(edge, end - 1, side="right")
    owner, number = expand(last - first + 1)
    chosen = first[owner] + number
    before = (edge - reads.tokens)[chosen]
    start = np.maximum(begin[owner], before)
    stop = np.minimum(end[owner], edge[chosen])
    found = reads.ranges.take(chosen)
    ranges = replace(found, start=found.start + start - before)
    return reads._replace(ranges=ranges, tokens=stop - start, owner=owner)
