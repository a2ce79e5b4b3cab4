"""Documents through a function of the user's: those of which it is true, or what it makes of each.

What planning needs, the list of a filter and the lengths of a map, is found once and kept as plans
are. No token is written: functions are called again when documents are read.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.facts import digest
from jaxdata.base.processes import Pool, answer_tasks, available_cores
from jaxdata.base.progress import progress_bar
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.base.seeds import derive
from jaxdata.base.source_text import name_of, source_digest
from jaxdata.dataset.array_documents import GivenRanges, as_numbers
from jaxdata.dataset.derived_documents import DerivedDocuments, ListedDocuments
from jaxdata.dataset.documents import Document, Documents, Gathered
from jaxdata.dataset.manifest import as_type, check_side
from jaxdata.dataset.plan_cache import CachedArrays, cached_arrays
from jaxdata.storage.pages.paged_files import PageRanges

Given = Mapping[str, ArrayLike] | ArrayLike
"""what a function may make of a document"""
_TOKENS = 2**20
"""of documents that are read together, and given to a worker at a time"""
_ALONE = 16
"""so many times `_TOKENS` one process measures; of more others help, which take some to start"""
_HELD_BYTES = 2**26
"""of what was made last: windows of long documents, and masks, are mostly read soon after"""
_CERTAIN = {"tokens": ("|u1", "<u2"), "loss_mask": ("|b1",)}
"""types of arrays of which every value is right"""


class UserFunction:
    """A function of documents, with the name that people know it by.

    Args:
        function: `function(document)`, or with a seed `function(document, rng)`.
        seed: of the generators.
    """

    def __init__(self, function: Callable[..., Any], seed: int | None = None) -> None:
        if not callable(function):
            raise InputError(f"{function!r} is no function: expected one of a document")
        self._function, self._seed = function, seed
        self.name, source = name_of(function), source_digest(function)
        self.digest = source if seed is None else digest([source, seed])

    def __call__(self, number: int, document: Document, source: str) -> Any:
        """What it returns of a document; InputError if it raises."""
        try:
            if self._seed is None:
                return self._function(document)
            rng = np.random.default_rng(derive(self._seed, "document", number))
            return self._function(document, rng)
        except Exception as error:
            raise InputError(
                f"{self.name} of document {number} of {source}: {type(error).__name__}: {error}"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes, which may have no text of it; cloudpickle takes lambdas along."""
        try:
            function = cloudpickle.dumps(self._function)
        except Exception as error:
            raise InputError(
                f"{self.name} cannot be sent to worker processes ({error}): use num_workers=0, or "
                "a function of the top level of a module"
            ) from None
        return _unpickled, (function, self._seed, self.name, self.digest)


def _unpickled(function: bytes, *known: Any) -> UserFunction:
    made = UserFunction.__new__(UserFunction)
    made._function = cloudpickle.loads(function)
    made._seed, made.name, made.digest = known
    return made


def _edges(lengths: Ints) -> list[tuple[int, int]]:
    """Runs of documents of about `_TOKENS` each, as (first, stop)."""
    cuts = np.searchsorted(np.cumsum(lengths), np.arange(_TOKENS, lengths.sum(), _TOKENS))
    return list(pairwise(np.unique([0, *cuts.tolist(), len(lengths)]).tolist()))


def whole(documents: Documents, numbers: Ints) -> Iterator[tuple[int, Document]]:
    """Some documents with their numbers, read about `_TOKENS` at a time."""
    lengths = documents.lengths[numbers].astype(np.int64)
    for part in (slice(*edge) for edge in _edges(lengths)):
        some, counts = numbers[part], lengths[part]
        asked = some, np.zeros_like(counts), counts
        found = {"tokens": _joined(documents.tokens(*asked), documents.dtype)}
        if documents.masked:
            found["loss_mask"] = _joined(documents.masks(*asked), np.dtype(bool))
        for name, side in documents.side.items():
            found[name] = _joined(side.tokens(*asked), side.dtype)
        ends = np.cumsum(counts).tolist()
        for number, first, stop in zip(some.tolist(), [0, *ends], ends, strict=False):
            yield number, {name: values[first:stop] for name, values in found.items()}


def _joined(found: Gathered, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(bytearray(found.views.join()), dtype.newbyteorder("<"))


class _Applied(DerivedDocuments):
    """Documents that a function was applied to."""

    def __init__(self, source: Documents, verb: str, function: UserFunction) -> None:
        super().__init__(source)
        self.function, self._verb = function, verb
        self.fingerprint = digest([verb, source.fingerprint, function.digest])
        self.functions += (f"{verb} {function.name} {function.digest[:8]}",)

    @abstractmethod
    def measure(self, numbers: Ints) -> NDArray[Any]:
        """What planning needs to know of some documents of the source, a number each."""

    def check_lengths(self) -> None:
        self.source.check_lengths()

    def _measured(self) -> NDArray[Any]:
        """Measure all documents; on all cores where there are many that are not in memory.

        Raises:
            DatasetError: documents were deleted since, and it is not known what is made of those.
        """
        if self.base.blanked is not None:
            raise DatasetError(
                f"{self.name}: documents were deleted of this generation, and what "
                f"{self.function.name} made of them is not kept here (plans/ of the dataset, "
                "$JAXDATA_CACHE): copy it from where the run was planned, or read the newest "
                "generation, as a new run"
            )
        lengths = np.asarray(self.source.lengths).astype(np.int64)
        spans, found, done = _edges(lengths), [np.empty(0, np.int64)], 0
        alone = self.source.store is None or len(spans) <= _ALONE
        with (
            progress_bar(f"{self.name}: {self._verb} {self.function.name}") as progress,
            Pool(f"{__name__}:serve", self, workers=available_cores()) as pool,
        ):
            for part in map(self._measure_span, spans) if alone else pool.map(spans):
                found.append(part)
                progress(done := done + len(part), len(lengths))
        return np.concatenate(found)

    def _measure_span(self, span: tuple[int, int]) -> NDArray[Any]:
        return self.measure(np.arange(*span))


def serve(connection: Connection, documents: _Applied) -> None:
    """A worker process: measures the documents it is sent, until the parent is gone."""
    answer_tasks(connection, lambda span, _: documents._measure_span(span))


class FilteredDocuments(_Applied, ListedDocuments):
    """The documents of which a function is true (see `Documents.filter`)."""

    def __init__(self, source: Documents, function: Callable[[Document], bool]) -> None:
        super().__init__(source, "filter", UserFunction(function))

    def measure(self, numbers: Ints) -> NDArray[np.bool_]:
        """Whether each of some documents is kept."""
        return np.array([self._holds(*each) for each in whole(self.source, numbers)], bool)

    def _holds(self, number: int, document: Document) -> bool:
        if not len(document["tokens"]):  # one that was deleted
            return False
        found = self.function(number, document, self.name)
        if not isinstance(found, bool | np.bool_):
            raise InputError(
                f"{self.function.name} returned {found!r} of document {number} of {self.name}: "
                "expected True or False"
            )
        return bool(found)

    @cached_property
    def _list(self) -> CachedArrays:
        """The numbers of the documents in the source, and their lengths."""
        numbers = np.dtype("<u4" if len(self.source) < 2**32 else "<u8")

        def choose() -> list[NDArray[Any]]:
            chosen = np.flatnonzero(self._measured()).astype(numbers)
            return [chosen, self.source.lengths[chosen].astype("<u4")]

        shapes = [(numbers.str, None), ("<u4", None)]
        return cached_arrays(self.source, {"filter": self.fingerprint}, choose, shapes, "filter-")

    @property
    def document(self) -> AnyInts:
        found: AnyInts = self._list.arrays[0]
        return found

    @property
    def lengths(self) -> NDArray[np.uint32]:
        return self._list.arrays[1]

    def check_lengths(self) -> None:
        super().check_lengths()
        given, total = self.document, len(self.source)
        ascending = (given[1:] > given[:-1]).all() and (not len(given) or int(given[-1]) < total)
        if not ascending or (self.source.lengths[given] != self.lengths).any():
            raise self._list.damaged(f"a list of documents of {self.name}")

    def in_source(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        return self.document[documents].astype(np.int64), starts


class _Held(threading.local):
    """What was made last, in each thread for itself."""

    def __init__(self) -> None:
        self.items: dict[int, Document] = {}
        self._bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _Held, ()

    def add(self, number: int, item: Document) -> Document:
        """Keep what was made of a document; what has been there longest makes room."""
        self.items[number] = item
        self._bytes += sum(array.nbytes for array in item.values())
        while self._bytes > _HELD_BYTES:
            oldest = self.items.pop(next(iter(self.items)))
            self._bytes -= sum(array.nbytes for array in oldest.values())
        return item


class MappedDocuments(_Applied):
    """What a function makes of each document (see `Documents.map`)."""

    def __init__(
        self,
        source: Documents,
        function: Callable[..., Given],
        *,
        same_length: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(source, "map", UserFunction(function, seed))
        self._same_length, self._held = same_length, _Held()
        self._dtypes = self._found_dtypes()
        self.dtype, self.masked = self._dtypes["tokens"], "loss_mask" in self._dtypes
        self.stated_lengths = source.stated_lengths if same_length else None
        beside = sorted(self._dtypes.keys() - {"tokens", "loss_mask"})
        self.side = {name: _MadeSide(self, name, self._dtypes[name]) for name in beside}

    def _found_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The arrays that documents have: those of the first, or as given if none has tokens."""
        found = {name: values.dtype for name, values in self.source.side.items()}
        found |= {"loss_mask": np.dtype(bool)} if self.source.masked else {}
        there = np.flatnonzero(self.source.lengths)
        first = next((n for n in there.tolist() if not self._is_blank(n)), None)
        if first is not None:
            made = self._made(first, self.source[first])
            found = {name: array.dtype for name, array in made.items()}
        dtypes: dict[str, np.dtype[Any]] = {"tokens": np.dtype("<u4")}
        for name, dtype in found.items():
            if name == "loss_mask":
                dtypes[name] = np.dtype(np.uint8)
            elif name != "tokens":
                check_side(name, dtype)
                dtypes[name] = dtype.newbyteorder("<")
        return dtypes

    def _is_blank(self, number: int) -> bool:
        blanked = self.base.blanked is not None
        return blanked and bool(self.source.are_blank(np.array([number])).any())

    def _of(self, number: int) -> str:
        """What errors call what is made of a document."""
        return f"{self.function.name} of document {number} of {self.name}"

    def _made(self, number: int, document: Document) -> dict[str, NDArray[Any]]:
        """What the function makes of a document, and what it leaves: arrays of one length."""
        before, length = dict(document), len(document["tokens"])
        if not length:  # one that was deleted
            return before
        given = self.function(number, document, self.name)
        made = before | (dict(given) if isinstance(given, Mapping) else {"tokens": given})
        of, wanted = self._of(number), length if self._same_length else None
        tokens = as_numbers(made.pop("tokens"), "tokens", of, wanted, InputError)
        arrays = {
            name: as_numbers(values, name, of, len(tokens), InputError)
            for name, values in made.items()
        }
        return {"tokens": tokens, **arrays}

    def _item(self, number: int, document: Document) -> Document:
        """What is made of a document, in the types of all, and as long as it was planned."""
        planned = int(self.lengths[number])
        if not len(document["tokens"]) or self._is_blank(number):
            return {name: np.zeros(planned, dtype) for name, dtype in self._dtypes.items()}
        made = self._made(number, document)
        if made.keys() != self._dtypes.keys():
            names, expected = (", ".join(sorted(each)) for each in (made, self._dtypes))
            raise InputError(f"{self._of(number)}: {names}; expected {expected}, as of the first")
        if len(made["tokens"]) != planned:
            raise DatasetError(
                f"{self._of(number)}: {len(made['tokens']):,} tokens, and {planned:,} when lengths "
                "were planned; expected the same each time. A random function takes its numbers "
                "from the generator that map(…, seed=…) gives it"
            )
        return {name: self._typed(number, name, array) for name, array in made.items()}

    def _typed(self, number: int, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """An array in the type that it has in every document; InputError if that cannot hold it."""
        dtype = self._dtypes[name]
        if array.dtype.str in _CERTAIN.get(name, (dtype.str,)):
            return array.astype(dtype, copy=False)
        which, start, count = (np.array([value]) for value in (number, 0, array.size))
        of = f"{self.function.name} of {self.name}"
        given = GivenRanges(of, which, start, count, InputError)
        if name == "tokens":
            return given.as_ids(array, dtype)
        typed = given.as_mask(array) if name == "loss_mask" else as_type(array, dtype)
        if typed is None:
            raise InputError(
                f"{self._of(number)}: its {name} are of dtype {array.dtype}; expected {dtype}, as "
                "of the first"
            )
        return typed

    def measure(self, numbers: Ints) -> NDArray[np.int64]:
        """The lengths of what is made of some documents."""
        made = (self._made(*each)["tokens"] for each in whole(self.source, numbers))
        return np.fromiter(map(len, made), np.int64, len(numbers))

    @cached_property
    def _lengths(self) -> CachedArrays:
        shapes, key = [("<u4", len(self.source))], {"map": self.fingerprint}
        return cached_arrays(self.source, key, lambda: [self._measured()], shapes, "map-")

    @property
    def lengths(self) -> NDArray[Any]:
        return self.source.lengths if self._same_length else self._lengths.arrays[0]

    def page_ends(self, size: int) -> Ints:
        """See `Documents`; the pages of the source, which is read."""
        return self.source.page_ends(size)

    def in_source(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        """Of what has another length, the token there is not known: the same, or the last one."""
        if self._same_length:
            return documents, starts
        last = np.maximum(self.source.lengths[documents].astype(np.int64) - 1, 0)
        return documents, np.minimum(starts, last)

    def page_ranges(self, documents: Ints, starts: Ints, counts: Ints) -> PageRanges:
        """Of whole documents."""
        del starts, counts
        lengths = self.source.lengths[documents].astype(np.int64)
        return self.source.page_ranges(documents, np.zeros_like(lengths), lengths)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self.values("tokens", documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self.values("loss_mask", documents, starts, counts)

    def values(self, name: str, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """Ranges of one array; what is made for them is held for the others, asked for next."""
        wanted = np.unique(documents).tolist()
        held = {n: item for n in wanted if (item := self._held.items.get(n)) is not None}
        fresh = whole(self.source, np.array([n for n in wanted if n not in held], np.int64))
        order = np.argsort(documents, kind="stable")
        parts, number, item = [np.empty(0, self._dtypes[name])] * (len(order) + 1), -1, Document()
        columns = (each[order].tolist() for each in (documents, starts, counts))
        for place, document, start, count in zip(order.tolist(), *columns, strict=True):
            if number != document:
                number, item = document, held.get(document) or self._next(fresh)
            # Copied: it must not hold all of a book in memory.
            parts[place] = item[name][start : start + count].copy()
        return Gathered.cut(np.concatenate(parts), counts)

    def _next(self, read: Iterator[tuple[int, Document]]) -> Document:
        number, document = next(read)
        return self._held.add(number, self._item(number, document))


class _MadeSide(DerivedDocuments):
    """A side array of what a function made."""

    def __init__(self, made: MappedDocuments, name: str, dtype: np.dtype[Any]) -> None:
        super().__init__(made)
        self._made, self._array, self.side = made, name, {}
        self.dtype, self.masked = dtype, False

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._made.values(self._array, documents, starts, counts)
