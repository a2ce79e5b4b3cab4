"""Documents on their way from records to shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxdata.converter.tasks.base import Encoded


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


Streams = Sequence[tuple[Encoded, ...]]
"""What documents were encoded to: for each, one `Encoded` a stream."""


def in_pieces(
    documents: Sequence[Document], encoded: Streams
) -> tuple[Sequence[Document], Streams]:
    """Documents with each piece of those that were cut as one; the first has the sizes of all."""
    if not any(streams[0].cuts for streams in encoded):
        return documents, encoded
    cut, pieces = [], []
    for document, streams in zip(documents, encoded, strict=True):
        rest = document._replace(characters=0, text_bytes=0, raw_characters=0, raw_bytes=0)
        for number, piece in enumerate(zip(*(one.pieces() for one in streams), strict=True)):
            cut.append(rest if number else document)
            pieces.append(piece)
    return cut, pieces
