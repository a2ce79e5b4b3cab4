"""Documents of one source: lengths for the planner, ranges of tokens for rows.

Some are ranges of others: those that a view lists, and those of a function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import InputError, counted, on_one_line, shortened
from jaxdata.base.lazy import cached_property
from jaxdata.base.numbers import validated
from jaxdata.base.ragged import AnyArray, AnyInts, ByteRanges, Ints
from jaxdata.dataset.manifest import SourceEntry
from jaxdata.storage import Store
from jaxdata.storage.pages.paged_files import FarColumn, PagedFiles, PageRanges

_DOCUMENTS_AT_ONCE = 2**20
_SHOWN = 100
"""characters of a text that is only shown"""
Document = dict[str, NDArray[Any]]


class Gathered(NamedTuple):
    """Bytes of some ranges: views that are, end to end, the ranges in order."""

    views: ByteRanges
    range: Ints
    """(views,) number of the range that each belongs to; non-decreasing"""

    @classmethod
    def cut(cls, joined: NDArray[Any], counts: Ints) -> Gathered:
        """Split an array that holds ranges of `counts` elements, end to end."""
        views = ByteRanges.cut(joined.data.cast("B"), counts * joined.itemsize)
        return cls(views, np.arange(len(counts)))

    def followed(self, ranges: Ints, filler: bytes, times: Ints) -> Gathered:
        """Append `filler` to some of the ranges, so many times to each."""
        at = self.range.searchsorted(ranges, side="right")
        whole = filler * int(times.max(initial=0))
        views = self.views.inserted(at, times * len(filler), whole)
        return Gathered(views, np.insert(self.range, at, ranges))


class StatedLengths(NamedTuple):
    """What is known of the lengths of a source before they are read."""

    tokens: int
    """their sum"""
    sha256: str
    """of what they follow from, in hex"""
    empty: int = 0
    """documents without tokens: those that were deleted"""


class Beginnings(list[str]):
    """How some documents begin, at most 100 characters of each, in lines."""

    def __init__(self, texts: Iterable[str], lengths: Sequence[int], title: str) -> None:
        super().__init__(texts)
        self.lengths, self.title = lengths, title

    def __repr__(self) -> str:
        wide, sizes = len(str(len(self))), [counted(length, "token") for length in self.lengths]
        most = max(map(len, sizes), default=0)
        lines = [
            f"{number:{wide}}  {size:>{most}}  {on_one_line(text)}"
            for number, (size, text) in enumerate(zip(sizes, self, strict=True))
        ]
        return "\n".join([self.title, *lines])


class Documents(ABC):
    """Documents that can be packed: the contract of every source.

    A document is a run of tokens ending with EOD (other tools may omit it). Planning needs only
    `lengths`; `tokens` and `masks` read only the ranges they are asked for. A new kind of documents
    sets the attributes and implements `tokens`, and `masks` if it stores any; the other methods
    answer questions that only some sources raise.
    """

    name: str
    """`"<split>/<source>"`; seeds are derived from it"""
    dtype: np.dtype[Any]
    """the type of the tokens: an unsigned integer of 16 or 32 bits"""
    masked: bool = False
    """whether the source stores loss masks"""
    store: Store | None = None
    """the dataset, in which plans can be cached; None for documents in memory"""
    entry: SourceEntry | None = None
    """what the manifest of a converted dataset says of the source"""
    decode: Callable[[ArrayLike], str] | None = None
    """that of the dataset they were opened from, in the process that opened them"""
    stated_lengths: StatedLengths | None = None
    """what the description of the source says of its lengths; None if nothing"""
    side: Mapping[str, Documents] = MappingProxyType({})
    """side arrays by name, one value a token beside the tokens: each is the same documents, with
    values of any whole or floating type in place of tokens"""
    functions: tuple[str, ...] = ()
    """what `map` and `filter` were given on the way from `base` to here, with digests"""
    blanked: NDArray[np.uint64] | None = None
    """numbers of documents that were deleted after this generation, ascending; None: none. Their
    lengths are what they were, their tokens 0: in rows they are padding"""

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the content; nothing else changes it. Each source sets or computes it."""
        raise NotImplementedError

    @cached_property
    def lengths(self) -> NDArray[Any]:
        """Tokens of each document, (documents,) unsigned integers; set or computed likewise."""
        raise NotImplementedError

    @abstractmethod
    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """Tokens `[starts[k], starts[k] + counts[k])` of `documents[k]`, for every *k*.

        As bytes of `dtype`, little-endian.
        """

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """Stored masks of the same ranges, a byte each (1: has loss when it is a target)."""
        raise NotImplementedError

    @property
    def total_tokens(self) -> int:
        """Tokens of all documents; lengths are read only where their sum is not stated."""
        if self.stated_lengths is not None:
            return self.stated_lengths.tokens
        return int(np.asarray(self.lengths).sum(dtype=np.int64))

    def check_lengths(self) -> None:
        """Raise DatasetError if the source can tell that its lengths are not those written."""
        return

    def fetch_lengths(self, documents: Ints) -> None:
        """Fetch the lengths of some documents in one go, if they lie in a bucket."""
        column: Any = self.lengths
        if isinstance(column, FarColumn):
            column.take(documents)

    @property
    def is_far(self) -> bool:
        """Whether the documents lie in a bucket, and ranges of them are fetched ahead."""
        return self.store is not None and not self.store.local

    @property
    def pages(self) -> PagedFiles:
        """The files, of documents in a bucket."""
        raise NotImplementedError

    def page_ranges(self, documents: Ints, starts: Ints, counts: Ints) -> PageRanges:
        """The bytes of `pages` that ranges of tokens, and of masks, are read from."""
        raise NotImplementedError

    def are_blank(self, documents: ArrayLike) -> NDArray[np.bool_]:
        """Which documents, as numbered here, are among the `blanked` of `base`."""
        numbers, blanked = np.asarray(documents, np.int64), self.base.blanked
        if blanked is None:
            return np.zeros(len(numbers), bool)
        return np.isin(self.in_base(numbers, np.zeros_like(numbers))[0], blanked)

    @property
    def base(self) -> Documents:
        """The source itself, of which these documents may be ranges (see `DerivedDocuments`)."""
        return self

    def in_base(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        """Documents and tokens as `base` numbers them."""
        return documents, starts

    def numbers_of(self, document: int) -> list[int]:
        """The numbers here of a document of `base`, or of its pieces; none if it is left out."""
        return [document]

    def origin(self, index: int) -> tuple[str, int] | None:
        """The input file of a document, and its line (from 1) or row (from 0); None if unknown.

        For an archive, the file within it: `("pages.tar: a.jsonl", 17)`.
        """
        del index
        return None

    def kept(self, index: int) -> dict[str, Any]:
        """The metadata of a document that `--keep` kept."""
        del index
        return {}

    @property
    def sequences(self) -> Documents:
        """What Megatron calls sequences, as documents; each document is one unless files differ."""
        return self

    def page_ends(self, size: int) -> Ints:
        """Where pages of `size` bytes end; int64 (pages,).

        A page is the documents whose first byte lies between two multiples of `size` in a file;
        its end is the number of the document after its last. Pages without documents are left out.
        """
        item, before = self.dtype.itemsize + self.masked, 0

        def pages(numbers: Ints) -> Ints:
            nonlocal before
            ends = before + np.cumsum(self.lengths[numbers].astype(np.int64)) * item
            starts, before = np.append(before, ends[:-1]), int(ends[-1])
            return starts // size

        return run_ends(pages, len(self))

    @property
    def file_sizes(self) -> Ints:
        """Bytes of each file; int64 (files,). Of documents in memory, as if one file held all."""
        return np.array([self.total_tokens * (self.dtype.itemsize + self.masked)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self):,} documents)"

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...
    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        """`{"tokens": (n,) integers}`, and where there are any, `"loss_mask"`: (n,) bool.

        Side arrays by their names: (n,) each.
        """
        if isinstance(index, slice):
            return [self._document(number) for number in range(len(self))[index]]
        return self._document(index)

    def _document(self, index: int) -> Document:
        item: Document = {"tokens": self.read(index)}
        if self.masked:
            item["loss_mask"] = self.masks(*self._range(index)).views.array(np.uint8).astype(bool)
        return item | {name: values.read(index) for name, values in self.side.items()}

    def read(self, index: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read tokens `[start, stop)` of one document, and nothing else of it."""
        return self.tokens(*self._range(index, start, stop)).views.array(self.dtype)

    def end_to_end(self, numbers: Ints) -> tuple[AnyArray, Ints]:
        """All tokens of some documents, and how many each of them has."""
        counts = np.asarray(self.lengths[numbers], np.int64)
        return self.tokens(numbers, np.zeros_like(counts), counts).views.array(self.dtype), counts

    def filter(self, function: Callable[[Document], bool]) -> Documents:
        """The documents of which a function is true.

        It is asked of each document once, on all cores where that takes long; the list is kept in
        the dataset, or in `$JAXDATA_CACHE`. What is read then is what a view would give.

        Args:
            function: called with a document as `docs[i]` gives it; returns True or False. See
                `map` for what it may refer to.

        Raises:
            InputError: it raises or returns something else, or its source does not tell what it
                does.

        >>> from jaxdata import ArrayDocuments
        >>> docs = ArrayDocuments([[5, 0], [6, 7, 8, 0], [9, 5, 0]])
        >>> def is_long(document): return len(document["tokens"]) > 2
        >>> is_long.fingerprint = "longer than 2"  # a doctest has no file to read it from
        >>> [each["tokens"].tolist() for each in docs.filter(is_long)[:]]
        [[6, 7, 8, 0], [9, 5, 0]]
        """
        from jaxdata.dataset import FilteredDocuments  # which is made of what is here

        return FilteredDocuments(self, function)

    @validated
    def map(
        self,
        function: Callable[..., Mapping[str, ArrayLike] | ArrayLike],
        *,
        same_length: bool = False,
        seed: int | None = None,
    ) -> Documents:
        """What a function makes of each document: tokens, and masks and side arrays with them.

        It is called whenever a document is read, whole even for a window of it. The lengths of what
        it makes are found once, by a pass over all documents, and kept as a `filter`'s list is.

        Args:
            function: called with a document as `docs[i]` gives it, of arrays of its own; returns
                token ids, or a dict of `tokens`, `loss_mask` and side arrays. Arrays that it leaves
                out stay as they are. It has to make the same of a document each time. Its source
                text is part of the fingerprint, with the values that it refers to: numbers, texts,
                arrays, lists and dicts of such, dataclasses, and other functions. Of something else
                an attribute `fingerprint` tells, a text.
            same_length: it makes as many tokens as there are: the pass is saved.
            seed: it is also given a `numpy.random.Generator`, keyed by this and by the number of
                the document: `function(document, rng)`.

        Raises:
            InputError: it raises or returns something else, or its source does not tell what it
                does.

        >>> from jaxdata import ArrayDocuments
        >>> docs = ArrayDocuments([[5, 6, 0], [7, 0]])
        >>> def doubled(document): return document["tokens"].repeat(2)
        >>> doubled.fingerprint = "each twice"  # a doctest has no file to read it from
        >>> docs.map(doubled)[1]["tokens"].tolist()
        [7, 7, 0, 0]
        """
        from jaxdata.dataset import MappedDocuments  # which is made of what is here

        return MappedDocuments(self, function, same_length, seed)

    def text(self, index: int) -> str:
        """The text of a document, decoded without special tokens.

        Raises:
            InputError: the tokenizer is not known: of documents in memory or of your own object,
                and of another tool's until `open_dataset` is told.

        >>> import tempfile
        >>> from jaxdata.testing import write_dataset
        >>> folder = tempfile.mkdtemp()
        >>> dataset = write_dataset(folder, {"train/web": [[*b"a dog", 0], [*b"two", 0]]})
        >>> docs = dataset.source("train", "web")
        >>> docs.text(1)
        'two'
        >>> docs.head()
        train/web: 2 documents
        0  6 tokens  a dog
        1  4 tokens  two
        """
        return self._decoded(index, None)

    @validated
    def head(self, n: int = 5) -> Beginnings:
        """How the first `n` documents begin, in lines to be looked at.

        It is a list of their texts, each cut to 100 characters; see `text`.
        """
        numbers = range(len(self))[: max(n, 0)]
        # A token that stands for less than a byte is in no tokenizer.
        texts = [self._decoded(number, 4 * _SHOWN) for number in numbers]
        lengths = [int(self.lengths[number]) for number in numbers]
        title = f"{self.name}: {counted(len(self), 'document')}"
        return Beginnings([shortened(text, _SHOWN) for text in texts], lengths, title)

    def _decoded(self, index: int, tokens: int | None) -> str:
        """The text of the first tokens of a document, or of all."""
        decode = self.base.decode
        if decode is None:
            raise InputError(
                f"{self.name}: the tokenizer of these documents is not known: decode "
                f"docs[{index}]['tokens'] with your own. Those that dataset.source(…) gives know "
                "theirs, in the process where they were opened"
            )
        return decode(self.read(index, 0, tokens))

    def _range(self, index: int, start: int = 0, stop: int | None = None) -> list[Ints]:
        """Tokens `[start, stop)` of one document, as `tokens` and `masks` are asked for them."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"no document {index}: {len(self):,} are numbered from 0")
        index %= len(self)
        start, stop, _ = slice(start, stop).indices(int(self.lengths[index]))
        return [np.array([number]) for number in (index, start, max(stop - start, 0))]


def run_ends(numbers_of: Callable[[Ints], Ints], total: int) -> Ints:
    """Where runs of equal numbers end, of things that are asked for some at a time, in order.

    >>> run_ends(lambda things: things // 3, 5).tolist()
    [3, 5]
    """
    found = [np.empty(0, np.int64)]
    last = np.empty(0, np.int64)
    for first in range(0, total, _DOCUMENTS_AT_ONCE):
        things = np.arange(first, min(first + _DOCUMENTS_AT_ONCE, total))
        numbers = np.append(last, numbers_of(things))
        found.append(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1 + first - len(last))
        last = numbers[-1:]
    return np.concatenate([*found, np.full(min(total, 1), total)])


class DerivedDocuments(Documents):
    """Documents that are ranges of others, or those with other masks: no token is copied.

    Args:
        source: the others.
    """

    def __init__(self, source: Documents) -> None:
        self.source = source
        self.name, self.store, self.functions = source.name, source.store, source.functions
        self.dtype, self.masked = source.dtype, source.masked
        self.side = {name: _Beside(values, self) for name, values in source.side.items()}

    def in_source(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        """Documents and tokens as `source` numbers them."""
        return documents, starts

    @cached_property
    def lengths(self) -> AnyArray:
        return self.source.lengths

    @cached_property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self.source.tokens(*self.in_source(documents, starts), counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self.source.masks(*self.in_source(documents, starts), counts)

    @property
    def pages(self) -> PagedFiles:
        return self.source.pages

    def page_ranges(self, documents: Ints, starts: Ints, counts: Ints) -> PageRanges:
        return self.source.page_ranges(*self.in_source(documents, starts), counts)

    @property
    def base(self) -> Documents:
        return self.source.base

    def in_base(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        return self.source.in_base(*self.in_source(documents, starts))

    def numbers_of(self, document: int) -> list[int]:
        return self.source.numbers_of(document)

    def origin(self, index: int) -> tuple[str, int] | None:
        return self.source.origin(self._one_in_source(index))

    def kept(self, index: int) -> dict[str, Any]:
        return self.source.kept(self._one_in_source(index))

    def _one_in_source(self, index: int) -> int:
        number = np.array([range(len(self))[index]])
        return int(self.in_source(number, np.zeros_like(number))[0][0])


class ListedDocuments(DerivedDocuments):
    """Documents of others that are listed, those listed twice as two."""

    @property
    @abstractmethod
    def document(self) -> AnyInts:
        """(documents,) the number of each in the source; they do not fall."""

    def __len__(self) -> int:
        return len(self.document)

    def page_ends(self, size: int) -> Ints:
        """See `Documents`; the pages of the source, as far as documents in them are listed."""
        ends = self.source.page_ends(size).astype(self.document.dtype)
        found = np.unique(np.searchsorted(self.document, ends))
        return found[found > 0].astype(np.int64)

    def numbers_of(self, document: int) -> list[int]:
        inner = self.source.numbers_of(document)
        return [each for number in inner for each in range(*self._run(number))]

    def _run(self, number: int) -> tuple[int, int]:
        """The first and last place, exclusive, of a number in the list."""
        same = self.document.dtype.type(number)  # of another type, all would be cast
        first = np.searchsorted(self.document, same)
        return int(first), int(np.searchsorted(self.document, same, "right"))


class _Beside(DerivedDocuments):
    """A side array of derived documents: the source's, found where their tokens are."""

    def __init__(self, values: Documents, derived: DerivedDocuments) -> None:
        super().__init__(values)
        self._derived = derived

    @property
    def lengths(self) -> AnyArray:
        return self._derived.lengths

    def in_source(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        return self._derived.in_source(documents, starts)
