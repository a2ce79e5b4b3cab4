"""A row drawn in the terminal: segments, slots without loss, and padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from jaxdata.look.terminal import excerpt, fit, printable
from jaxdata.look.trace import Piece

_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_MOST_LINES = 4
_MOST_SEGMENTS = 20


def row_lines(
    row: Mapping[str, NDArray[Any]], pieces: Sequence[Piece], width: int
) -> Iterator[Text]:
    """Lines of at most `width` columns, readable without colours.

    Each segment has a letter, lower case where targets have no loss; a dot is padding. `row` has
    `segment_ids` and `loss_mask` (seq_len,), `pieces` its segments in order.
    """
    slots = len(row["segment_ids"])
    in_cell = -(-slots // (_MOST_LINES * width))
    cells = _cells(row["segment_ids"], row["loss_mask"], in_cell)
    for first in range(0, len(cells), width):
        yield _bar(cells[first : first + width])
    each = f"{in_cell} slots" if in_cell > 1 else "a slot"
    yield Text(f"a character is {each}; lower case has no loss, dots are padding", "dim")
    for number, piece in enumerate(pieces[:_MOST_SEGMENTS], 1):
        yield from _segment_lines(number, piece, width)
    if len(pieces) > _MOST_SEGMENTS:
        yield Text(f"and {len(pieces) - _MOST_SEGMENTS:,} more segments")


def _cells(ids: NDArray[Any], loss: NDArray[Any], in_cell: int) -> list[tuple[int, bool]]:
    """For each cell the segment at its middle, and whether any of its slots has loss."""
    starts = np.arange(0, len(ids), in_cell)
    middles = np.minimum(starts + in_cell // 2, len(ids) - 1)
    with_loss = np.logical_or.reduceat(loss, starts)
    return list(zip(ids[middles].tolist(), with_loss.tolist(), strict=True))


def _bar(cells: Sequence[tuple[int, bool]]) -> Text:
    line = Text()
    for segment, loss in cells:
        letter = _letter(segment) if loss else _letter(segment).lower()
        line.append(*((letter, _style(segment, loss)) if segment else (".", "dim")))
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
