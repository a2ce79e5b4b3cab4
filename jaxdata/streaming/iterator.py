"""The iterator of a stream of text: its batches, its state, its end."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Self

import grain
import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.arguments import refuse_copy
from jaxdata.feed.batches import OpenStream, PlacedStream, Placement, Stream
from jaxdata.feed.layouts import Layout
from jaxdata.feed.saved_state import STATE_VERSION, is_row, parse_state, refused, sealed, shown
from jaxdata.feed.state import check_run, fingerprint
from jaxdata.feed.streams.ahead_stream import AheadStream
from jaxdata.streaming.stream_recipe import TextRecipe
from jaxdata.streaming.text_blocks import open_batches
from jaxdata.streaming.text_source import InputCounts, Position

_FREE = "batch size, workers and prefetch"


class TextStream(grain.DatasetIterator[Any]):
    """A one-pass iterator of batches from text. Made by :func:`stream_text`."""

    __reduce__ = refuse_copy

    def __init__(
        self,
        recipe: TextRecipe,
        placement: Placement,
        layout: Layout,
        num_workers: int,
        prefetch: int,
        on_devices: bool,
    ) -> None:
        super().__init__()
        self._recipe, self._placement, self._layout = recipe, placement, layout
        self._num_workers, self._prefetch = num_workers, prefetch
        self._stream = OpenStream(on_devices)
        self._begin_at(recipe.source.start, 0)

    def _begin_at(self, position: Position, next_row: int) -> None:
        self._position, self._next_row = position, next_row
        self._counts, self._ended = InputCounts(), False

    @property
    def next_row(self) -> int:
        """Rows delivered here before the next one, over all passes."""
        return self._next_row

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """Bytes of each id as text, int32 (vocab_size,), for bits per byte."""
        return self._recipe.tokenizer.token_bytes

    def __repr__(self) -> str:
        return f"TextStream({self._recipe.source}, at row {self.next_row})"

    def __iter__(self) -> Self:
        if self._ended:
            raise InputError(
                "this stream is at its end: it has finished its `epochs` passes. To start again "
                "call reset()"
            )
        return self

    def __next__(self) -> Any:
        with self._stream.lock:
            self._assert_not_closed()
            try:
                if self._ended:
                    raise StopIteration
                return self._stream.next(self._open, self._advance)
            except StopIteration:
                self._assert_not_closed()
                if self._counts.left_out and not self._ended:
                    warnings.warn(f"stream_text: {self.report()}", stacklevel=2)
                self._ended = True
                raise

    def _advance(self, after: tuple[Position, int]) -> None:
        self._position, rows = after
        self._next_row += rows

    def _open(self) -> Stream:
        placement, layout = self._placement, self._layout
        made = open_batches(
            self._recipe, len(placement.rows), self._position, self._num_workers, self._counts
        )
        placed = PlacedStream(made, lambda _, batch: placement.place(layout(batch)))
        return AheadStream(placed, self._prefetch) if self._prefetch else placed

    def start_prefetch(self) -> None:
        """Begin to read before the first batch is asked for."""
        with self._stream.lock:
            self._stream.get(self._open)

    def report(self) -> str:
        """What was read so far, some of it ahead of the batches, and what was left out."""
        return str(self._counts)

    def get_state(self) -> dict[str, Any]:
        """Where the stream is, as plain JSON values: positions, no data. Each shard has its own."""
        run = self._recipe.identity
        with self._stream.lock:
            return sealed(
                {
                    "version": STATE_VERSION,
                    "fingerprint": fingerprint(run),
                    "next_row": self.next_row,
                    "position": asdict(self._position),
                    "run": dict(run),
                }
            )

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; raises StateMismatch naming every fact that differs.

        The buffer that holds the next row is read and tokenized again; what is before it is
        skipped, which for a compressed file means decompressing it, and for records without a
        state of their own counting them.
        """
        saved = parse_state(state)
        check_run(saved, self._recipe.identity, free=_FREE)
        position = _position(
            saved.position, self._recipe.source.start, len(self._recipe.source.files)
        )
        self._move(position, saved.next_row)

    def reset(self) -> None:
        """Go back to the first row."""
        self._move(self._recipe.source.start, 0)

    def _move(self, position: Position, next_row: int) -> None:
        with self._stream.lock:
            self._assert_not_closed()
            self._stream.close()
            self._begin_at(position, next_row)

    def close(self) -> None:
        """Stop threads and worker processes; the stream cannot be used afterwards."""
        super().close()
        self._stream.close()  # a thread that waits for a batch lets go of the lock
        with self._stream.lock:
            self._stream.close()


def _position(facts: Any, start: Position, files: int) -> Position:
    """The position in a state, with the fields and types of the first one."""
    expected, said = asdict(start), f"the loader state has position {shown(facts)}"
    if not isinstance(facts, dict) or facts.keys() != expected.keys():
        raise refused(f"{said}: expected {', '.join(expected)}")
    for name, fact in facts.items():
        number = isinstance(expected[name], int)
        if not (is_row(fact) if number else isinstance(fact, str)):
            wanted = "a whole number of at least 0" if number else "a string"
            raise refused(f"{said}: position.{name} is {shown(fact)}: expected {wanted}")
    if facts.get("file", 0) >= max(files, 1):
        raise refused(f"{said}: there are {files} files")
    return replace(start, **facts)
