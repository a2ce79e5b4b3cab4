"""`jaxdata.select`: a view of the documents of which an expression holds, or by their weight."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.numbers import validated
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import Ints
from jaxdata.base.seeds import derive
from jaxdata.base.wording import nearest
from jaxdata.dataset.contract import source_names
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.manifest import ViewEntry
from jaxdata.dataset.opening import ConvertedDataset, open_dataset
from jaxdata.dataset.views.expressions import Expression
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dataset.views.score_files import Scores
from jaxdata.dataset.views.source_view import SourceView, content_of, stacked
from jaxdata.dataset.views.writing import check_name, write_views

MOST = 10_000
"""largest weight: a longer list is a mistake"""


def copies_of(
    weights: NDArray[np.float64], documents: Ints, *, seed: int, source: str
) -> NDArray[np.int64]:
    """Times that documents are listed, int64 (documents,), on average their weights.

    The whole part of the weight, and one more with the probability of the rest, which a hash of the
    seed, the source and the document decides. So it is the same in every epoch, and does not depend
    on other documents.

    >>> numbers = np.arange(100_000)
    >>> found = copies_of(np.full(100_000, 2.3), numbers, seed=0, source="train/web")
    >>> sorted(set(found.tolist())), round(float(found.mean()), 2)
    ([2, 3], 2.3)
    """
    whole = np.floor(weights)
    return (whole + (_chance(documents, seed, source) < weights - whole)).astype(np.int64)


def _chance(documents: Ints, seed: int, source: str) -> NDArray[np.float64]:
    """Numbers in [0, 1) by a hash, the finaliser of splitmix64 (Steele and others, 2014)."""
    hashed = (documents.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    hashed += np.uint64(derive(seed, "weight", source))
    hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed ^= hashed >> np.uint64(31)
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53


BUILT_IN = {
    "tokens": "tokens of the document, with EOD",
    "document": "its number in the source, from 0",
    "source": "the source's name",
    "file": "the input file that it came from",
}
"""Fields that every document has."""


class DocumentFields:
    """The fields of the documents of one source.

    Args:
        docs: the source.
        scores: further fields; None for none.
    """

    def __init__(self, docs: ConvertedDocuments, scores: Scores | None) -> None:
        self._docs, self._scores = docs, scores
        self._kept: Sequence[str] = docs.entry.parameters.get("keep") or ()

    def check(self, names: Collection[str], option: str) -> None:
        """Raise InputError if a name is of no field."""
        for name in sorted(names):
            if not self._has(name):
                raise self._unknown(name, option)

    def _has(self, name: str) -> bool:
        own = self._scores.names if self._scores else ()
        return name in (*own, *self._kept, *BUILT_IN) or name.partition(".")[0] in self._kept

    def _unknown(self, name: str, option: str) -> InputError:
        groups = {
            "of the scores": self._scores.names if self._scores else (),
            "kept": self._kept,
            "built in": [*BUILT_IN],
        }
        said = [f"{', '.join(map(str, each))} ({group})" for group, each in groups.items() if each]
        hint = nearest(name, [n for each in groups.values() for n in each])
        remedy = "" if hint or self._kept else " (jaxdata convert --keep keeps fields)"
        return InputError(
            f"{option} names the field {name!r}, which {self._docs.name} does not have: it has "
            f"{', '.join(said)}{hint}{remedy}"
        )

    def of(self, names: Collection[str], first: int, stop: int) -> dict[str, Any]:
        """The values of some fields for documents `[first, stop)`.

        Raises:
            InputError: the values of one are of different types.
            DatasetError: what was kept is damaged.
        """
        records = cache(partial(self._docs.index.kept_between, first, stop))  # parsed if asked for
        return {name: self._values(name, first, stop, records) for name in names}

    def _values(self, name: str, first: int, stop: int, records: Callable[[], list[Any]]) -> Any:
        if self._scores and name in self._scores.names:
            key = self._scores.key
            keys = self._values(key, first, stop, records) if key and key != name else None
            return self._scores.of(name, first, stop, keys)
        if name in self._kept or name.partition(".")[0] in self._kept:
            try:
                found = [_looked_up(each, name) for each in records()]
            except TypeError:
                raise InputError(
                    f"there is no field {name!r} in {self._docs.name}: what it names a part of is "
                    "no object in every document"
                ) from None
            return self._array(name, first, found)
        return self._built_in(name, first, stop)

    def _array(self, name: str, first: int, values: list[Any]) -> Any:
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            last = first + len(values) - 1
            raise InputError(
                f"field {name!r} of {self._docs.name} has values of different types in documents "
                f"{first:,} to {last:,} ({error}): expected numbers, texts or flags, and nothing "
                "else beside null"
            ) from None

    def _built_in(self, name: str, first: int, stop: int) -> Any:
        index = self._docs.index
        if name == "tokens":
            return pa.array(index.lengths[first:stop].astype(np.int64))
        if name == "document":
            return pa.array(np.arange(first, stop))
        if name == "source":
            own = self._docs.name.partition("/")[2]
            return pa.array([own] * (stop - first))
        numbers = index.origin_file[first:stop]
        if len(numbers) and numbers.max() >= len(index.entry.inputs):
            raise DatasetError(
                f"{self._docs.store.url}: the index of {self._docs.name} names more files than "
                "there are; jaxdata verify names what is damaged"
            )
        return pa.array(index.entry.inputs).take(pa.array(numbers))


def _looked_up(record: Mapping[str, Any], name: str) -> Any:
    """A field of a record; a name with dots goes into objects within (TypeError if it is none)."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise TypeError(part)
        value = value.get(part)
    return value


REASONS = ("where", "where is unknown", "weight")
"""why a document is dropped: it is false, a field is missing, or it got no copy"""
_AT_ONCE = 2**16  # documents


@validated
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
class OneOf:
    """What an `Expression` is, of a field that has one of many values."""

    field: str
    values: frozenset[str]

    @property
    def names(self) -> set[str]:
        """The field."""
        return {self.field}

    def of(self, fields: Mapping[str, Any], _documents: int) -> Any:
        """Of which documents it holds, an Arrow array; numbers are compared as texts."""
        return pa.array([str(each) in self.values for each in fields[self.field].to_pylist()])


def documents_where(docs: ConvertedDocuments, where: Expression | OneOf, option: str) -> Ints:
    """The numbers of documents of which an expression holds, ascending.

    `option` is what messages call the expression.
    """
    fields = DocumentFields(docs, None)
    fields.check(where.names, option)
    found = [np.empty(0, np.int64)]
    for first in range(0, len(docs), _AT_ONCE):
        stop = min(first + _AT_ONCE, len(docs))
        known = _truth(where, fields.of(where.names, first, stop), stop - first)
        found.append(first + np.flatnonzero(known.fill_null(False)))
    return np.concatenate(found)


def _truth(where: Expression | OneOf, fields: Mapping[str, Any], documents: int) -> Any:
    """Of which documents an expression holds: true, false or unknown."""
    found = where.of(fields, documents)
    if isinstance(where, Expression) and not (
        pa.types.is_boolean(found.type) or pa.types.is_null(found.type)
    ):
        raise InputError(
            f"--where {where.text!r} is of type {found.type}: expected true or false, such as "
            "score > 0.7"
        )
    return found.cast(pa.bool_())


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
        sources: list[Any] = [each.base for each in read]
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
        known = _truth(self.where, fields.of(self.where.names, first, stop), stop - first)
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
