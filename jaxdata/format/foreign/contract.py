"""A foreign format: how its files are found, read and, if that is possible, written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.format.foreign.token_ranges import FlatPart
from jaxdata.format.storage import LocalStore
from jaxdata.format.storage.objects import AnyPath, any_path


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
