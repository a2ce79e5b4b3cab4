"""A row drawn in the terminal: its segments, what has no loss, and padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from jaxdata.look.safe import excerpt, fit, printable
from jaxdata.look.trace import Piece

__all__ = ["row_lines"]

_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_MOST_LINES = 4
_MOST_SEGMENTS = 20
_PADDING = "."


def row_lines(
    row: Mapping[str, NDArray[Any]], pieces: Sequence[Piece], width: int
) -> Iterator[Text]:
    """Lines of at most `width` columns; they say the same without colours.

    A segment is a letter, small where its targets have no loss; a point is padding.

    Args:
        row: `segment_ids` and `loss_mask`, (seq_len,).
        pieces: the segments of it, in order.
        width: columns of the terminal.
    """
    slots = len(row["segment_ids"])
    in_cell = -(-slots // (_MOST_LINES * width))
    cells = _cells(row["segment_ids"], row["loss_mask"], in_cell)
    for first in range(0, len(cells), width):
        yield _bar(cells[first : first + width])
    each = f"{in_cell} slots" if in_cell > 1 else "a slot"
    yield Text(f"a character is {each}; small letters have no loss, points are padding", "dim")
    for number, piece in enumerate(pieces[:_MOST_SEGMENTS], 1):
        yield from _segment_lines(number, piece, width)
    if len(pieces) > _MOST_SEGMENTS:
        yield Text(f"and {len(pieces) - _MOST_SEGMENTS:,} segments more")


def _cells(ids: NDArray[Any], loss: NDArray[Any], in_cell: int) -> list[tuple[int, bool]]:
    """Of every cell the segment in its middle, and whether it has loss anywhere."""
    starts = np.arange(0, len(ids), in_cell)
    middles = np.minimum(starts + in_cell // 2, len(ids) - 1)
    return list(
        zip(ids[middles].tolist(), np.logical_or.reduceat(loss, starts).tolist(), strict=True)
    )


def _bar(cells: Sequence[tuple[int, bool]]) -> Text:
    line = Text()
    for segment, loss in cells:
        if not segment:
            line.append(_PADDING, "dim")
        else:
            letter = _letter(segment)
            line.append(letter if loss else letter.lower(), _style(segment, loss))
    return line


def _letter(segment: int) -> str:
    return ascii_uppercase[(segment - 1) % len(ascii_uppercase)]


def _style(segment: int, loss: bool = True) -> str:
    color = _COLORS[(segment - 1) % len(_COLORS)]
    return f"black on {color}" if loss else color


def _segment_lines(number: int, piece: Piece, width: int) -> Iterator[Text]:
    line = Text(_letter(number), _style(number))
    first, stop = piece.tokens
    line.append(
        f" {printable(piece.source)}:{piece.document}  tokens {first:,} to {stop - 1:,} of "
        f"{piece.length:,} in {piece.slots[1] - piece.slots[0]:,} slots",
        "default on default",
    )
    yield line
    if piece.excerpt is not None:
        yield Text(f"  “{fit(excerpt(piece.excerpt), width - 4)}”", "dim")
