"""Batches of a stream of text: rows of one block after the other, as many as a batch takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np

from jaxdata.errors import StateMismatch
from jaxdata.feed.streams import Stream
from jaxdata.make.stream.blocks import Block, BlockStart
from jaxdata.make.stream.documents import Place
from jaxdata.rows.assembly import assemble
from jaxdata.rows.serial import SerialRows
from jaxdata.rows.table import Batch

__all__ = ["BatchStream", "Cursor"]


class Cursor(NamedTuple):
    """Where a stream is: positions only, as its state has them."""

    start: BlockStart = BlockStart()
    """The block of the next row."""
    row: int = 0
    """Number of that row in the block."""
    next_row: int = 0
    """Rows delivered before it."""

    def facts(self) -> dict[str, int]:
        """All of it as plain numbers by name."""
        epoch, block, place = self.start
        return {"epoch": epoch, "block": block, **place._asdict(), "row": self.row}

    @classmethod
    def of(cls, facts: Any, next_row: int) -> Self:
        """Read what `facts` gave; raises StateMismatch where it is not that."""
        names = cls().facts().keys()
        if not isinstance(facts, dict) or facts.keys() != names:
            raise StateMismatch(f"the state's position is {facts!r}: expected {', '.join(names)}")
        place = Place(*(int(facts[name]) for name in Place._fields))
        start = BlockStart(int(facts["epoch"]), int(facts["block"]), place)
        return cls(start, int(facts["row"]), next_row)


class BatchStream:
    """Batches from a cursor on, each with the cursor behind it (see `Stream`).

    Args:
        blocks: the blocks, beginning with that of the cursor.
        size: rows of a batch here; the last one is completed with padding.
        cursor: where to begin.
    """

    def __init__(self, blocks: Stream, size: int, cursor: Cursor) -> None:
        self._blocks, self._size, self._cursor = blocks, size, cursor
        self._held: deque[Block] = deque()
        self._batches = self._made()
        self.close = blocks.close

    def __next__(self) -> tuple[Any, Batch]:
        return next(self._batches)

    def _made(self) -> Iterator[tuple[Cursor, Batch]]:
        while rows := self._fill():
            table = SerialRows([block.rows for block in self._held])
            chosen = self._cursor.row + np.arange(rows)
            batch = next(assemble(table, [chosen], self._size))
            self._pass(rows)
            yield self._cursor, batch

    def _fill(self) -> int:
        """Hold blocks enough for a batch; returns its rows, fewer than `size` at the end."""
        there = sum(len(block.rows) for block in self._held) - self._cursor.row
        while there < self._size:
            try:
                _, block = next(self._blocks)
            except StopIteration:
                break
            if len(block.rows):
                self._held.append(block)
                there += len(block.rows)
        return max(0, min(there, self._size))

    def _pass(self, rows: int) -> None:
        """Move the cursor behind so many rows; let go of blocks that are done."""
        start, row = self._cursor.start, self._cursor.row + rows
        while self._held and row >= len(self._held[0].rows):
            row -= len(self._held[0].rows)
            start = self._held.popleft().after
        if self._held:
            start = self._held[0].start
        self._cursor = Cursor(start, row, self._cursor.next_row + rows)
