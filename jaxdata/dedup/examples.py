"""Examples of what a view drops: a copy beside the document that stays, spans and where else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.views.kept_documents import Kind, Span
from jaxdata.dataset.views.source_view import DONE, stays

_WORDS = 2_000  # of a document that are compared: a diff takes the square of that
_CONTEXT = 6
_PASSAGE_WORDS = 24  # words of a passage
_SPAN_TOKENS, _SPAN_WORDS = 400, 60  # of a span that are shown
_DOCUMENTS = 5  # that are named
Passage = tuple[str, str, str]
"""("same", text, ""), or ("other", what stays, the copy)"""


@dataclass(frozen=True)
class Example:
    """A document that is dropped, and the one that stays.

    Attributes:
        copy: its source and number.
        survivor: the other's; a benchmark file and its line or row.
        reason: why it is dropped.
        copies: documents of the source that are dropped for the same survivor.
        passages: both texts, in pieces; None where the survivor's is not in the dataset.
    """

    copy: tuple[str, int]
    survivor: tuple[str, int]
    reason: str
    copies: int
    passages: list[Passage] | None

    def lines(self) -> Iterator[str]:
        """What people see: words only in what stays after `-`, only in the copy after `+`."""
        (source, number), (other, place) = self.copy, self.survivor
        more = f", as it does for {self.copies - 1:,} more" if self.copies > 1 else ""
        yield f"{source}:{number} ({self.reason}): {other}:{place} stays{more}"
        for kind, one, two in self.passages or ():
            if kind == "same":
                yield f"    {brief(one)}"
            else:
                both = zip("-+", (one, two), strict=True)
                yield from (f"  {mark} {brief(text)}" for mark, text in both if text)


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


def examples(dataset: Dataset, view: str, most: int) -> Iterator[Example | SpanExample]:
    """Examples of each source and reason, the largest clusters and most frequent spans first.

    Raises:
        InputError: no source has such a view, or it has no copies.
    """
    found = 0
    for source in dataset:
        for each in examples_of_source(dataset, source, view, most):
            found += 1
            yield each
    if not found:
        raise InputError(
            f"no source of {dataset.url} has a view {view!r} that drops copies: jaxdata dedup "
            "makes one, jaxdata inspect --views shows what there is"
        )


def examples_of_source(
    dataset: Dataset, source: str, view: str, most: int
) -> Iterator[Example | SpanExample]:
    """Those of one source, copies first, at most so many of each reason.

    None where the source has no such view.
    """
    entry = dataset[source].entry
    if entry is not None and view in entry.views:
        split, _, name = source.partition("/")
        docs: Any = dataset.source(split, name, documents=view)
        yield from _copies(dataset, docs, most)
        for kind in DONE:
            yield from _spans(dataset, docs, kind, most)


def _copies(dataset: Dataset, docs: Any, most: int) -> Iterator[Example]:
    index = docs.view
    source, survivor = index.read("survivor_source"), index.read("survivor")
    if survivor is None:
        return
    both = np.stack([source, survivor])
    _, cluster, sizes = np.unique(both, axis=1, return_inverse=True, return_counts=True)
    copies, reasons = sizes[cluster.ravel()], index.read("reason")
    for reason in np.unique(reasons[source >= 0]).tolist():
        of = np.flatnonzero((reasons == reason) & (source >= 0))
        for at in of[np.sort(np.argsort(-copies[of], kind="stable")[:most])].tolist():
            yield _copy(dataset, docs, int(index.dropped[at]), int(copies[at]))


def _copy(dataset: Dataset, docs: Any, number: int, copies: int) -> Example:
    fate = docs.view.fate(number)
    name, place = fate.survivor
    passages = None
    if name in dataset:
        one, other = (
            dataset.decode(documents[n]["tokens"][: 4 * _WORDS]).split()[:_WORDS]
            for documents, n in ((dataset[name], place), (docs.base, number))
        )
        passages = list(differing(one, other))
    return Example((docs.name, number), fate.survivor, fate.reason, copies, passages)


def differing(one: Sequence[str], other: Sequence[str]) -> Iterator[Passage]:
    """Two texts as passages that are the same or differ; long same ones are shortened.

    >>> list(differing("a b c d".split(), "a b x d".split()))
    [('same', 'a b', ''), ('other', 'c', 'x'), ('same', 'd', '')]
    """
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            words = list(one[a:b])
            if len(words) > 2 * _CONTEXT:
                words = [*words[:_CONTEXT], "…", *words[-_CONTEXT:]]
            yield "same", " ".join(words), ""
        else:
            yield "other", " ".join(one[a:b]), " ".join(other[c:d])


def brief(text: str) -> str:
    """A passage, cut after a few words."""
    words = text.split()
    return text if len(words) <= _PASSAGE_WORDS else " ".join([*words[:_PASSAGE_WORDS], "…"])


def _spans(dataset: Dataset, docs: Any, kind: Kind, most: int) -> Iterator[SpanExample]:
    """Spans that stay elsewhere, at most so many of each reason: the most frequent ones."""
    if (firsts := docs.view.firsts(kind)) is None:
        return
    reasons = docs.view.read(f"{kind}_reason")
    for reason in np.unique(reasons).tolist():
        ranges = np.flatnonzero((reasons == reason) & (firsts[:, 0] >= 0))
        _, at, group, times = np.unique(
            firsts[ranges], axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        for each in np.argsort(-times, kind="stable")[:most].tolist():
            same = ranges[np.flatnonzero(group.ravel() == each)[: 100 * _DOCUMENTS]]
            span = docs.view.span(kind, int(ranges[at[each]]))
            yield _span(dataset, docs, kind, same, span, int(times[each]))


def _span(
    dataset: Dataset, docs: Any, kind: Kind, same: Ints, span: Span, times: int
) -> SpanExample:
    documents = np.unique(docs.view.ranges(kind)[0][same])[:_DOCUMENTS].tolist()
    stop = min(span.stop, span.start + _SPAN_TOKENS)
    words = dataset.decode(docs.base.read(documents[0], span.start, stop)).split()
    cut = " …" if len(words) > _SPAN_WORDS or stop < span.stop else ""
    text = " ".join(words[:_SPAN_WORDS]) + cut
    return SpanExample(docs.name, documents, span, kind, times, text)
