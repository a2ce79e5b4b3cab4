"""Batches of documents on their way to shards, as columns.

One object per document would cost as much as parsing its record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxdata.converter.tasks.base import Encoded

_CHARACTERS = 2**20
_DOCUMENTS = 1_024
_SIZES = "characters", "text_bytes", "raw_characters", "raw_bytes"


class Document(NamedTuple):
    """A document: what the task made of it, where it came from, and its sizes."""

    content: Any
    part: int  # its number in the unit
    record: int  # its number in the part
    split: str
    characters: int
    text_bytes: int
    raw_characters: int  # before cleaning; of all documents of a record, with the first
    raw_bytes: int
    kept: bytes = b""  # a line of JSON with the fields to keep


@dataclass(slots=True)
class Documents:
    """Documents in order, as columns; see :class:`Document`.

    >>> documents = Documents()
    >>> documents.append(Document("text", 0, 3, "train", 4, 4, 4, 4))
    >>> documents.record, [document.content for document in documents]
    ([3], ['text'])
    """

    content: list[Any] = field(default_factory=list)
    part: list[int] = field(default_factory=list)
    record: list[int] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    characters: list[int] = field(default_factory=list)
    text_bytes: list[int] = field(default_factory=list)
    raw_characters: list[int] = field(default_factory=list)
    raw_bytes: list[int] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    _size: int = field(default=0, init=False)

    def _columns(self) -> tuple[list[Any], ...]:
        sizes = self.characters, self.text_bytes, self.raw_characters, self.raw_bytes
        return self.content, self.part, self.record, self.split, *sizes, self.kept

    def __len__(self) -> int:
        return len(self.content)

    def __iter__(self) -> Iterator[Document]:
        return map(Document._make, zip(*self._columns(), strict=True))

    @property
    def full(self) -> bool:
        """Whether the batch is large enough to be tokenised."""
        return self._size >= _CHARACTERS or len(self) >= _DOCUMENTS

    def append(self, document: Document, weight: int = 0) -> None:
        """Add one document; see `Task.weight`."""
        for column, value in zip(self._columns(), document, strict=True):
            column.append(value)
        self._size += document.characters + weight

    def append_texts(
        self, texts: list[str], text_bytes: list[int], part: int, first: int, split: str
    ) -> None:
        """Add texts as they are in their records, which follow each other from `first` on."""
        count, characters = len(texts), list(map(len, texts))
        self.content += texts
        self.part += [part] * count
        self.record += range(first, first + count)
        self.split += [split] * count
        self.characters += characters
        self.text_bytes += text_bytes
        self.raw_characters += characters
        self.raw_bytes += text_bytes
        self.kept += [b""] * count
        self._size += sum(characters)

    def take(self, numbers: Sequence[int]) -> Documents:
        """Return some of the documents."""
        if len(numbers) == len(self):
            return self
        return Documents(*([column[number] for number in numbers] for column in self._columns()))


Streams = Sequence[tuple[Encoded, ...]]
"""What documents were encoded to: for each, one `Encoded` a stream."""


def in_pieces(documents: Documents, encoded: Streams) -> tuple[Documents, Streams]:
    """Documents with each piece of those that were cut as one; the first has the sizes of all."""
    if not any(streams[0].cuts for streams in encoded):
        return documents, encoded
    cut, pieces = Documents(), []
    no_sizes: dict[str, Any] = dict.fromkeys(_SIZES, 0)
    for document, streams in zip(documents, encoded, strict=True):
        for number, piece in enumerate(zip(*(one.pieces() for one in streams), strict=True)):
            cut.append(document._replace(**no_sizes) if number else document)
            pieces.append(piece)
    return cut, pieces
