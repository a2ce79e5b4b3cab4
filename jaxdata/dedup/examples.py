"""Examples of what a view drops: a copy beside the document that stays, spans and where else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import Kind, Span
from jaxdata.dataset.views.source_view import DONE, stays

_TOKENS = 400  # of a span that are shown
_DOCUMENTS = 5  # that are named
_SPAN_WORDS = 60  # words


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
        text = " ".join(words[:_SPAN_WORDS]) + (
            " …" if len(words) > _SPAN_WORDS or stop < span.stop else ""
        )
        yield SpanExample(docs.name, documents, span, kind, int(times[each]), text)


_WORDS = 2_000  # of a document that are compared: a diff takes the square of that
_CONTEXT = 6
_PASSAGE_WORDS = 24  # words of a passage
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
        if self.passages is None:
            return
        for kind, one, two in self.passages:
            if kind == "same":
                yield f"    {brief(one)}"
            else:
                yield from (
                    f"  {mark} {brief(text)}"
                    for mark, text in zip("-+", (one, two), strict=True)
                    if text
                )


def examples(dataset: Dataset, view: str, most: int) -> Iterator[Example | SpanExample]:
    """Examples of each source and reason, the largest clusters and most frequent spans first.

    Raises:
        InputError: no source has such a view, or it has no copies.
    """
    found = 0
    for source in dataset:
        for of_source in (examples_of_source, spans_of_source):
            for each in of_source(dataset, source, view, most):
                found += 1
                yield each
    if not found:
        raise InputError(
            f"no source of {dataset.url} has a view {view!r} that drops copies: jaxdata dedup "
            "makes one, jaxdata inspect --views shows what there is"
        )


def examples_of_source(dataset: Dataset, source: str, view: str, most: int) -> Iterator[Example]:
    """Those of one source, at most so many of each reason; none if it has no such view."""
    docs = _with_view(dataset, source, view)
    if docs is not None:
        yield from _of_source(dataset, docs, most)


def spans_of_source(dataset: Dataset, source: str, view: str, most: int) -> Iterator[SpanExample]:
    """Its spans that the view masks or cuts out, at most so many of each reason."""
    docs = _with_view(dataset, source, view)
    if docs is not None:
        yield from examples_of_spans(dataset, docs, most)


def _with_view(dataset: Dataset, source: str, view: str) -> Any:
    """The documents of a source through a view; None where it has no such view."""
    entry = dataset[source].entry
    if entry is None or view not in entry.views:
        return None
    split, _, name = source.partition("/")
    return dataset.source(split, name, documents=view)


def _of_source(dataset: Dataset, docs: Any, most: int) -> Iterator[Example]:
    index = docs.view
    source, survivor = index.read("survivor_source"), index.read("survivor")
    if survivor is None:
        return
    _, cluster, sizes = np.unique(
        np.stack([source, survivor]), axis=1, return_inverse=True, return_counts=True
    )
    copies = sizes[cluster.ravel()]
    reasons = index.read("reason")
    for reason in np.unique(reasons[source >= 0]).tolist():
        of = np.flatnonzero((reasons == reason) & (source >= 0))
        for at in _largest(of, copies[of], most).tolist():
            yield _example(dataset, docs, int(index.dropped[at]), int(copies[at]))


def _largest(places: AnyInts, sizes: AnyInts, most: int) -> AnyInts:
    """Some of the places: those of the largest sizes, in order."""
    return places[np.sort(np.argsort(-sizes, kind="stable")[:most])]


def _example(dataset: Dataset, docs: Any, number: int, copies: int) -> Example:
    fate = docs.view.fate(number)
    name, place = fate.survivor
    passages = None
    if name in dataset:
        texts = [_words(dataset, dataset[name], place), _words(dataset, docs.base, number)]
        passages = list(differing(*texts))
    return Example((docs.name, number), fate.survivor, fate.reason, copies, passages)


def _words(dataset: Dataset, docs: Documents, number: int) -> list[str]:
    """The beginning of a document."""
    return dataset.decode(docs[number]["tokens"][: 4 * _WORDS]).split()[:_WORDS]


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
