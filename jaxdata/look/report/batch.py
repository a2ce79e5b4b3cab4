"""A batch drawn: in a terminal, a notebook and the report; segments, loss, padding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import equal_runs
from jaxdata.base.wording import GREYS, HATCHED, color_of, counted, hatch, visible
from jaxdata.feed.loader import Loader
from jaxdata.look.document import Said, row_lines, row_title
from jaxdata.look.terminal import printable, printable_lines
from jaxdata.look.trace import Decode, Piece, Tracer, came_from

_DRAWN_ROWS = 8
_SEGMENTS = 800
_DRAWN_CHARACTERS = 320
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
    """as much of the label as there is room for"""
    left: float
    width: float
    says: str
    """which tokens of which document, in words"""
    origin: str
    text: str | None
    """the beginning of its text, printable; None if no tokenizer is known"""


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
    for row in numbers[:_DRAWN_ROWS]:
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
        text=None if text is None else printable_lines(text[:_DRAWN_CHARACTERS]),
    )


def _fits(label: str, width: float) -> bool:
    return not label or len(label) * _CHARACTER + _MARGIN < width * _PERCENT


_ARRAYS = ("inputs", "segment_ids", "loss_mask")
_SHOWN_ROWS, _PRINTED_ROWS = 16, 4
_WIDTH, _HEIGHT, _BAND = 640, 22, 14
_TOKENS, _CHARACTERS = 60, 160


class ShownBatch:
    """What `show_batch` returns: a picture in a notebook, elsewhere the counts in a line."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], decode: Callable[[Any], str] | None):
        self._arrays, self._decode = arrays, decode

    def __repr__(self) -> str:
        ids, loss = self._arrays["segment_ids"], self._arrays["loss_mask"]
        segments, filled = int(ids.max(-1).sum()), int(np.count_nonzero(ids))
        slots = counted(int(np.count_nonzero(loss)), "slot")
        return (
            f"batch of {counted(ids.shape[0], 'row')} of {ids.shape[1]:,}: "
            f"{counted(segments, 'segment')}, {slots} with loss, {ids.size - filled:,} padding"
        )

    def _repr_html_(self) -> str:
        rows = len(self._arrays["segment_ids"])
        size = f"{_WIDTH} {_HEIGHT * min(rows, _SHOWN_ROWS)}"
        drawn = "".join(self._row(number) for number in range(min(rows, _SHOWN_ROWS)))
        more = f"<div>and {rows - _SHOWN_ROWS:,} more rows</div>" if rows > _SHOWN_ROWS else ""
        return (
            f'<div class="jaxdata"><strong>{visible(repr(self))}</strong><div><svg '
            f'width="{_WIDTH}" viewBox="0 0 {size}" role="img" style="max-width:100%">'
            f"{hatch()}{drawn}</svg></div>{more}<div>A band is a segment; the line below it marks "
            "slots with loss, hatched ones are padding.</div></div>"
        )

    def _color(self, number: int, slot: int) -> str:
        """That of the segment's source; greys in turn where the batch does not say it."""
        if "source" in self._arrays:
            return color_of(int(self._arrays["source"][number, slot]))
        return GREYS[int(self._arrays["segment_ids"][number, slot]) % 2]

    def _row(self, number: int) -> str:
        """A row as SVG: its segments, and below them where it has loss."""
        ids, loss = (self._arrays[name][number] for name in ("segment_ids", "loss_mask"))
        top, slot = _HEIGHT * number, _WIDTH / len(ids)
        drawn = []
        for first, stop in equal_runs(ids):
            segment = int(ids[first])
            place = f'x="{first * slot:.1f}" width="{(stop - first) * slot - 0.5:.1f}" y="{top}"'
            fill = f'fill="{self._color(number, first)}" fill-opacity="0.45"'
            said = visible(self._said(number, first, stop)) if segment else "padding"
            drawn.append(
                f'<rect {place} height="{_BAND}" {fill if segment else f"fill={HATCHED!r}"}>'
                f"<title>{said}</title></rect>"
            )
        for first, stop in equal_runs(loss):
            if loss[first]:
                place = f'x="{first * slot:.1f}" width="{(stop - first) * slot:.1f}"'
                drawn.append(f'<rect {place} y="{top + _BAND + 1}" height="2" fill="#7d7d85"/>')
        return "".join(drawn)

    def print(self) -> None:
        """Print the first rows, as `jaxdata inspect --row` does."""
        from rich.console import Console

        console, rows = Console(), len(self._arrays["segment_ids"])
        for number in range(min(rows, _PRINTED_ROWS)):
            row = {name: array[number] for name, array in self._arrays.items()}
            said = [
                Said(counted(stop - first, "slot"), self._text(number, first, stop))
                for first, stop in equal_runs(row["segment_ids"])
                if row["segment_ids"][first]
            ]
            console.print(row_title(row, number, rows), highlight=False)
            for line in row_lines(row, said, min(console.width, 100), explained=not number):
                console.print(line, soft_wrap=True)
        if rows > _PRINTED_ROWS:
            console.print(f"and {rows - _PRINTED_ROWS:,} more rows", highlight=False)

    def _said(self, number: int, first: int, stop: int) -> str:
        text = self._text(number, first, stop)
        return f"segment of {stop - first:,} slots" + ("" if text is None else f": {text}")

    def _text(self, number: int, first: int, stop: int) -> str | None:
        """How a segment begins."""
        if self._decode is None:
            return None
        tokens = self._arrays["inputs"][number][first : min(stop, first + _TOKENS)]
        return self._decode(tokens).rstrip("\ufffd")[:_CHARACTERS]  # of a character cut in two


def show_batch(batch: Any, decode: Callable[[Any], str] | None = None) -> ShownBatch:
    """Draw a batch, or a row: in a notebook as a picture, elsewhere as lines that are printed.

    In the lines each segment has a letter, as in `jaxdata inspect --row`; of a batch the first four
    rows are printed. What is returned says the counts of the whole batch.

    Args:
        batch: as a loader gives it: a dict of arrays of numpy, jax or torch, with `inputs`,
            `segment_ids` and `loss_mask`, each (batch, seq_len) or (seq_len,); with `source` (see
            `extras`) each source has its colour.
        decode: `dataset.decode`, to show what each segment begins with.

    Raises:
        InputError: it lacks these arrays, as batches in another trainer's layout do.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0]]), seq_len=4)
    >>> jaxdata.show_batch(rows[0])
    row 0 of 1: 2 segments, 3 of 4 slots filled, 3 with loss
    ABB.
    a character is a slot; lower case has no loss, dots are padding
    A 1 slot
    B 2 slots
    batch of 1 row of 4: 2 segments, 3 slots with loss, 1 padding
    """
    if not isinstance(batch, Mapping) or not set(_ARRAYS) <= set(batch):
        given = sorted(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise InputError(
            f"show_batch: given {given}, expected a batch or a row with the arrays "
            f"{', '.join(_ARRAYS)}; a loader gives them with layout='jaxdata'"
        )
    names = [*_ARRAYS, *({"source"} & set(batch))]
    shown = ShownBatch({name: np.atleast_2d(np.asarray(batch[name])) for name in names}, decode)
    if not _in_notebook():
        shown.print()
    return shown


def _in_notebook() -> bool:
    """Whether what a cell returns is drawn; IPython in a terminal has no kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
