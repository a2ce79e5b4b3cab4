"""Plans of blocks in memory: those used last, of all sources of the process, bounded in bytes."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from jaxdata.base.processes import forget_in_forks
from jaxdata.base.threads import TICK, check_stop, in_background

_LEAST_BYTES = 2**29
_SHARE = 1 / 8
"""of the machine's memory, or of the part of it that the process may use"""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""of a container: control groups, versions 2 and 1"""
Key = tuple[Any, ...]
T = TypeVar("T")


class PlanMemory:
    """Values with `nbytes`, by key; beyond `most` bytes, those used longest ago are dropped.

    A key begins with the token of its owner.

    Several threads may use it. In a forked copy of the process nothing is under way.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[Key, Any] = OrderedDict()
        self._gone: deque[str] = deque()
        self.forget()
        forget_in_forks(self)

    def forget(self) -> None:
        """Wait for no other thread: in a forked copy there is none."""
        self._lock = threading.Lock()
        self._bytes: int = sum(value.nbytes for value in self._held.values())
        self._making: dict[Key, threading.Event] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._bytes

    def has(self, key: Key) -> bool:
        """Whether a value is there."""
        return key in self._held

    def get(self, key: Key, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not there."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]  # type: ignore[no-any-return]
            made = self._making.get(key)
        if made is None:
            return self._keep(key, make())
        while not made.wait(TICK):
            check_stop()
        found: T | None = self._held.get(key)
        return self._keep(key, make()) if found is None else found

    def prepare(self, key: Key, make: Callable[[], Any]) -> None:
        """Make a value that is soon needed, in the background; one at a time."""
        with self._lock:
            if key in self._held or self._making:
                return
            made = self._making[key] = threading.Event()
        try:
            in_background(partial(self._prepare, key, make, made), name="jaxdata-plan")
        except RuntimeError:  # there are too many, or the process ends: it is made when needed
            self._done(key, made)

    def _prepare(self, key: Key, make: Callable[[], Any], made: threading.Event) -> None:
        try:
            self._keep(key, make())
        except Exception:  # noqa: S110 - whoever needs the value meets the error, too
            pass
        finally:
            self._done(key, made)

    def _done(self, key: Key, made: threading.Event) -> None:
        self._making.pop(key, None)
        made.set()

    def _keep(self, key: Key, value: T) -> T:
        with self._lock:
            gone = {self._gone.popleft() for _ in range(len(self._gone))}
            for old in [old for old in self._held if old[0] in gone] if gone else ():
                self._bytes -= self._held.pop(old).nbytes
            if key not in self._held:
                self._held[key] = value
                self._bytes += value.nbytes  # type: ignore[attr-defined]
            while self._bytes > self.most and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1].nbytes
        return value

    def owned_by(self, owner: Any) -> str:
        """A token that begins the keys of `owner`; what it had goes with the next that is kept."""
        token = token_hex(8)
        # The garbage collector calls it at any time, also in a thread that holds the lock.
        weakref.finalize(owner, self._gone.append, token).atexit = False
        return token


def _most() -> int:
    return max(_LEAST_BYTES, int(_memory() * _SHARE))


def _memory() -> int:
    """Bytes of memory that this process may use."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            found.append(int(Path(limit).read_text()))
    return min(found)


PLANS = PlanMemory(_most())
