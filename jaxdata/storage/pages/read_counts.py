"""What processes fetched from buckets: requests, bytes, hits, waits.

Each process counts in a file that it maps and names its parent in, so that a loader knows what its
workers fetched.
"""

import operator
import os
import secrets
import threading
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.storage.local import map_handle


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
        return type(self)(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*map(operator.sub, astuple(self), astuple(other)))

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
        counts: Any = (*map(int, whole), seconds)
        return cls(*counts)


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

    def of_family(self, folder: Path) -> ReadCounts:
        """What this process and its children have fetched, which count in files of a folder."""
        total = self.read()
        for path in folder.iterdir() if folder.is_dir() else ():
            with suppress(OSError, IndexError):  # of a process that begins or ends
                values = np.fromfile(path, np.float64)
                if int(values[ENTRIES]) == os.getpid():
                    total += ReadCounts.of(values)
        return total

    def share(self, folder: Path) -> Path:
        """Count in a file in this folder from now on, for the parent of this process to see."""
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        values = np.append(self._values, os.getppid())
        with path.open("x+b", buffering=0) as file:
            file.write(values.tobytes())
            mapped = map_handle(file.fileno(), values.nbytes, writable=True)
        self.move_to(np.frombuffer(mapped)[:ENTRIES])
        return path

    def move_to(self, values: NDArray[np.float64]) -> None:
        """Count in these entries from now on."""
        with self._lock:
            values[:] = self._values
            self._values = values


READS = Counter()
"""of this process"""
