"""The stream of batches that an iterator reads, and how it ends."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from jaxdata.errors import InputError
from jaxdata.feed.schedule import Span
from jaxdata.lifeline import forget_in_forks


class Stream(Protocol):
    """An iterator of batches, each with its span, that can be closed."""

    def __next__(self) -> tuple[Span, Any]: ...

    def close(self) -> None:
        """Stop, and end every thread and process; calling it again does nothing."""
        ...


class OpenStream:
    """The stream that an iterator reads: opened when it is needed, read by a thread at a time.

    It closes with the iterator. A forked copy of the process has none, and opens its own: threads
    and worker processes stay with the original.

    Args:
        on_devices: whether batches are placed on devices of JAX, which a forked copy cannot use.
    """

    def __init__(self, on_devices: bool = False) -> None:
        self._on_devices, self._forked = on_devices, False
        self.lock = threading.RLock()
        """held to read or move; again by a signal handler, which may take the state meanwhile"""
        self._stream: Stream | None = None
        self._finalizer: Any = None
        forget_in_forks(self)

    def get(self, open_stream: Callable[[], Stream]) -> Stream:
        """The stream, opened if there is none."""
        if self._on_devices and self._forked:
            raise InputError(
                "JAX cannot be used in a forked process, and this iterator places batches on its "
                "devices: start the process with 'spawn', or use shard=(i, n) for numpy batches"
            )
        if self._stream is None:
            self._stream = open_stream()
            # The stream does not refer to this object, so it closes when the iterator is gone.
            self._finalizer = weakref.finalize(self, self._stream.close)
        return self._stream

    def next(self, open_stream: Callable[[], Stream], advance: Callable[[Any], None]) -> Any:
        """The next batch, after `advance(span)`; the end, or an interruption, closes the stream."""
        try:
            span, batch = next(self.get(open_stream))
            advance(span)
        except BaseException:  # Ctrl-C too, which may come while a batch is half received
            self.close()
            raise
        return batch

    def close(self) -> None:
        """Close the stream, whoever has the lock: a thread that waits for a batch gets none."""
        if (finalizer := self._finalizer) is not None:
            finalizer()
            self._stream = self._finalizer = None

    def forget(self) -> None:
        """In a forked copy: leave the stream to the original."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self.lock, self._forked = threading.RLock(), True
        self._stream = self._finalizer = None
