"""A foreign format: how its files are found and read.

What readers share: maps, numbers in them, and documents as ranges of flat files of tokens.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.storage import LocalStore
from jaxdata.storage.cached_files import cached_file
from jaxdata.storage.maps import map_file
from jaxdata.storage.objects import AnyPath, any_path

_SAMPLE = 64 * 2**10
_MIDDLE_SAMPLE = 4 * 2**10
_MIDDLE_SAMPLES = 64
_NUMBERS_AT_ONCE = 2**20


def check_file(path: AnyPath, needed: str) -> None:
    """Raise DatasetError with the reason it is `needed` unless a file is there."""
    if not path.is_file():
        raise DatasetError(f"{path} is missing: {needed}")


def open_map(path: AnyPath, needed: str) -> memoryview:
    """A file as a memory map; raises DatasetError with the reason it is `needed`.

    Of an object, a copy in the user's cache, which all processes of a host share.
    """
    check_file(path, needed)
    if isinstance(path, Path):
        return map_file(path)
    size = path.stat().st_size
    return cached_file(
        f"copies/{path.version[:32]}-{path.name}",
        path.copy_to,
        None,
        lambda copy: map_file(copy) if copy.stat().st_size == size else None,
    )


def damaged(path: AnyPath, found: str, expected: str) -> DatasetError:
    """The error for a damaged file."""
    return DatasetError(f"{path} is damaged: it has {found}, expected {expected}; restore the file")


def check_size(path: AnyPath, expected: int, why: str) -> None:
    """Raise DatasetError unless a file has `expected` bytes."""
    size = path.stat().st_size
    if size != expected:
        short = " and is truncated" if size < expected else ""
        raise damaged(path, f"{size:,} bytes{short}", f"{expected:,} ({why})")


def read_header(
    path: AnyPath, data: memoryview, form: struct.Struct, magic: bytes, tool: str
) -> tuple[Any, ...]:
    """The fields of a header of an index after its magic and its version, which must be 1."""
    if len(data) < form.size:
        raise damaged(path, f"{len(data)} bytes", f"a header of {form.size}")
    found, version, *fields = form.unpack_from(data)
    if found != magic:
        raise damaged(path, f"{found!r} at its beginning", f"{magic!r}, {tool}'s index")
    if version != 1:
        raise damaged(path, f"version {version}", "version 1")
    return tuple(fields)


def numbers(data: memoryview, dtype: str, offset: int, count: int) -> NDArray[Any]:
    """`count` numbers at a byte offset, a read-only view of the map."""
    return np.frombuffer(data, np.dtype(dtype), count, offset)


def gaps(ends: NDArray[Any], problem: Callable[[int], DatasetError]) -> NDArray[Any]:
    """The differences of numbers that must not fall: uint32, or uint64 if one is larger.

    `problem` makes the error for the first place *k* where `ends[k + 1] < ends[k]`.
    """
    found = np.empty(len(ends) - 1, np.uint32)
    for start in range(0, len(found), _NUMBERS_AT_ONCE):
        part = ends[start : start + _NUMBERS_AT_ONCE + 1].astype(np.int64)
        difference = np.diff(part)
        falling = np.flatnonzero(part[1:] < part[:-1])  # a difference may be beyond 64 bits
        if len(falling):
            raise problem(start + int(falling[0]))
        if difference.max(initial=0) >= 2**32:
            return np.diff(ends.astype(np.int64)).astype(np.uint64)
        found[start : start + len(difference)] = difference
    return found


def sample(path: AnyPath) -> str:
    """A digest of a file's size, head, tail, and of samples spread evenly between."""
    size = path.stat().st_size
    content = hashlib.sha256(str(size).encode())
    between = np.linspace(0, size, _MIDDLE_SAMPLES + 2)[1:-1].astype(np.int64).tolist()
    with path.open("rb") as file:
        content.update(file.read(_SAMPLE))
        if size > 2 * _SAMPLE:
            for place in between:
                file.seek(place)
                content.update(file.read(_MIDDLE_SAMPLE))
        file.seek(max(0, size - _SAMPLE))
        content.update(file.read(_SAMPLE))
    return content.hexdigest()


@dataclass(frozen=True)
class FlatPart:
    """The documents of one flat file of tokens."""

    tokens: AnyPath
    dtype: np.dtype[Any]
    """of the tokens as stored, little-endian"""
    lengths: NDArray[Any]
    """(documents,) tokens of each, unsigned"""
    offsets: NDArray[Any]
    """(documents,) where each begins, in `unit` bytes"""
    unit: int
    context: NDArray[np.uint16] | None = None
    """(documents,) first tokens of each that have no loss"""
    mask: AnyPath | None = None
    """a byte for every token: 1 if it has loss"""


class TokenRanges:
    """The documents of several such files, in order; all have one dtype."""

    def __init__(self, spec: str, parts: Sequence[FlatPart]) -> None:
        self.spec, self.parts = spec, list(parts)
        self.dtype = parts[0].dtype
        for part in parts:
            if part.dtype != self.dtype or (part.mask is None) != (parts[0].mask is None):
                raise DatasetError(
                    f"{spec}: {parts[0].tokens.name} has tokens of {self.dtype}, "
                    f"{part.tokens.name} of {part.dtype}, or one has a loss mask and the other "
                    "has none: open them as separate sources"
                )
        self.lengths = _joined([part.lengths for part in parts])
        self.first = np.cumsum([0, *(len(part.lengths) for part in parts)])[:-1]
        self.masked = any(part.context is not None or part.mask is not None for part in parts)

    def place(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(number of the part, byte offset in its file) of documents; int64 (n,) each."""
        part = np.searchsorted(self.first, documents, side="right") - 1
        offset = np.empty(len(documents), np.int64)
        for number in set(part.tolist()):
            mine, here = part == number, self.parts[number]
            offset[mine] = here.offsets[documents[mine] - self.first[number]]
            offset[mine] *= here.unit
        return part, offset

    @cached_property
    def context(self) -> NDArray[np.uint16] | None:
        """(documents,) first tokens of each that have no loss; None if no file says so."""
        context = [part.context for part in self.parts if part.context is not None]
        return _joined(context) if context else None

    @cached_property
    def fingerprint(self) -> str:
        """Covers sizes, samples, dtype, lengths and context, but no paths or times."""
        content = hashlib.sha256(self.dtype.str.encode())
        for part in self.parts:
            files = [part.tokens] if part.mask is None else [part.tokens, part.mask]
            content.update("".join(map(sample, files)).encode())
        for array in (self.lengths, self.context):
            if array is not None:
                content.update(np.ascontiguousarray(array).data)
        return content.hexdigest()


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class ReadOptions(NamedTuple):
    """What a reader may need to know besides the path."""

    eod_id: int | None
    """token that ends documents; None for the format's own"""
    sequences: bool
    """take Megatron's sequences for documents"""
    beside: LocalStore | None
    """where to keep what is computed once; None for the user's cache"""
    index_path: AnyPath | None = None
    """the `.idx` of a pair, where it is not beside the `.bin`"""

    def index_of(self, prefix: AnyPath) -> AnyPath:
        """The `.idx` of a pair of files."""
        return self.index_path or any_path(f"{prefix}.idx")


@dataclass(frozen=True)
class ForeignFormat:
    """One format of another tool.

    Attributes:
        name: what precedes the path, as in `"megatron:PREFIX"`.
        suffix: the ending of the files that a folder is searched for; with `.idx`, a dataset is a
            pair of files and its path is what they have in common, without `.bin` and `.idx`.
        read: finds the documents of one file, or pair of files.
        writer: writes documents as this format; None if jaxdata only reads it.
        eod_id: the token that ends documents unless another is given; None if the files know it.
    """

    name: str
    suffix: str
    read: Callable[[AnyPath, ReadOptions], FlatPart]
    writer: type[ForeignWriter] | None = None
    eod_id: int | None = None

    @property
    def is_pair(self) -> bool:
        """Whether a dataset is a `.bin` and an `.idx`."""
        return self.suffix == ".idx"


class Ranges(NamedTuple):
    """Ranges of documents, in order; int64 (ranges,) each."""

    document: NDArray[np.int64]
    start: NDArray[np.int64]
    tokens: NDArray[np.int64]


class Written(NamedTuple):
    """What a writer must know of the documents that it writes."""

    name: str
    dtype: np.dtype[Any]
    masked: bool
    lengths: NDArray[Any]
    """tokens of each, (documents,) unsigned"""
    number: Callable[[int], int]
    """the number of each in its source, through whatever view it is read"""


class ForeignWriter(ABC):
    """Checks the tokens of all documents, which it gets in order, then makes the index."""

    index_suffix: ClassVar[str | None] = ".idx"
    """ending of the index; None if a file of tokens is all there is"""
    holds_masks: ClassVar[bool] = False

    def __init__(self, documents: Written, eod_id: int | None) -> None:
        self.documents, self._eod_id = documents, eod_id
        self.lengths = documents.lengths
        if documents.masked and not self.holds_masks:
            raise InputError(
                f"{documents.name} stores loss masks, which this format cannot hold; export it "
                "as gpts if only first tokens are masked"
            )

    def called(self, document: int) -> str:
        """A document in errors."""
        return f"document {self.documents.number(document)} of {self.documents.name}"

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens in the file."""

    def add(self, ranges: Ranges, tokens: NDArray[Any]) -> None:
        """Check the next tokens; raises InputError if the format cannot hold them."""
        largest = np.iinfo(self.dtype).max
        if len(tokens) and tokens.max() > largest:
            at = document_at(ranges, int(tokens.argmax()))
            raise InputError(
                f"{self.called(at)} has the id {tokens.max()}; the format holds ids up to {largest}"
            )

    def add_masks(self, ranges: Ranges, mask: NDArray[np.uint8]) -> None:
        """Check their loss masks, uint8; only called if the format `holds_masks`."""
        raise NotImplementedError

    @abstractmethod
    def index(self) -> Iterator[bytes]:
        """The bytes of the index, in chunks."""


def document_at(ranges: Ranges, token: int) -> int:
    """The document that a token of the ranges, end to end, belongs to."""
    at = np.searchsorted(np.cumsum(ranges.tokens), token, side="right")
    return int(ranges.document[at])
