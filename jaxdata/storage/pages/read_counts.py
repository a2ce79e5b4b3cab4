"""What processes fetched from buckets: requests, bytes, hits, waits."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ReadCounts:
    """Counts of a process, or of several."""

    gets: int = 0
    """requests for parts of files, second tries included"""
    bytes: int = 0
    """fetched by them"""
    used_bytes: int = 0
    """of the ranges that rows were made of"""
    pages: int = 0
    """pages fetched"""
    hits: int = 0
    """ranges found in cached pages"""
    misses: int = 0
    """ranges fetched on their own"""
    damaged_pages: int = 0
    """cached pages that were not what was written, and were fetched again"""
    wait_seconds: float = 0.0
    """in which batches waited for ranges"""

    def __add__(self, other: Self) -> Self:
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return type(self)(*(a + b for a, b in pairs))

    def __sub__(self, other: Self) -> Self:
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return type(self)(*(a - b for a, b in pairs))

    def __str__(self) -> str:
        found = 100 * self.hits / max(self.hits + self.misses, 1)
        return (
            f"{self.gets:,} GETs, {self.bytes / 1e6:,.1f} MB for {self.used_bytes / 1e6:,.1f} MB "
            f"of rows, {found:.1f} % of ranges in cached pages, {self.wait_seconds:.1f} s waited"
            + f", {self.damaged_pages:,} damaged pages of the cache fetched again"
            * bool(self.damaged_pages)
        )

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Self:
        """The counts in the first entries of an array."""
        *whole, seconds = values[:ENTRIES].tolist()
        names = list(_PLACES)[:-1]
        return cls(**dict(zip(names, map(int, whole), strict=True)), wait_seconds=seconds)


_PLACES = {field.name: number for number, field in enumerate(fields(ReadCounts))}
ENTRIES = len(_PLACES)


class Counter:
    """Counts while they grow; safe between threads.

    >>> counter = Counter()
    >>> counter.add(gets=2, bytes=100)
    >>> counter.read().gets
    2
    """

    def __init__(self) -> None:
        self._values, self._lock = np.zeros(ENTRIES), threading.Lock()

    def add(self, **more: float) -> None:
        """Add to some of the counts."""
        with self._lock:
            for name, value in more.items():
                self._values[_PLACES[name]] += value

    def read(self) -> ReadCounts:
        """The counts so far."""
        return ReadCounts.of(self._values)

    def move_to(self, values: NDArray[np.float64] | None) -> None:
        """Count in these entries from now on, which others may see; None for none."""
        with self._lock:
            moved = np.zeros(ENTRIES) if values is None else values
            moved[:] = self._values
            self._values = moved


READS = Counter()
"""of this process"""
