"""The pages that a process needs: hard links in a folder of its own.

A page with another link is needed by a run under way. The folder is that of a process as long as
this has its lock; whoever finds the lock free removes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxdata.storage.maps import map_handle
from jaxdata.storage.pages.own_folder import RUNS, is_run, remove_made
from jaxdata.storage.pages.read_counts import ENTRIES, READS, ReadCounts

_COUNTS = "counts"


class RunFolder:
    """A folder of links, gone with the process, or soon after if that is killed."""

    def __init__(self, runs: Path) -> None:
        sweep(runs)
        self._lock, self.path = _locked_name(runs)
        self.path.mkdir()
        READS.move_to(_shared_counts(self.path))
        self.close = weakref.finalize(self, _remove, self.path, self._lock, os.getpid())

    def pin(self, page: Path, name: str) -> Path | None:
        """A link to a page; None if that is not there."""
        link = self.path / name
        with suppress(FileExistsError):
            try:
                os.link(page, link)
            except FileNotFoundError:
                return None
        return link

    def unpin(self, name: str) -> None:
        """Remove the link."""
        with suppress(FileNotFoundError):
            (self.path / name).unlink()


def counts_of_family(runs: Path) -> ReadCounts:
    """What this process and its children have fetched."""
    total = READS.read()
    for path in runs.glob(f"*/{_COUNTS}"):
        with suppress(OSError, ValueError, IndexError):  # of a process that begins or ends
            values = np.fromfile(path, np.float64)
            if int(values[ENTRIES]) == os.getpid():
                total += ReadCounts.of(values)
    return total


def _shared_counts(folder: Path) -> NDArray[np.float64]:
    """Entries for the counts of this process, in a file, with the number of its parent."""
    values = np.array([0.0] * ENTRIES + [os.getppid()])
    with (folder / _COUNTS).open("w+b") as file:
        file.write(values.tobytes())
        file.flush()
        return np.frombuffer(map_handle(file.fileno(), values.nbytes, writable=True))[:ENTRIES]


def under_way(runs: Path) -> Iterator[Path]:
    """The folders of processes that are there."""
    for name in _names(runs):
        with suppress(OSError), _open_lock(runs / name, os.O_RDONLY) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield runs / name


def sweep(runs: Path) -> None:
    """Remove the folders of processes that are gone."""
    for name in _names(runs):
        with suppress(OSError):  # somebody has the lock
            try:
                with _open_lock(runs / name, os.O_RDWR) as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove_folder(runs / name)
            except FileNotFoundError:  # whoever has a folder had its lock before: it was left
                _remove_folder(runs / name)


def _names(runs: Path) -> list[str]:
    """Of the folders that processes made, or have locks for."""
    with suppress(FileNotFoundError):
        names = {each.name.removesuffix(".lock") for each in runs.iterdir()}
        return sorted(filter(is_run, names))
    return []


@contextmanager
def _open_lock(folder: Path, access: int) -> Iterator[int]:
    lock = os.open(f"{folder}.lock", access | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield lock
    finally:
        os.close(lock)


def _remove_folder(folder: Path) -> None:
    remove_made(folder, f"{RUNS}/{folder.name}/")
    Path(f"{folder}.lock").unlink(missing_ok=True)


def _locked_name(runs: Path) -> tuple[int, Path]:
    """A lock that this process has, and the folder that it stands for."""
    while True:
        path = runs / f"{os.getpid()}-{secrets.token_hex(4)}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(lock).st_ino:  # else it was swept in between
                return lock, path.with_suffix("")
        os.close(lock)


def _remove(folder: Path, lock: int, process: int) -> None:
    if os.getpid() != process:  # a forked copy
        return
    READS.move_to(np.zeros(ENTRIES))  # else their file stays mapped
    _remove_folder(folder)
    os.close(lock)
