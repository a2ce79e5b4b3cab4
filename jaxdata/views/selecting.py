"""`jaxdata.select`: a view of the documents of which an expression holds, or by their weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jaxdata.documents.converted import ConvertedDocuments
from jaxdata.documents.converted_dataset import ConvertedDataset, open_dataset
from jaxdata.documents.dataset import source_names
from jaxdata.documents.kept import KeptDocuments, base_of
from jaxdata.errors import InputError
from jaxdata.format.manifest import ViewEntry
from jaxdata.progress import Advance
from jaxdata.scalars import takes_numpy
from jaxdata.views.copies import MOST, copies_of
from jaxdata.views.document_fields import DocumentFields
from jaxdata.views.expressions import Expression
from jaxdata.views.score_files import Scores
from jaxdata.views.source_view import SourceView, content_of, stacked
from jaxdata.views.writing import check_name, write_views

REASONS = ("where", "where is unknown", "weight")
"""why a document is dropped: it is false, a field is missing, or it got no copy"""
_AT_ONCE = 2**16  # documents


@takes_numpy
def select(
    dataset: str | os.PathLike[str],
    name: str,
    *,
    where: str | None = None,
    weight: str | None = None,
    sources: Sequence[str] | None = None,
    split: str = "train",
    scores: str | os.PathLike[str] | None = None,
    scores_key: str | None = None,
    documents: str | None = None,
    seed: int = 0,
    progress: Advance = lambda _done, _total: None,
) -> dict[str, ViewEntry]:
    """Make a view of the documents that an expression chooses, and list them by their weights.

    Nothing is copied: `dataset.source(split, source, documents=name)` reads the documents that the
    view lists, and `documents: NAME` in a config trains on them.

    Args:
        dataset: a folder or URL of a dataset.
        name: of the view; one of the same name is replaced.
        where: which documents to keep, such as `"lang == 'en' and score > 0.7"`, over the fields
            that the conversion kept (`--keep`), those of `scores`, and `tokens`, `document`,
            `source` and `file`. A document of which it is unknown, as a field is missing, is
            dropped.
        weight: an expression for the times that each document is listed on average, as 2.3: it is
            listed 2 or 3 times, the same in every epoch. Below 1 it may be dropped.
        sources: their names; None for all of the split.
        split: their split.
        scores: a file with further fields: columns of `.parquet` or `.jsonl`, or a row of numbers
            (`.npy`, named `score`); in the order of the documents, or
        scores_key: by a column that is also a field of the documents.
        documents: a view to choose from; None for all documents. What it dropped stays dropped.
        seed: of the chances of weights.
        progress: called with (documents done, all).

    Returns:
        The entries of the view by source, `"<split>/<source>"`; `.account` says what it keeps.

    Raises:
        InputError: an expression, a field, a file or a name is wrong.
        DatasetError: there is no dataset, it is damaged, or another process writes these sources.

    >>> import tempfile
    >>> from jaxdata.testing import write_dataset
    >>> folder = tempfile.mkdtemp()
    >>> dataset = write_dataset(folder, {"train/web": [[1, 2, 0], [3, 0], [4, 5, 6, 0]]})
    >>> made = select(folder, "long", where="tokens > 2")
    >>> made["train/web"].account.kept.documents
    2
    """
    if where is None and weight is None:
        raise InputError("give where or weight: what to keep, or how often")
    check_name(name)
    opened = open_dataset(dataset)
    if not isinstance(opened, ConvertedDataset):
        raise InputError(f"{opened.url} is another tool's dataset, which can have no views")
    chosen = list(sources or source_names(opened, split))
    selection = _Selection(
        None if where is None else Expression(where, "--where"),
        None if weight is None else Expression(weight, "--weight"),
        None if scores is None else Scores(scores, scores_key),
        documents,
        seed,
        progress,
    )
    views, made_of = selection.of([opened.source(split, n, documents=documents) for n in chosen])
    parameters = selection.parameters
    return write_views(opened.store, name, views, parameters=parameters, made_of=made_of)


@dataclass(frozen=True)
class _Selection:
    """What chooses documents."""

    where: Expression | None
    weight: Expression | None
    scores: Scores | None
    documents: str | None
    seed: int
    progress: Advance

    @property
    def parameters(self) -> dict[str, Any]:
        """What decides the view, as the manifest keeps it; no path."""
        given = {
            "command": "select",
            "where": self.where and self.where.text,
            "weight": self.weight and self.weight.text,
            "scores": self.scores and self.scores.path.name,
            "scores_sha256": self.scores and self.scores.sha256,
            "scores_key": self.scores and self.scores.key,
            "documents": self.documents,
            "seed": self.seed if self.weight else None,
        }
        return {key: value for key, value in given.items() if value is not None}

    def of(self, read: Sequence[Any]) -> tuple[dict[str, SourceView], dict[str, str]]:
        """The view of each source, and the fingerprints that they have."""
        sources: list[Any] = [base_of(each) for each in read]
        self._check_order([docs.name for docs in sources])
        for docs in sources:
            self._check(docs)
        views: dict[str, SourceView] = {}
        done, total = 0, sum(map(len, sources))
        for docs, source in zip(read, sources, strict=True):
            lower = content_of(docs) if isinstance(docs, KeptDocuments) else None
            upper = self._view(source, lower, done, total)
            views[source.name] = upper if lower is None else stacked(lower, upper)
            done += len(source)
        return views, {docs.name: docs.fingerprint for docs in sources}

    def _check_order(self, names: Sequence[str]) -> None:
        if self.scores and self.scores.key is None and len(names) > 1:
            raise InputError(
                f"--scores {self.scores.path} in the order of documents is for one source, not for "
                f"{', '.join(names)}: choose one with --sources, or name a key with --scores-key"
            )

    def _check(self, docs: ConvertedDocuments) -> None:
        fields = DocumentFields(docs, self.scores)
        for expression, option in ((self.where, "--where"), (self.weight, "--weight")):
            if expression is not None:
                fields.check(expression.names, option)
        if self.scores is not None:
            self.scores.check(len(docs), docs.name)
            if self.scores.key is not None:
                fields.check([self.scores.key], "--scores-key")

    def _view(
        self, docs: ConvertedDocuments, lower: SourceView | None, before: int, total: int
    ) -> SourceView:
        fields, reasons = DocumentFields(docs, self.scores), []
        times = None if self.weight is None else np.ones(len(docs), np.uint16)
        for first in range(0, len(docs), _AT_ONCE):
            stop = min(first + _AT_ONCE, len(docs))
            reason = self._kept(fields, first, stop)
            if times is not None:
                wanted = _without(lower, reason, first)
                times[first:stop] = found = self._copies(docs, fields, wanted, first, stop)
                reason[wanted & (found == 0)] = REASONS.index("weight") + 1
            reasons.append(reason)
            self.progress(before + stop, total)
        reason = np.concatenate([np.empty(0, np.uint8), *reasons])
        dropped = np.flatnonzero(reason)
        return SourceView(
            documents=len(docs),
            dropped=dropped,
            reason=reason[dropped] - np.uint8(1),
            reasons=REASONS,
            copies=times,
        )

    def _kept(self, fields: DocumentFields, first: int, stop: int) -> NDArray[np.uint8]:
        """0 for each document of which the expression holds, else 1 + its reason."""
        if self.where is None:
            return np.zeros(stop - first, np.uint8)
        found = self.where.of(fields.of(self.where.names, first, stop), stop - first)
        if not (pa.types.is_boolean(found.type) or pa.types.is_null(found.type)):
            raise InputError(
                f"--where {self.where.text!r} is of type {found.type}: expected true or false, "
                "such as score > 0.7"
            )
        known = found.cast(pa.bool_())
        holds = known.fill_null(False).to_numpy(zero_copy_only=False)
        return np.where(known.is_null().to_numpy(zero_copy_only=False), 2, ~holds).astype(np.uint8)

    def _copies(
        self,
        docs: ConvertedDocuments,
        fields: DocumentFields,
        wanted: NDArray[np.bool_],
        first: int,
        stop: int,
    ) -> NDArray[np.int64]:
        """Times that documents are listed; 1 for those that are not wanted."""
        assert self.weight is not None
        found = self.weight.of(fields.of(self.weight.names, first, stop), stop - first)
        if not (pa.types.is_integer(found.type) or pa.types.is_floating(found.type)):
            raise InputError(
                f"--weight {self.weight.text!r} is of type {found.type}: expected a number"
            )
        weights = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(wanted & ~((weights >= 0) & (weights <= MOST)))
        if len(wrong):
            value = found[int(wrong[0])].as_py()
            raise InputError(
                f"--weight {self.weight.text!r} is {'unknown' if value is None else value} for "
                f"document {first + int(wrong[0]):,} of {docs.name}: expected 0 to {MOST:,}; "
                "--where can leave out documents without a weight"
            )
        numbers = np.arange(first, stop)
        return copies_of(np.where(wanted, weights, 1), numbers, seed=self.seed, source=docs.name)


def _without(lower: SourceView | None, reason: NDArray[np.uint8], first: int) -> NDArray[np.bool_]:
    """Documents from `first` on that nothing has dropped so far."""
    wanted: NDArray[np.bool_] = reason == 0
    if lower is not None:
        a, b = np.searchsorted(lower.dropped, [first, first + len(reason)])
        wanted[lower.dropped[a:b] - first] = False
    return wanted
