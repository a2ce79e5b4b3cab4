"""Documents of a view: a kept list of a source's documents, whose numbers are translated.

No token is copied. A document that is listed twice is two documents here; ranges that the view
masks have no loss, whatever masks are stored. Where it cuts ranges out, what is left between them
are documents of their own: tokens in a row, as all documents are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.ragged import AnyInts, Ints, consecutive, expand
from jaxdata.base.wording import nearest
from jaxdata.dataset.documents import Documents, Gathered, ListedDocuments, StatedLengths
from jaxdata.dataset.views.columns import ViewIndex


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
        self.loss_tokens = view.entry.account.loss_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptDocuments, (self.source, self.view)

    def __repr__(self) -> str:
        return (
            f"KeptDocuments({self.name!r}, {len(self):,} documents, view {self.view.name!r} of "
            f"{len(self.source):,})"
        )

    def __len__(self) -> int:
        return self.view.entry.documents

    @property
    def lengths(self) -> NDArray[np.uint32]:
        return self.view.lengths

    @property
    def document(self) -> AnyInts:
        return self.view.documents

    @property
    def stated_lengths(self) -> StatedLengths:
        """What the manifest says of them; where documents lie decides their pages as well."""
        return StatedLengths(self.view.entry.tokens, self.fingerprint)

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
            mask = np.frombuffer(bytearray(stored.views.join()), np.uint8)
        else:
            mask = np.ones(int(counts.sum()), np.uint8)
        mask[_masked_places(self.view.ranges("mask"), numbers, starts, counts)] = 0
        return Gathered.cut(mask, counts)


def _masked_places(
    masked: tuple[AnyInts, AnyInts, AnyInts], documents: Ints, starts: Ints, counts: Ints
) -> Ints:
    """Places, in some ranges of tokens laid end to end, that lie in masked ranges."""
    document, start, stop = masked
    first, last = (
        np.searchsorted(document, documents.astype(document.dtype), side)
        for side in ("left", "right")
    )
    asked, number = expand(last - first)
    at = first[asked] + number
    begin, end = (
        np.clip(edge[at].astype(np.int64) - starts[asked], 0, counts[asked])
        for edge in (start, stop)
    )
    before = np.cumsum(counts) - counts
    return consecutive(before[asked] + begin, np.maximum(end - begin, 0))


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
