"""Documents on their way to their shards, many at a time: a list for each thing known of them.

An object for each document would cost as much as parsing its record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Document", "Documents"]

_CHARACTERS = 2**20
_DOCUMENTS = 1_024


class Document(NamedTuple):
    """A document.

    Attributes:
        content: what the task made of it.
        part: number of its part in the unit.
        record: number of its record in the part.
        split: the split it goes to.
        characters: of its texts.
        text_bytes: of its texts in UTF-8.
        raw_characters: before cleaning; of all documents of a record, with the first.
        raw_bytes: likewise.
        kept: a line of JSON with the fields to keep.
    """

    content: Any
    part: int
    record: int
    split: str
    characters: int
    text_bytes: int
    raw_characters: int
    raw_bytes: int
    kept: bytes = b""


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
        """Whether they are enough for the tokenizer, and as many as the memory should hold."""
        return self._size >= _CHARACTERS or len(self) >= _DOCUMENTS

    def append(self, document: Document) -> None:
        """Add one document."""
        for column, value in zip(self._columns(), document, strict=True):
            column.append(value)
        self._size += document.characters

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
