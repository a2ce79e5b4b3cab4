"""A foreign format: how its files are found, read and written, and what readers share."""

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.ragged import Ints
from jaxdata.dataset.documents import Documents
from jaxdata.storage import LocalStore
from jaxdata.storage.local import map_file

_SAMPLE = 64 * 2**10
_MIDDLE_SAMPLE = 4 * 2**10
_MIDDLE_SAMPLES = 64


def check_file(path: Path, needed: str) -> None:
    """Raise DatasetError with the reason it is `needed` unless a file is there."""
    if not path.is_file():
        raise DatasetError(f"{path} is missing: {needed}")


def open_map(path: Path, needed: str) -> memoryview:
    """A file as a memory map; raises DatasetError with the reason it is `needed`."""
    check_file(path, needed)
    return map_file(path)


def damaged(path: Path, found: str, expected: str) -> DatasetError:
    """The error for a damaged file."""
    return DatasetError(f"{path} is damaged: it has {found}, expected {expected}; restore the file")


def check_size(path: Path, expected: int, why: str) -> None:
    """Raise DatasetError unless a file has `expected` bytes."""
    if (size := path.stat().st_size) != expected:
        raise damaged(path, f"{size:,} bytes", f"{expected:,} ({why})")


def open_pair(
    prefix: Path, kind: str, form: struct.Struct, magic: bytes, tool: str
) -> tuple[Path, Path, memoryview, list[Any]]:
    """Open PREFIX.bin and PREFIX.idx, whose version must be 1.

    Returns:
        The file of tokens; the index, its bytes, and what its header has after the version.
    """
    tokens, path = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    needed = f"{kind}:{prefix} is the two files {tokens.name} and {path.name}"
    data = open_map(path, needed)
    check_file(tokens, needed)
    if len(data) < form.size:
        raise damaged(path, f"{len(data)} bytes", f"a header of {form.size}")
    found, version, *fields = form.unpack_from(data)
    if (found, version) != (magic, 1):
        raise damaged(path, f"{found!r}, version {version}", f"{magic!r}, version 1, of {tool}")
    return tokens, path, data, fields


def gaps(edges: NDArray[Any], path: Path) -> NDArray[Any]:
    """The lengths of documents between `edges`: uint32, or uint64 if one is longer.

    Raises:
        DatasetError: they do not rise from 0; it names the document of `path`.
    """
    falling = np.flatnonzero(edges[1:] < edges[:-1])
    if len(falling):
        raise damaged(path, f"document {falling[0]} ending before it begins", "rising ends")
    if edges[0] != 0:
        raise damaged(path, f"a first document that begins at {edges[0]}", "0")
    found = np.diff(edges)
    return found.astype(np.uint32 if found.max(initial=0) < 2**32 else np.uint64)


def sample(path: Path) -> str:
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

    tokens: Path
    dtype: np.dtype[Any]
    """of the tokens as stored, little-endian"""
    lengths: NDArray[Any]
    """(documents,) tokens of each, unsigned"""
    offsets: NDArray[Any]
    """(documents,) where each begins, in `unit` bytes"""
    unit: int
    context: NDArray[np.uint16] | None = None
    """(documents,) first tokens of each that have no loss"""
    mask: Path | None = None
    """a byte for every token: 1 if it has loss"""


class ReadOptions(NamedTuple):
    """What a reader may need to know besides the path."""

    eod_id: int | None
    """token that ends documents; None for the format's own"""
    sequences: bool
    """take Megatron's sequences for documents"""
    beside: LocalStore
    """where to keep what is computed once"""


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
    read: Callable[[Path, ReadOptions], FlatPart]
    writer: "type[ForeignWriter] | None" = None
    eod_id: int | None = None

    @property
    def is_pair(self) -> bool:
        """Whether a dataset is a `.bin` and an `.idx`."""
        return self.suffix == ".idx"


def owner_of(first: int, counts: Ints, token: int) -> int:
    """The document that one of the tokens of some documents, from `first` on, belongs to."""
    return first + int(np.searchsorted(np.cumsum(counts), token, side="right"))


class ForeignWriter(ABC):
    """Checks the tokens of all documents, which it gets in order, then makes the index."""

    index_suffix: ClassVar[str | None] = ".idx"
    """ending of the index; None if a file of tokens is all there is"""
    holds_masks: ClassVar[bool] = False

    def __init__(self, documents: Documents, eod_id: int | None) -> None:
        self.documents, self.lengths, self._eod_id = documents, documents.lengths, eod_id
        if documents.masked and not self.holds_masks:
            raise InputError(
                f"{documents.name} stores loss masks, which this format cannot hold; export it "
                "as gpts if only first tokens are masked"
            )

    def called(self, document: int) -> str:
        """A document in errors, by its number in the source."""
        (number,), _ = self.documents.in_base(np.array([document]), np.array([0]))
        return f"document {number} of {self.documents.name}"

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens in the file."""

    def add(self, first: int, counts: Ints, tokens: NDArray[Any]) -> None:
        """Check the tokens of some documents, from `first` on; `counts` is how many each has.

        Raises:
            InputError: the format cannot hold them.
        """
        largest = np.iinfo(self.dtype).max
        if len(tokens) and tokens.max() > largest:
            which = self.called(owner_of(first, counts, int(tokens.argmax())))
            raise InputError(
                f"{which} has the id {tokens.max()}; the format holds ids up to {largest}"
            )

    def add_masks(self, first: int, counts: Ints, mask: NDArray[np.uint8]) -> None:
        """Check their loss masks, uint8; only called if the format `holds_masks`."""
        raise NotImplementedError

    @abstractmethod
    def index(self) -> Iterator[bytes]:
        """The bytes of the index, in chunks."""
