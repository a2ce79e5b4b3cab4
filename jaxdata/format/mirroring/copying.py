"""Copying a dataset to another place, several files at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from jaxdata.background import TICK, Threads, check_stop
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.history import HISTORY
from jaxdata.format.lease import leased
from jaxdata.format.manifest import MANIFEST, read_manifest
from jaxdata.format.mirroring.mirror_journal import MirrorJournal, check_target
from jaxdata.format.mirroring.mirror_parts import Part, parts
from jaxdata.format.storage import Store, open_store
from jaxdata.progress import Advance

_THREADS = 8
_MOST_BYTES = 2**30
"""of files that are copied at a time: stores of objects hold each in memory"""


@dataclass(frozen=True)
class Mirrored:
    """What a mirror has, and what of it was copied."""

    url: str
    copied: int
    """parts: files, and columns of an index"""
    copied_bytes: int
    kept: int
    """parts that were there before"""
    shards: int
    documents: int
    seconds: float


def mirror(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    threads: int = _THREADS,
    progress: Advance = lambda _done, _total: None,
) -> Mirrored:
    """Copy a converted dataset, or what a copy of it lacks.

    Each file is compared with its checksum while it is copied, and the manifest is written last:
    until then the copy cannot be opened. If this is interrupted, the same call goes on. Of a copy
    that is there, every file is read, and what is missing or differs is copied.

    Args:
        source: a folder or URL.
        target: a folder or URL: empty, or a mirror of this dataset.
        threads: files at a time.
        progress: called with (bytes of shards that are there, bytes of all).

    Raises:
        InputError: the target holds something else.
        DatasetError: the source is damaged, or the target cannot be written.
    """
    began = time.perf_counter()
    source_store, target_store = open_store(source), open_store(target)
    _refuse_itself(source_store, target_store)
    manifest = read_manifest(source_store)
    content = source_store.read(MANIFEST) or b""
    with leased(target_store, [""]) as lease:
        at = lease.fenced(target_store)
        check_target(at, manifest, source_store.url)
        journal = MirrorJournal(at)
        wanted = list(parts(source_store, manifest))
        with _writing(at):
            journal.begin(content)
            counts = _Copying(source_store, at, journal, threads, progress).run(wanted)
            if source_store.read(MANIFEST) != content:
                raise DatasetError(
                    f"{source_store.url} was changed meanwhile: the same command copies what is new"
                )
            at.write(MANIFEST, content)
            if (history := source_store.read(HISTORY)) is not None:
                at.write(HISTORY, history)
            journal.end()
    shards = [shard for entry in manifest.sources.values() for shard in entry.all_shards]
    documents = sum(entry.documents for entry in manifest.sources.values())
    seconds = time.perf_counter() - began
    return Mirrored(target_store.url, *counts, len(shards), documents, seconds)


class _Copying:
    """Threads that copy parts, as many as may be in memory."""

    def __init__(
        self,
        source: Store,
        target: Store,
        journal: MirrorJournal,
        threads: int,
        progress: Advance,
    ) -> None:
        self._source, self._target, self._journal = source, target, journal
        self._threads, self._progress = threads, progress
        self._there = set(target.list())
        self._room, self._free = threading.Condition(), _MOST_BYTES

    def run(self, wanted: Sequence[Part]) -> tuple[int, int, int]:
        """The number of parts that were copied, their bytes, and parts that were there."""
        total, done = sum(part.size for part in wanted), 0
        copied = size = kept = 0
        for part, found in self._all(wanted):
            done += part.size
            copied, kept = copied + (found is not None), kept + (found is None)
            size += found or 0
            self._journal.add(part)
            self._progress(done, total)
        self._journal.flush()
        return copied, size, kept

    def _all(self, wanted: Sequence[Part]) -> Iterator[tuple[Part, int | None]]:
        """Each part when it is there, with the bytes that were copied; None if it was there."""
        with Threads(self._threads) as threads:
            yield from threads.ended((part, partial(self._bring, part)) for part in wanted)

    def _bring(self, part: Part) -> int | None:
        if self._is_there(part):
            return None
        with self._memory(part.size):
            return part.copy(self._source, self._target)

    def _is_there(self, part: Part) -> bool:
        if part.name not in self._there and f"{part.name}/zarr.json" not in self._there:
            return False
        return self._journal.has(part) or not part.damage(self._target)

    @contextmanager
    def _memory(self, size: int) -> Iterator[None]:
        """Wait until there is room for so many bytes."""
        size = min(size, _MOST_BYTES)
        with self._room:
            while not self._room.wait_for(lambda: self._free >= size, TICK):
                check_stop()
            self._free -= size
        try:
            yield
        finally:
            with self._room:
                self._free += size
                self._room.notify_all()


@contextmanager
def _writing(target: Store) -> Iterator[None]:
    """Say what to do if the target cannot be written."""
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"{target.url} cannot be written: {error.strerror or error}. What was copied is kept: "
            "fix the cause, and the same command goes on"
        ) from error


def _refuse_itself(source: Store, target: Store) -> None:
    inside = _place(target).startswith(f"{_place(source)}/")
    if _place(source) == _place(target) or inside:
        raise InputError(f"{target.url} is {source.url} itself, or lies in it: name another folder")


def _place(store: Store) -> str:
    return os.path.realpath(store.url) if store.local else store.url.rstrip("/")
