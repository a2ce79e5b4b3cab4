"""Text files: each is one document, a huge one read in pieces.

Where a text is cut follows from its bytes alone, so that many can read it at once: near each
multiple of a piece's size, after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from jaxdata.converter.inputs.files import ReadSettings, next_multiple
from jaxdata.converter.inputs.formats.base import Format, register
from jaxdata.converter.inputs.parsing import (
    BYTE_ORDER_MARK,
    TextPiece,
    Unreadable,
    too_long,
)

if TYPE_CHECKING:
    from jaxdata.converter.inputs.files import InputFile

_HUGE = 16
"""Pieces that a text must be longer than to be read in pieces."""
_SMALL = 2**16  # bytes that are read at first: to allocate for a huge text costs more than a file
_NEAR = 4
"""The part of a piece, after its size, in which a place to cut is looked for."""
_BLANK_LINE = re.compile(rb"\n(?:\r?\n)+")
_BETWEEN_WORDS = re.compile(rb"[A-Za-z](?= [A-Za-z])")  # as tokenizers.text_cuts cuts texts


class PlainText(Format):
    """A text, which is cut where pieces end."""

    name = "txt"
    suffixes = ("txt", "md", "rst", "html")
    counted = "piece"

    def records(
        self, stream: IO[bytes], settings: ReadSettings
    ) -> Iterator[TextPiece | Unreadable]:
        """The text whole, in pieces where it is huge, none where it is empty."""
        head = stream.read(min(_SMALL, _HUGE * settings.piece_bytes + 1))
        if len(head) == _SMALL:
            head += stream.read(_HUGE * settings.piece_bytes + 1 - _SMALL)
        if _huge(len(head), settings):
            yield from _pieces_of_stream(bytearray(head), stream, settings)
        elif head.removeprefix(BYTE_ORDER_MARK):
            yield _piece(head, True, True, settings)

    def is_one_unit(self, file: InputFile, settings: ReadSettings) -> bool:
        """A text in one piece; of a compressed one it is a guess."""
        return not _huge(file.text_bytes, settings)


def _huge(size: int, settings: ReadSettings) -> bool:
    """Tell whether a text of `size` bytes is read in pieces."""
    return size > _HUGE * settings.piece_bytes


def _pieces_of_stream(
    held: bytearray, stream: IO[bytes], settings: ReadSettings
) -> Iterator[TextPiece | Unreadable]:
    """Give the pieces of a text that can be read once; `held` was read of it before."""
    size, place, ended = settings.piece_bytes, 0, False
    while not ended:
        until = next_multiple(place, size) - place
        held += stream.read(max(0, until + size // 2 + 1 - len(held)))
        ended = _is_last(until, len(held), size)
        near = held[until : until + size // _NEAR]
        end = len(held) if ended else until + _place_to_cut(near, settings)
        yield _piece(bytes(held[:end]), place == 0, ended, settings)
        del held[:end]
        place += end


def _is_last(multiple: int, size: int, piece_bytes: int) -> bool:
    """Tell whether a text of `size` bytes is not cut after a multiple: no piece is a crumb."""
    return size <= multiple + piece_bytes // 2


def _piece(data: bytes, begins: bool, ends: bool, settings: ReadSettings) -> TextPiece | Unreadable:
    text, limit = data.removeprefix(BYTE_ORDER_MARK) if begins else data, settings.record_bytes
    if len(text) > limit:
        return too_long(text, limit)
    return TextPiece(text, begins, ends) if settings.joined else TextPiece(text)


def _place_to_cut(near: bytes | bytearray, settings: ReadSettings) -> int:
    """Return how many of some bytes belong to the piece before them."""
    blank = _BLANK_LINE.search(near)
    line = blank.end() if blank else near.find(b"\n") + 1
    if settings.joined:
        word = _BETWEEN_WORDS.search(near, line) or _BETWEEN_WORDS.search(near)
        line = word.end() if word else line
    return line or _character_end(near)


def _character_end(near: bytes | bytearray) -> int:
    """Return how many bytes continue the UTF-8 character before them."""
    return next((n for n, byte in enumerate(near[:4]) if byte & 0xC0 != 0x80), 0)


register(PlainText())
