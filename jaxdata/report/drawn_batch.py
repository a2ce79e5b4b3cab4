"""One batch as something to draw: rows of segments, the slots that have loss, and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.feed.loader import Loader
from jaxdata.look.terminal import printable, printable_lines
from jaxdata.look.trace import Decode, Piece, Tracer
from jaxdata.ragged import equal_runs
from jaxdata.report.samples import came_from

_ROWS = 8
_SEGMENTS = 800
_CHARACTERS = 320
_CHARACTER, _MARGIN, _PERCENT = 6.4, 9, 8.2  # of a label, beside it, of a row; pixels


@dataclass(frozen=True)
class DrawnSegment:
    """A segment; places are percent of the row."""

    source: str
    color: int
    """number of its source"""
    label: str
    """`web:17`"""
    short: str
    """as much of it as there is room for"""
    left: float
    width: float
    says: str
    """which tokens of which document, in words"""
    origin: str
    text: str | None
    """its beginning, printable; None if no tokenizer is known"""


@dataclass(frozen=True)
class DrawnRow:
    """A row of the batch; places are percent of the row."""

    number: int
    """in the batch"""
    row: int
    """of the run"""
    segments: list[DrawnSegment]
    loss: list[tuple[float, float]]
    """(left, width) of the runs of slots with loss"""
    says: str


@dataclass(frozen=True)
class DrawnBatch:
    """The first rows of a batch."""

    step: int
    steps: int
    seq_len: int
    rows: list[DrawnRow]
    batch_size: int
    names: list[str]
    """sources, in the order of their colours"""


def draw_batch(loader: Loader, decode: Decode | None, step: int) -> DrawnBatch:
    """The batch of a step of a run."""
    tracer = Tracer(loader, decode)
    numbers = tracer.batch(step).tolist()
    found: list[DrawnRow] = []
    left = _SEGMENTS
    for row in numbers[:_ROWS]:
        pieces = tracer.rows([row])
        left -= len(pieces)
        if found and left < 0:
            break
        found.append(_row(loader.rows[row], row, len(found), pieces, tracer.names))
    return DrawnBatch(
        step=step,
        steps=len(loader),
        seq_len=tracer.seq_len(numbers[0]) if numbers else 0,
        rows=found,
        batch_size=len(numbers),
        names=tracer.names,
    )


def _row(
    arrays: dict[str, NDArray[Any]],
    row: int,
    number: int,
    pieces: Sequence[Piece],
    names: list[str],
) -> DrawnRow:
    loss, slots = arrays["loss_mask"], len(arrays["loss_mask"])
    filled = int(np.count_nonzero(arrays["segment_ids"]))
    return DrawnRow(
        number=number,
        row=row,
        segments=[_segment(piece, slots, names) for piece in pieces],
        loss=[(100 * a / slots, 100 * (b - a) / slots) for a, b in equal_runs(loss) if loss[a]],
        says=f"row {row:,} of the run: {len(pieces):,} segment{'s' * (len(pieces) != 1)}, "
        f"{int(loss.sum()):,} of {slots:,} slots have loss, {slots - filled:,} are padding",
    )


def _segment(piece: Piece, slots: int, names: list[str]) -> DrawnSegment:
    first, stop = piece.tokens
    begin, end = piece.slots
    context = f", the first {piece.without_loss:,} without loss" if piece.without_loss else ""
    text, width = piece.excerpt, 100 * (end - begin) / slots
    label = f"{printable(piece.source)}:{piece.document}"
    short = [each for each in (label, str(piece.document), "") if _fits(each, width)]
    return DrawnSegment(
        source=printable(piece.source),
        color=names.index(piece.source),
        label=label,
        short=short[0],
        left=100 * begin / slots,
        width=width,
        says=f"tokens {first:,} to {stop - 1:,} of {piece.length:,}, in slots {begin:,} to "
        f"{end - 1:,}{context}",
        origin=came_from(vars(piece.origin)),
        text=None if text is None else printable_lines(text[:_CHARACTERS]),
    )


def _fits(label: str, width: float) -> bool:
    return not label or len(label) * _CHARACTER + _MARGIN < width * _PERCENT
