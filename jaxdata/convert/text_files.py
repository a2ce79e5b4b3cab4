"""Text files: each is one document, a huge one read in pieces.

Where a text is cut follows from its bytes alone, so that many can read it at once: near each
multiple of a piece's size, behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from jaxdata.convert.parts import ReadSettings
from jaxdata.convert.splitting import BYTE_ORDER_MARK, Unreadable, too_long

__all__ = ["Stretch", "TextFile", "huge", "piece_end", "pieces", "text_records"]

_HUGE = 16
"""Pieces that a text must be longer than to be read in pieces."""
_NEAR = 4
"""The part of a piece, behind its size, in which a place to cut is looked for."""
_BLANK_LINE = re.compile(rb"\n(?:\r?\n)+")
_BETWEEN_WORDS = re.compile(rb"[A-Za-z](?= [A-Za-z])")  # as tokenizers.parts cuts texts


class TextFile(bytes):
    """The content of a text file, which is one document, not a line of JSON; or a piece of it.

    Attributes:
        begins: whether the document begins with it.
        ends: whether the document ends with it.
    """

    begins = True
    ends = True


class Stretch(str):
    """A text that goes on in another one, or goes on from one; its attributes are `TextFile`'s."""

    begins = True
    ends = True

    @classmethod
    def like(cls, text: str, other: TextFile | Stretch) -> str:
        """Return a text that begins and ends where another does; a whole one as it is."""
        if other.begins and other.ends:
            return text
        made = cls(text)
        made.begins, made.ends = other.begins, other.ends
        return made


def huge(size: int, settings: ReadSettings) -> bool:
    """Tell whether a text of `size` bytes is read in pieces."""
    return size > _HUGE * settings.piece_bytes


def text_records(stream: IO[bytes], settings: ReadSettings) -> Iterator[bytes | Unreadable]:
    """Give the text that a stream holds: whole, in pieces where it is huge, none where empty."""
    head = stream.read(_HUGE * settings.piece_bytes + 1)
    if huge(len(head), settings):
        yield from _pieces_of_stream(bytearray(head), stream, settings)
    elif text := head.removeprefix(BYTE_ORDER_MARK):
        yield _checked(TextFile(text), settings)


def _pieces_of_stream(
    held: bytearray, stream: IO[bytes], settings: ReadSettings
) -> Iterator[bytes | Unreadable]:
    """Give the pieces of a text that can be read once; `held` was read of it before."""
    size, place, ended = settings.piece_bytes, 0, False
    while not ended:
        until = _next_multiple(place, size) - place
        held += stream.read(max(0, until + size // 2 + 1 - len(held)))
        ended = _is_last(until, len(held), size)
        near = held[until : until + size // _NEAR]
        end = len(held) if ended else until + _place_to_cut(near, settings)
        yield _piece(bytes(held[:end]), place == 0, ended, settings)
        del held[:end]
        place += end


def pieces(
    text: IO[bytes], start: int, stop: int, size: int, settings: ReadSettings
) -> Iterator[bytes | Unreadable]:
    """Give the pieces of a file of `size` bytes between two places where pieces end."""
    while start < stop:
        end = piece_end(text, _next_multiple(start, settings.piece_bytes), size, settings)
        text.seek(start)
        yield _piece(text.read(end - start), start == 0, end == size, settings)
        start = end


def piece_end(text: IO[bytes], multiple: int, size: int, settings: ReadSettings) -> int:
    """Return where the piece of a file ends that has a multiple of a piece's size in it."""
    if _is_last(multiple, size, settings.piece_bytes):
        return size
    text.seek(multiple)
    return multiple + _place_to_cut(text.read(settings.piece_bytes // _NEAR), settings)


def _is_last(multiple: int, size: int, piece_bytes: int) -> bool:
    """Tell whether a text of `size` bytes is not cut behind a multiple: no piece is a crumb."""
    return size <= multiple + piece_bytes // 2


def _next_multiple(start: int, size: int) -> int:
    return (start // size + 1) * size


def _piece(data: bytes, begins: bool, ends: bool, settings: ReadSettings) -> bytes | Unreadable:
    piece = TextFile(data.removeprefix(BYTE_ORDER_MARK) if begins else data)
    if settings.joined:
        piece.begins, piece.ends = begins, ends
    return _checked(piece, settings)


def _checked(text: TextFile, settings: ReadSettings) -> bytes | Unreadable:
    limit = settings.record_bytes
    return text if len(text) <= limit else too_long(text, limit)


def _place_to_cut(near: bytes | bytearray, settings: ReadSettings) -> int:
    """Return how many of some bytes belong to the piece before them."""
    blank = _BLANK_LINE.search(near)
    line = blank.end() if blank else near.find(b"\n") + 1
    if settings.joined:
        word = _BETWEEN_WORDS.search(near, line) or _BETWEEN_WORDS.search(near)
        line = word.end() if word else line
    return line or _character_end(near)


def _character_end(near: bytes | bytearray) -> int:
    """Return how many bytes go on with the UTF-8 character before them."""
    return next((n for n, byte in enumerate(near[:4]) if byte & 0xC0 != 0x80), 0)
