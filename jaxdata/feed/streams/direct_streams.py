"""Streams in which nothing is made ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from jaxdata.feed.batches import BatchMaker, make_in_groups
from jaxdata.feed.schedule import Span
from jaxdata.feed.streams.open_stream import Stream
from jaxdata.rows.table import Batch


class DirectStream:
    """Batches made when they are requested."""

    def __init__(self, maker: BatchMaker, spans: Iterator[Span]) -> None:
        self._batches = make_in_groups(maker, lambda count: list(islice(spans, count)))

    def __next__(self) -> tuple[Span, Batch]:
        return next(self._batches)

    def close(self) -> None:
        """Do nothing: nothing is open."""


class PlacedStream:
    """Another stream, each batch passed through `place`, with nothing made ahead."""

    def __init__(self, stream: Stream, place: Callable[[Span, Any], Any]) -> None:
        self._stream, self._place = stream, place
        self.close = stream.close

    def __next__(self) -> tuple[Span, Any]:
        span, batch = next(self._stream)
        return span, self._place(span, batch)
