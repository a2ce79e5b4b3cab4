"""The iterator of a stream of text: its batches, its state, its end."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from typing import Any, Self

import grain
import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.batches import Placement
from jaxdata.feed.layouts import Layout
from jaxdata.feed.state import STATE_VERSION, check_state, fingerprint
from jaxdata.feed.streams import AheadStream, PlacedStream, Stream
from jaxdata.make.stream.batches import Cursor
from jaxdata.make.stream.documents import Tally
from jaxdata.make.stream.recipe import TextRecipe

__all__ = ["TextStream"]

_FREE = "batch size, workers and prefetch"


class TextStream(grain.DatasetIterator[Any]):
    """A one-pass iterator of batches from text. Made by :func:`stream_text`."""

    def __init__(
        self,
        recipe: TextRecipe,
        placement: Placement,
        layout: Layout,
        num_workers: int,
        prefetch: int,
    ) -> None:
        super().__init__()
        self._recipe, self._placement, self._layout = recipe, placement, layout
        self._num_workers, self._prefetch = num_workers, prefetch
        self._cursor, self._tally = Cursor(), Tally()
        self._stream: Stream | None = None
        self._finalizer: Any = None
        self._ended = False

    @property
    def next_row(self) -> int:
        """Rows delivered here before the next one, over all passes."""
        return self._cursor.next_row

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """Raw bytes of each id, int32 (vocab_size,): what bits per byte are counted with."""
        return self._recipe.tokenizer.token_bytes

    def __str__(self) -> str:
        return f"TextStream({len(self._recipe.files)} files, at row {self.next_row})"

    def __iter__(self) -> Self:
        if self._ended:
            raise InputError(
                "this stream is at its end: it passes over its files as often as it was told. To "
                "start again call reset()"
            )
        return self

    def __next__(self) -> Any:
        self._assert_not_closed()
        try:
            behind: Any
            behind, batch = next(self._started())
        except StopIteration:
            if self._tally.left_out and not self._ended:
                warnings.warn(f"stream_text: {self.report()}", stacklevel=2)
            self._ended = True
            raise
        self._cursor = behind
        return batch

    def _started(self) -> Stream:
        if self._stream is None:
            self._stream = self._opened()
            self._finalizer = weakref.finalize(self, self._stream.close)
        return self._stream

    def _opened(self) -> Stream:
        placement, layout = self._placement, self._layout
        made = self._recipe.batches(
            len(placement.rows), self._cursor, self._num_workers, self._tally
        )
        placed = PlacedStream(made, lambda _, batch: placement.place(layout(batch)))
        return AheadStream(placed, self._prefetch) if self._prefetch else placed

    def start_prefetch(self) -> None:
        """Begin to read before the first batch is asked for."""
        self._started()

    def report(self) -> str:
        """What was read so far, some of it ahead of the batches, and what was left out."""
        tally = self._tally
        said = f"{tally.documents:,} documents, {tally.tokens:,} tokens"
        if tally.left_out:
            reasons = [f"{count:,} {reason}" for reason, count in dict(tally.left_out).items()]
            said += f"; left out: {', '.join(reasons)}"
        return said + (f"; the first is {tally.first_bad}" if tally.first_bad else "")

    def get_state(self) -> dict[str, Any]:
        """Where the stream is, as plain JSON values: positions, no data. Each shard has its own."""
        run = self._recipe.identity
        return {
            "version": STATE_VERSION,
            "fingerprint": fingerprint(run),
            "next_row": self.next_row,
            "position": self._cursor.facts(),
            "run": dict(run),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; raises StateMismatch naming every fact that differs.

        The buffer that the next row is in is read and tokenised again; the file before it is
        passed over, which for a compressed one means to decompress it.
        """
        check_state(state, self._recipe.identity, free=_FREE)
        self._move(Cursor.of(state.get("position"), state["next_row"]))

    def reset(self) -> None:
        """Go back to the first row."""
        self._move(Cursor())

    def _move(self, cursor: Cursor) -> None:
        self._assert_not_closed()
        self._drop_stream()
        self._cursor, self._tally, self._ended = cursor, Tally(), False

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._finalizer()
            self._stream = None

    def close(self) -> None:
        """Stop threads and worker processes; the stream cannot be used afterwards."""
        if not self._closed:
            self._drop_stream()
        super().close()
