"""Text files: each is one document, a huge one a document for each of its pieces.

Where a text is cut follows from its bytes alone: after an empty line or the end of a line.
"""

import re
from collections.abc import Iterator
from typing import IO

from jaxdata.converter.inputs.files import InputFile, ReadSettings
from jaxdata.converter.inputs.parsing import BYTE_ORDER_MARK, Raw, TextPiece, too_long
from jaxdata.converter.inputs.reading import Format, register

_HUGE = 16
"""Pieces that a text must be longer than to be read in pieces."""
_SMALL = 2**16  # bytes that are read at first: to allocate for a huge text costs more than a file
_NEAR = 4
"""The part of a piece, after its size, in which a place to cut is looked for."""
_BLANK_LINE = re.compile(rb"\n(?:\r?\n)+")


class PlainText(Format):
    """A text, which is cut where pieces end."""

    name = "txt"
    suffixes = ("txt", "md", "rst", "html")
    counted = "piece"

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[Raw]:
        """The text whole, in pieces where it is huge, none where it is empty."""
        size, limit = settings.piece_bytes, settings.record_bytes
        held = bytearray(stream.read(min(_SMALL, _HUGE * size + 1)))
        if len(held) == _SMALL:
            held += stream.read(_HUGE * size + 1 - _SMALL)
        huge = len(held) > _HUGE * size
        if held.startswith(BYTE_ORDER_MARK):
            del held[: len(BYTE_ORDER_MARK)]
        while held:
            last = not huge or len(held) <= size + size // 2  # no piece is a crumb
            end = len(held) if last else size + _place_to_cut(held[size : size + size // _NEAR])
            text = bytes(held[:end])
            yield TextPiece(text) if end <= limit else too_long(text, limit)
            del held[:end]
            if not last:
                held += stream.read(max(0, 2 * size - len(held)))

    def is_one_unit(self, file: InputFile, settings: ReadSettings) -> bool:
        """A text in one piece; of a compressed one it is a guess."""
        return file.text_bytes <= _HUGE * settings.piece_bytes


def _place_to_cut(near: bytearray) -> int:
    """Return how many of some bytes belong to the piece before them."""
    blank = _BLANK_LINE.search(near)
    line = blank.end() if blank else near.find(b"\n") + 1
    # Else after the bytes that continue a character of UTF-8.
    return line or next((n for n, byte in enumerate(near[:4]) if byte & 0xC0 != 0x80), 0)


register(PlainText())
