"""Documents through a function of the user's: those of which it is true, or what it makes of each.

What planning needs, the list of a filter and the lengths of a map, is found once and kept as plans
are. No token is written: functions are called again when documents are read.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import DatasetError, InputError, digest, name_of
from jaxdata.base.lazy import cached_property
from jaxdata.base.processes import answers, available_cores
from jaxdata.base.progress import progress_bar
from jaxdata.base.ragged import AnyInts, Ints, even_cuts
from jaxdata.base.seeds import derive
from jaxdata.base.source_text import source_digest
from jaxdata.dataset.array_documents import ItemDocuments, ItemSide, as_numbers
from jaxdata.dataset.documents import DerivedDocuments, Document, Documents, ListedDocuments
from jaxdata.dataset.plan_cache import CachedArrays, cached_arrays
from jaxdata.storage.pages.paged_files import PageRanges

Given = Mapping[str, ArrayLike] | ArrayLike
"""what a function may make of a document"""
_TOKENS = 2**20
"""of documents that are read together, and given to a worker at a time"""
_ALONE = 16
"""so many times `_TOKENS` one process measures; of more others help, which take some to start"""


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

    def __getstate__(self) -> bytes:
        """For other processes, which may have no text of it; cloudpickle takes lambdas along."""
        try:
            state: bytes = cloudpickle.dumps(vars(self))
        except Exception as error:
            raise InputError(
                f"{self.name} cannot be sent to worker processes ({error}): use num_workers=0, or "
                "a function of the top level of a module"
            ) from None
        return state

    def __setstate__(self, state: bytes) -> None:
        vars(self).update(cloudpickle.loads(state))


def whole(documents: Documents, numbers: Ints) -> Iterator[tuple[int, Document]]:
    """Some documents with their numbers, read about `_TOKENS` at a time."""
    lengths = documents.lengths[numbers].astype(np.int64)
    for begin, end, _ in even_cuts(lengths, _TOKENS):
        some, counts = numbers[begin:end], lengths[begin:end]
        asked = some, np.zeros_like(counts), counts
        found = {"tokens": documents.tokens(*asked).views.array(documents.dtype)}
        if documents.masked:
            found["loss_mask"] = documents.masks(*asked).views.array(bool)
        for name, side in documents.side.items():
            found[name] = side.tokens(*asked).views.array(side.dtype)
        ends = np.cumsum(counts).tolist()
        for number, first, stop in zip(some.tolist(), [0, *ends], ends, strict=False):
            yield number, {name: values[first:stop] for name, values in found.items()}


class _Applied(DerivedDocuments):
    """Documents that a function was applied to."""

    def __init__(self, source: Documents, verb: str, function: UserFunction) -> None:
        super().__init__(source)
        self.function, self._verb = function, verb
        self.fingerprint = digest([verb, source.fingerprint, function.digest])
        self.functions += (f"{verb} {function.name} {function.digest[:8]}",)

    @abstractmethod
    def measure(self, span: tuple[int, int]) -> NDArray[Any]:
        """What planning needs to know of documents `[first, stop)` of the source, a number each."""

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
        spans = [(first, stop) for first, stop, _ in even_cuts(lengths, _TOKENS)]
        found, done = [np.empty(0, np.int64)], 0
        alone = self.source.store is None or len(spans) <= _ALONE
        with progress_bar(f"{self.name}: {self._verb} {self.function.name}") as progress:
            for part in answers(lambda: self.measure, spans, 1 if alone else available_cores()):
                found.append(part)
                progress(done := done + len(part), len(lengths))
        return np.concatenate(found)


class FilteredDocuments(_Applied, ListedDocuments):
    """The documents of which a function is true (see `Documents.filter`)."""

    def __init__(self, source: Documents, function: Callable[[Document], bool]) -> None:
        super().__init__(source, "filter", UserFunction(function))

    def measure(self, span: tuple[int, int]) -> NDArray[np.bool_]:
        """Whether each of some documents is kept."""
        given = whole(self.source, np.arange(*span))
        return np.array([self._holds(*each) for each in given], bool)

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
        return self._list.arrays[0]

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


class MappedDocuments(ItemDocuments, _Applied):
    """What a function makes of each document (see `Documents.map`)."""

    error = InputError

    def __init__(
        self, source: Documents, function: Callable[..., Given], same_length: bool, seed: int | None
    ) -> None:
        ItemDocuments.__init__(self)
        _Applied.__init__(self, source, "map", UserFunction(function, seed))
        self._same_length, self.called = same_length, f"{self.function.name} of {self.name}"
        self.dtypes = self._found_dtypes()
        self.dtype, self.masked = self.dtypes["tokens"], "loss_mask" in self.dtypes
        self.stated_lengths = source.stated_lengths if same_length else None
        beside = sorted(self.dtypes.keys() - {"tokens", "loss_mask"})
        self.side = {name: ItemSide(self, name, self.dtypes[name]) for name in beside}

    def _found_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The arrays that documents have: those of the first, or as given if none has tokens."""
        found = {name: values.dtype for name, values in self.source.side.items()}
        found |= {"loss_mask": np.dtype(bool)} if self.source.masked else {}
        there = np.flatnonzero(self.source.lengths)
        first = next((n for n in there.tolist() if not self.source.are_blank([n])[0]), None)
        if first is not None:
            made = self._made(first, self.source[first])
            found = {name: array.dtype for name, array in made.items()}
        own: dict[str, np.dtype[Any]] = {"tokens": np.dtype("<u4"), "loss_mask": np.dtype(np.uint8)}
        types = {name: own.get(name, dtype.newbyteorder("<")) for name, dtype in found.items()}
        return {"tokens": own["tokens"]} | types

    def _made(self, number: int, document: Document) -> dict[str, NDArray[Any]]:
        """What the function makes of a document, and what it leaves: arrays of one length."""
        before, length = dict(document), len(document["tokens"])
        if not length:  # one that was deleted
            return before
        given = self.function(number, document, self.name)
        made = before | (dict(given) if isinstance(given, Mapping) else {"tokens": given})
        of, wanted = f"{self.called}: document {number}", length if self._same_length else None
        tokens = as_numbers(made.pop("tokens"), "tokens", of, wanted, InputError)
        arrays = {n: as_numbers(each, n, of, len(tokens), InputError) for n, each in made.items()}
        return {"tokens": tokens, **arrays}

    def items(self, numbers: Ints) -> Iterator[tuple[int, Document]]:
        blank = dict(zip(numbers.tolist(), self.source.are_blank(numbers).tolist(), strict=True))
        for number, document in whole(self.source, numbers):
            planned = int(self.lengths[number])
            if not planned or blank[number]:
                yield number, {n: np.zeros(planned, dtype) for n, dtype in self.dtypes.items()}
                continue
            made = self._made(number, document)
            if len(made["tokens"]) != planned:
                raise DatasetError(
                    f"{self.called}: document {number} has {len(made['tokens']):,} tokens, and had "
                    f"{planned:,} when lengths were planned; expected the same each time. A random "
                    "function takes its numbers from the generator that map(…, seed=…) gives it"
                )
            yield number, made

    def measure(self, span: tuple[int, int]) -> NDArray[np.int64]:
        """The lengths of what is made of some documents."""
        given = whole(self.source, np.arange(*span))
        return np.array([len(self._made(*each)["tokens"]) for each in given], np.int64)

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
