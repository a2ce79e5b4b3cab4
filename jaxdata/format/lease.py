"""Leases: one process at a time writes below a folder of a store, on whichever machine it runs.

A lease is the file `.lease` in the folder, which says who holds it and is written again every few
seconds; each change of it is a compare-and-swap. A process that does not renew its lease loses it
only when another takes it over: at once where the holder is known to be dead, else after watching
the lease stay the same for :data:`SECONDS`. No clock of another machine is trusted with that.

What a holder writes goes through a fence (`Store.fenced`): a process that was stopped while another
took over changes nothing when it goes on.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Event

from jaxdata.background import Stopped, in_background, within
from jaxdata.errors import DatasetError
from jaxdata.format.lease_holder import Holder
from jaxdata.format.storage import Store

SECONDS = 60.0
"""For so long a lease is valid after it was renewed."""
_RENEWALS = 6  # in that time
_LEAVING_SECONDS = 2.0
"""how long giving a lease back may take after an error or Ctrl-C"""
LEASE_FILE = ".lease"
"""Its name in the folder that it is for."""
_log = logging.getLogger("jaxdata")


@dataclass(frozen=True)
class Lease:
    """The right to write below some folders of a store, as it is passed to workers."""

    folders: tuple[str, ...]
    token: str

    def fenced(self, store: Store) -> Store:
        """The store, which raises DatasetError instead of changing after the lease is lost."""
        return store.fenced(lambda: self.check(store))

    def check(self, store: Store, cause: Exception | None = None) -> None:
        """Raise DatasetError if another process has taken over."""
        for folder in self.folders:
            holder = Holder.decode(store.read(_name(folder)))
            if holder is None or holder.token != self.token:
                raise _lost(_where(store, folder), holder) from cause


@contextmanager
def leased(store: Store, folders: Iterable[str], *, wait: bool = False) -> Iterator[Lease]:
    """Hold the lease of each folder ("" is the root) while the block runs.

    Args:
        store: where the folders are; they need not exist.
        folders: their names.
        wait: wait until whoever holds one is done.

    Raises:
        DatasetError: another process holds one; the message says which process.
    """
    mine = Holder.this_process(secrets.token_hex(8))
    lease = Lease(tuple(sorted(set(folders))), mine.token)
    with ExitStack() as held:
        for folder in lease.folders:
            _take(store, folder, mine, wait)
            held.push(partial(_release, store, folder, mine))
        clear(store, lease.folders)
        done = Event()
        renew = partial(_renew, store, lease, mine, done)
        renewing = in_background(renew, name="jaxdata-lease", stopped=done)
        try:
            yield lease
            clear(store, ())  # of workers that were ended
        except Exception as error:
            with suppress(Stopped), within(_LEAVING_SECONDS):
                lease.check(store, error)  # another process at work may be the cause
            raise
        finally:
            done.set()
            renewing.join()


def clear(store: Store, folders: Iterable[str]) -> None:
    """Remove what killed processes were writing, and their leases of folders and of the root."""

    def change(content: bytes | None) -> bytes | None:
        holder = Holder.decode(content)
        if holder is None or not holder.is_dead():
            raise _Held(content or b"")
        return None

    with suppress(OSError, DatasetError):  # the store may only be read
        store.sweep()
        for folder in {"", *folders}:
            with suppress(_Held):
                if store.exists(_name(folder)):
                    store.update(_name(folder), change)


class _Held(Exception):
    """Another process holds the lease."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content


def _take(store: Store, folder: str, mine: Holder, wait: bool) -> None:
    """Take a lease that is free, or whose holder is gone."""
    seen: bytes | None = None
    since, told = 0.0, False

    def change(content: bytes | None) -> bytes:
        holder = Holder.decode(content)
        same = content == seen and time.monotonic() - since >= SECONDS
        # It is there already when the answer to writing it was lost, and the write was tried again.
        if content is None or mine.wrote(content) or same or (holder and holder.is_dead()):
            return mine.renewed()
        raise _Held(content)

    while True:
        try:
            store.update(_name(folder), change)
        except _Held as held:
            holder = Holder.decode(held.content)
            renewed = seen not in (None, held.content)
            alive = renewed or (holder and 0 <= holder.age() <= SECONDS)
            if alive and not wait:
                raise _held_by(_where(store, folder), holder) from None
            if held.content != seen:
                seen, since = held.content, time.monotonic()
            if not told:
                told = True
                _log.warning("%s", _waiting(_where(store, folder), holder))
            time.sleep(min(1.0, SECONDS / 20))
        else:
            return


def _renew(store: Store, lease: Lease, mine: Holder, done: Event) -> None:
    """Keep the leases until the work is done, or another process has one."""

    def change(content: bytes | None) -> bytes:
        if not mine.wrote(content):
            raise _Held(content or b"")
        return mine.renewed()

    while not done.wait(SECONDS / _RENEWALS):
        for folder in lease.folders:
            try:
                store.update(_name(folder), change)
            except _Held:
                return  # the fence will say so
            except Exception as error:  # a full disk, a network that is down: try again
                _log.debug("the lease of %s was not renewed: %s", _where(store, folder), error)


def _release(store: Store, folder: str, mine: Holder, error: object, *_: object) -> None:
    def change(content: bytes | None) -> bytes | None:
        if not mine.wrote(content):
            raise _Held(content or b"")
        return None

    try:
        with within(_LEAVING_SECONDS if error else SECONDS):
            store.update(_name(folder), change)
    except _Held:
        pass
    except Exception as error:  # what failed before matters more; it ends with this process
        _log.debug("the lease of %s was not given back: %s", _where(store, folder), error)


def _name(folder: str) -> str:
    return f"{folder}/{LEASE_FILE}" if folder else LEASE_FILE


def _where(store: Store, folder: str) -> str:
    return f"{store.url}/{folder}" if folder else store.url


def _held_by(where: str, holder: Holder | None) -> DatasetError:
    return DatasetError(
        f"{where} is being written by another process: {holder or 'one of another version'}. Wait "
        "until it ends or stop it, then run the same command again. If it is gone with its "
        f"machine, its lease ends within {2 * SECONDS:.0f} s"
    )


def _waiting(where: str, holder: Holder | None) -> str:
    return (
        f"{where} is held by another process: {holder or 'one of another version'}. Waiting; it is "
        f"taken over if that shows no sign of life for {SECONDS:.0f} s"
    )


def _lost(where: str, holder: Holder | None) -> DatasetError:
    who = holder or "one that has ended since, unless its file .lease was deleted"
    return DatasetError(
        f"{where} was taken over by another process: {who}. This one had not renewed its lease for "
        f"{SECONDS:.0f} s: was it stopped, or its machine asleep? It has changed nothing since; "
        "when the other has ended, the same command does what is left"
    )
