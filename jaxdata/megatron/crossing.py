"""Rows whose last targets lie beyond the ends of documents, as Megatron's do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Documents
from jaxdata.megatron.eods import cut_after, places_of
from jaxdata.megatron.masking import unpadded
from jaxdata.megatron.settings import GptSettings
from jaxdata.rows.table import ReadRanges, RowTable, Segments


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
        self.merges_documents = not settings.reset or settings.by == "eod"

    def read_ranges(self, found: Segments, ended: NDArray[np.bool_]) -> ReadRanges:
        last = np.append(found.row[1:] != found.row[:-1], True)[: len(ended)]
        if not self.settings.add_extra_token_to_sequence:
            ended = ended | last
        if not self.merges_documents:
            return _crossed(found, ended, last)
        whole = _merged(found, ended, last)
        eod_id = self.settings.eod_id
        if not self.settings.reset or eod_id is None:
            return whole
        return cut_after(places_of(eod_id, list(map(unpadded, self.documents)), whole), whole)


def _merged(found: Segments, ended: NDArray[np.bool_], last: NDArray[np.bool_]) -> ReadRanges:
    """Each row is one segment."""
    first = np.flatnonzero(np.append(True, last[:-1])[: len(last)])
    slots = np.add.reduceat(found.slots, first) if len(first) else found.slots
    whole = replace(found.take(first), slots=slots)
    owner = np.repeat(np.arange(len(first)), np.diff(first, append=len(last)))
    return ReadRanges(whole, ended[last], found, found.slots + ~ended, owner)


def _crossed(found: Segments, ended: NDArray[np.bool_], last: NDArray[np.bool_]) -> ReadRanges:
    """The target of a document's last token is the first token of the next one in the row."""
    followed = ended & ~last
    with_slots = np.flatnonzero(found.slots > 0)
    more = followed[with_slots].astype(np.int64)
    owner = np.repeat(np.arange(len(with_slots)), 1 + more)
    added = np.zeros(len(owner), bool)
    added[(np.cumsum(1 + more) - 1)[more > 0]] = True
    ranges = with_slots[owner] + added
    tokens = np.where(added, 1, (found.slots + ~ended)[ranges])
    return ReadRanges(
        found.take(with_slots), (ended & ~followed)[with_slots], found.take(ranges), tokens, owner
    )
