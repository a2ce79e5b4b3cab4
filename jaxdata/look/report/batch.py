"""A batch drawn, in the report and in a terminal: segments, loss, padding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import equal_runs
from jaxdata.base.wording import counted
from jaxdata.feed.loader import Loader
from jaxdata.look.document import Said, row_lines
from jaxdata.look.terminal import printable, printable_lines
from jaxdata.look.trace import Decode, Piece, Tracer, came_from

_DRAWN_ROWS, _SEGMENTS = 8, 800
_DRAWN_CHARACTERS = 320
_CHARACTER, _MARGIN, _PERCENT = 6.4, 9, 8.2  # of a label, beside it, of a row; pixels


class DrawnSegment(NamedTuple):
    """A segment; places are percent of the row."""

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


class DrawnRow(NamedTuple):
    """A row of the batch; places are percent of the row."""

    number: int
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
    numbers = loader.batch_rows(step).tolist()
    found: list[DrawnRow] = []
    left, seq_len = _SEGMENTS, tracer.seq_len(numbers[0]) if numbers else 0
    for row in numbers[:_DRAWN_ROWS]:
        pieces = tracer.rows([row])
        left -= len(pieces)
        if found and left < 0:
            break
        loss, filled = loader.rows[row]["loss_mask"], sum(p.slots[1] - p.slots[0] for p in pieces)
        segments = [_segment(piece, seq_len, tracer.names) for piece in pieces]
        runs = ((a, b) for a, b in equal_runs(loss) if loss[a])
        with_loss = [(100 * a / len(loss), 100 * (b - a) / len(loss)) for a, b in runs]
        says = (
            f"row {row:,} of the run: {counted(len(pieces), 'segment')}, {int(loss.sum()):,} of "
            f"{seq_len:,} slots have loss, {seq_len - filled:,} are padding"
        )
        found.append(DrawnRow(len(found), segments, with_loss, says))
    return DrawnBatch(step, len(loader), seq_len, found, len(numbers), tracer.names)


def _segment(piece: Piece, slots: int, names: list[str]) -> DrawnSegment:
    (first, stop), (begin, end) = piece.tokens, piece.slots
    context = f", the first {piece.without_loss:,} without loss" if piece.without_loss else ""
    text, width = piece.excerpt, 100 * (end - begin) / slots
    label, room = f"{printable(piece.source)}:{piece.document}", width * _PERCENT - _MARGIN
    names_that_fit = (n for n in (label, str(piece.document)) if len(n) * _CHARACTER < room)
    return DrawnSegment(
        color=names.index(piece.source),
        label=label,
        short=next(names_that_fit, ""),
        left=100 * begin / slots,
        width=width,
        says=f"tokens {first:,} to {stop - 1:,} of {piece.length:,}, in slots {begin:,} to "
        f"{end - 1:,}{context}",
        origin=came_from(vars(piece.origin)),
        text=None if text is None else printable_lines(text[:_DRAWN_CHARACTERS]),
    )


_ARRAYS = ("inputs", "segment_ids", "loss_mask")
_PRINTED_ROWS = 4
_TOKENS, _CHARACTERS = 60, 160


class ShownBatch(str):
    """What `show_batch` returns: the counts of the batch, in a line."""

    __slots__ = ()
    __repr__ = str.__str__


def show_batch(batch: Any, decode: Callable[[Any], str] | None = None) -> ShownBatch:
    """Print a batch, or a row, in letters.

    Each segment has a letter, as in `jaxdata inspect --row`; of a batch the first four rows are
    printed. What is returned says the counts of the whole batch.

    Args:
        batch: as a loader gives it: a dict of arrays of numpy, jax or torch, with `inputs`,
            `segment_ids` and `loss_mask`, each (batch, seq_len) or (seq_len,).
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
    arrays = {name: np.atleast_2d(np.asarray(batch[name])) for name in _ARRAYS}
    ids, console = arrays["segment_ids"], Console()
    for number in range(min(len(ids), _PRINTED_ROWS)):
        row, said = {name: array[number] for name, array in arrays.items()}, list[Said]()
        for first, stop in equal_runs(row["segment_ids"]):
            if row["segment_ids"][first]:
                some = row["inputs"][first : min(stop, first + _TOKENS)]
                # A character may be cut in two.
                begins = None if decode is None else decode(some).rstrip("\ufffd")[:_CHARACTERS]
                said.append((counted(stop - first, "slot"), begins))
        name, width = f"row {number} of {len(ids)}", min(console.width, 100)
        for line in row_lines(row, name, said, width, explained=not number):
            console.print(line, soft_wrap=True)
    if len(ids) > _PRINTED_ROWS:
        console.print(f"and {len(ids) - _PRINTED_ROWS:,} more rows", highlight=False)
    slots = counted(int(np.count_nonzero(arrays["loss_mask"])), "slot")
    return ShownBatch(
        f"batch of {counted(ids.shape[0], 'row')} of {ids.shape[1]:,}: "
        f"{counted(int(ids.max(-1).sum()), 'segment')}, {slots} with loss, "
        f"{ids.size - np.count_nonzero(ids):,} padding"
    )
