"""Examples of spans that a view masks or cuts out: their text, how often, and where they stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdata.documents.dataset import Dataset
from jaxdata.format.views import Kind, Span
from jaxdata.ragged import Ints
from jaxdata.views.fates import DONE, stays

_TOKENS = 400  # of a span that are shown
_DOCUMENTS = 5  # that are named
_SHOWN = 60  # words


@dataclass(frozen=True)
class SpanExample:
    """A span of a document that has no loss, or is cut out.

    Attributes:
        source: `"<split>/<source>"`.
        documents: those that have such a span, at most a few; the first has this one.
        span: its tokens, why, and where they stay.
        kind: what becomes of it.
        times: such spans in the source: of the same tokens as this one begins with.
        text: its beginning.
    """

    source: str
    documents: list[int]
    span: Span
    kind: Kind
    times: int
    text: str

    def lines(self) -> Iterator[str]:
        """What people see."""
        start, stop, reason, first = self.span
        yield (
            f"{self.source}:{self.documents[0]} ({reason}): view {DONE[self.kind]} tokens "
            f"{start:,} to {stop - 1:,}{stays(first)}"
        )
        if self.times > 1:
            more = ", …" if len(self.documents) == _DOCUMENTS else ""
            named = ", ".join(map(str, self.documents))
            yield f"  {self.times:,} times in {self.source}, in documents {named}{more}"
        yield f"  = {self.text}"


def examples_of_spans(dataset: Dataset, docs: Any, most: int) -> Iterator[SpanExample]:
    """Those of documents of a view, at most so many of each reason: the most frequent ones."""
    for kind in DONE:
        if (firsts := docs.view.firsts(kind)) is not None:
            reasons = docs.view.read(f"{kind}_reason")
            for reason in np.unique(reasons).tolist():
                mine = np.flatnonzero((reasons == reason) & (firsts[:, 0] >= 0))
                yield from _of_reason(dataset, docs, kind, mine, firsts[mine], most)


def _of_reason(
    dataset: Dataset, docs: Any, kind: Kind, ranges: Ints, firsts: Ints, most: int
) -> Iterator[SpanExample]:
    _, at, group, times = np.unique(
        firsts, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    numbers = docs.view.ranges(kind)[0]
    for each in np.argsort(-times, kind="stable")[:most].tolist():
        same = ranges[np.flatnonzero(group.ravel() == each)[: 100 * _DOCUMENTS]]
        documents = np.unique(numbers[same])[:_DOCUMENTS].tolist()
        span = docs.view.span(kind, int(ranges[at[each]]))
        stop = min(span.stop, span.start + _TOKENS)
        words = dataset.decode(docs.base.read(documents[0], span.start, stop)).split()
        text = " ".join(words[:_SHOWN]) + (" …" if len(words) > _SHOWN or stop < span.stop else "")
        yield SpanExample(docs.name, documents, span, kind, int(times[each]), text)
