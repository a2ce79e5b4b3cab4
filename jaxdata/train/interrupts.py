"""Ctrl-C in a run: a step that is under way is finished first, so that it can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class Interrupts:
    """Delays Ctrl-C where state changes; the second one is never delayed.

    It acts in the main thread only, where Python handles signals.

    >>> with Interrupts() as interrupts, interrupts.delayed():
    ...     pass
    """

    def __init__(self) -> None:
        self._delays = self._asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._delays or self._asked:
            raise KeyboardInterrupt
        self._asked = True

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Within, the first Ctrl-C waits for the end of the block; raises KeyboardInterrupt."""
        self._delays = True
        try:
            yield
        finally:
            self._delays = False
        if self._asked:
            raise KeyboardInterrupt
