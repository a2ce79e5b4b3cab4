"""One process at a time writes below a folder of a store, and goes on where it was killed.

A lease is held on whichever machine; a holder that is known to be dead loses it. What a killed job
resumes from is in `work/`: it records what it makes first; each unit then commits what it wrote by
a receipt, so that only units without one are done again. When all is published, `work/` goes.
`history.jsonl` tells how a dataset was made: its conversions, their commands without secrets.
"""

import json
import os
import re
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from threading import Event
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jaxdata.base.errors import DatasetError, InputError, log
from jaxdata.base.threads import Stopped, in_background, within
from jaxdata.base.version import VERSION
from jaxdata.dataset.manifest import checked_bytes, with_checksum
from jaxdata.storage import Store

SECONDS = 60.0
"""For so long a lease is valid after it was renewed."""
_RENEWALS = 6  # in that time
_LEAVING_SECONDS = 2.0
"""how long each thing that is done on leaving may take: a Ctrl-C is held up by no more"""
_MOST_CHARACTERS = 400
LEASE_FILE = ".lease"
"""Its name in the folder that it is for."""
_Text = Annotated[str, Field(max_length=_MOST_CHARACTERS)]


class Holder(BaseModel):
    """The content of a lease.

    Attributes:
        token: tells this lease from every other.
        machine: identifies the space of process ids: a boot of a machine, a container.
        pid: the process.
        started: when it started, in ticks of that machine: process ids are used again.
        last_renewed: unix time.
        called: for people: the process, where, since when, and what it runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    token: _Text
    machine: _Text
    pid: int = Field(gt=0, lt=2**31)
    started: int | None
    last_renewed: float
    called: _Text

    @classmethod
    def this_process(cls) -> "Holder":
        """Describe this process, now."""
        pid, now = os.getpid(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        called = f"process {pid} on {socket.gethostname()}, since {now}"
        return cls(
            token=secrets.token_hex(8),
            machine=_machine(),
            pid=pid,
            started=_started(pid),
            last_renewed=time.time(),
            called=f"{called} ({redacted(shlex.join(sys.argv))})"[:_MOST_CHARACTERS],
        )

    @classmethod
    def decode(cls, content: bytes | None) -> "Holder | None":
        """Read a lease; None if there is none, or not one as this version writes it."""
        try:
            return cls.model_validate_json(content or b"")
        except ValidationError:
            return None

    def renewed(self) -> bytes:
        """The content of the lease, renewed now."""
        return self.model_copy(update={"last_renewed": time.time()}).model_dump_json().encode()

    def is_dead(self) -> bool:
        """Tell whether the process is known to be gone, which only its own machine knows."""
        if self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # somebody else's: it lives
            pass
        return _started(self.pid) not in (None, self.started)


@cache
def _machine() -> str:
    """Where a process id means the same process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux
        return socket.gethostname()


def _started(pid: int) -> int | None:
    """When a process started, in ticks; -1 if it is dead and not waited for, None if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before that may hold anything
    return -1 if state in "ZX" else int(fields[18])


def _is_of_dead(content: bytes | None) -> bool:
    holder = Holder.decode(content)
    return holder is not None and holder.is_dead()


class _Held(Exception):
    """Another process holds the lease."""


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
            content = store.read(_name(folder))
            if not self._is(content):
                holder = Holder.decode(content)
                ended = "one that has ended since, unless its file .lease was deleted"
                raise DatasetError(
                    f"{_where(store, folder)} was taken over by another process: "
                    f"{holder.called if holder else ended}. This one had not renewed its lease for "
                    f"{SECONDS:.0f} s: was it stopped, or its machine asleep? It has changed "
                    "nothing since; when the other has ended, the same command does what is left"
                ) from cause

    def _is(self, content: bytes | None) -> bool:
        holder = Holder.decode(content)
        return holder is not None and holder.token == self.token

    def take(self, store: Store, folder: str, mine: Holder, wait: bool) -> None:
        """Take a folder's lease: free, of a dead holder, or unchanged for as long as one lasts."""
        seen: bytes | None = None
        since, where = 0.0, _where(store, folder)

        def free(content: bytes | None) -> bool:
            # It is mine already when the answer to writing it was lost, and the write tried again.
            unchanged = content == seen and time.monotonic() - since >= SECONDS
            return content is None or self._is(content) or unchanged or _is_of_dead(content)

        while (held := _replace(store, folder, free, mine.renewed)) is not None:
            holder = Holder.decode(held)
            who = holder.called if holder else "one of another version"
            just_now = holder is not None and 0 <= time.time() - holder.last_renewed <= SECONDS
            if not wait and (just_now or seen not in (None, held)):
                raise DatasetError(
                    f"{where} is being written by another process: {who}. Wait until it ends or "
                    "stop it, then run the same command again. If it is gone with its machine, its "
                    f"lease ends within {2 * SECONDS:.0f} s"
                )
            if seen is None:
                log.warning(
                    f"{where} is held by another process: {who}. Waiting; it is taken over if that "
                    f"shows no sign of life for {SECONDS:.0f} s"
                )
            if held != seen:
                seen, since = held, time.monotonic()
            time.sleep(min(1.0, SECONDS / 20))

    def renew(self, store: Store, mine: Holder, done: Event) -> None:
        """Keep the leases until `done`, or another process has one: the fence will say so."""
        while not done.wait(SECONDS / _RENEWALS):
            for folder in self.folders:
                try:
                    if _replace(store, folder, self._is, mine.renewed) is not None:
                        return
                except Exception as error:  # a full disk, a network that is down: try again
                    log.debug("the lease of %s was not renewed: %s", folder, error)

    def give_back(self, store: Store, folder: str) -> None:
        with suppress(OSError, DatasetError, Stopped), within(_LEAVING_SECONDS):
            _replace(store, folder, self._is, lambda: None)  # else it ends with this process


def _replace(
    store: Store, folder: str, may: Callable[[bytes | None], bool], new: Callable[[], bytes | None]
) -> bytes | None:
    """Replace a lease, if it `may` be; returns the one that stays instead."""
    stays: bytes | None = None

    def change(content: bytes | None) -> bytes | None:
        nonlocal stays
        stays = None if may(content) else content or b""
        if stays is not None:
            raise _Held
        return new()

    with suppress(_Held):
        store.update(_name(folder), change)
    return stays


def _name(folder: str, file: str = LEASE_FILE) -> str:
    return f"{folder}/{file}".lstrip("/")


def _where(store: Store, folder: str) -> str:
    return f"{store.url}/{folder}".rstrip("/")


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
    mine, done = Holder.this_process(), Event()
    lease = Lease(tuple(sorted({*folders})), mine.token)
    with ExitStack() as left:
        for folder in lease.folders:
            lease.take(store, folder, mine, wait)
            left.callback(lease.give_back, store, folder)
        clear(store, lease.folders)
        renew = partial(lease.renew, store, mine, done)
        renewing = in_background(renew, name="jaxdata-lease", stopped=done)
        left.callback(renewing.join)
        left.callback(done.set)
        left.callback(clear, store, ())  # what workers were writing that were ended
        try:
            yield lease
        except Exception as error:
            with suppress(Stopped), within(_LEAVING_SECONDS):
                lease.check(store, error)  # another process at work may be the cause
            raise


def clear(store: Store, folders: Iterable[str]) -> None:
    """Remove what killed processes were writing, and their leases of folders and of the root."""
    with suppress(OSError, DatasetError):  # the store may only be read
        store.sweep()
        for folder in {"", *folders}:
            _replace(store, folder, _is_of_dead, lambda: None)


_PARAMETERS = "work/parameters.json"
_Receipt = TypeVar("_Receipt")


@dataclass(frozen=True)
class UnfinishedJob:
    """The `work/` folder of a job."""

    store: Store
    folder: str = ""
    """the folder in `store` that `work/` is in"""
    kind: str = "an unfinished conversion"
    """what messages call it"""
    parameters: str = _PARAMETERS
    """the file that records what is made"""

    def begun(self) -> bytes | None:
        """What is being made, as `begin` recorded it; None if nothing is."""
        return self.store.read(_name(self.folder, self.parameters))

    def resumes(self, changes: Callable[[bytes], Sequence[str]]) -> bool:
        """Whether units are done already; raises InputError if their job had different settings.

        `changes(recorded)` says what differs from this job, a line each; it raises ValueError if it
        cannot read the record.
        """
        begun = self.begun()
        if begun is None or not self.done():
            return False
        try:
            found = changes(begun)
        except ValueError:
            found = ["it was begun by another version of jaxdata"]
        if found:
            raise InputError(
                f"{_where(self.store, self.folder)} contains {self.kind} with different settings: "
                f"{'; '.join(found)}. Use the same settings to finish it, or delete that folder to "
                "start over"
            )
        return True

    def begin(self, parameters: bytes) -> None:
        """Record what is being made; forgets all receipts."""
        self.end()
        self.store.write(_name(self.folder, self.parameters), parameters)

    def files(self) -> list[str]:
        """Names of the files in `work/`."""
        start = _name(self.folder, "work/")
        return [name.removeprefix(start) for name in self.store.list(start)]

    def done(self) -> set[str]:
        """Names of the units that have a receipt."""
        end = ".receipt"
        return {name.removesuffix(end) for name in self.files() if name.endswith(end)}

    def note(self, name: str, data: bytes) -> None:
        """Write a file of the job's own beside the receipts."""
        self.store.write(_name(self.folder, f"work/{name}"), data)

    def noted(self, name: str) -> bytes | None:
        """A file that `note` wrote; None without one."""
        return self.store.read(_name(self.folder, f"work/{name}"), None)  # it may be of any size

    def commit(self, unit: str, receipt: bytes) -> None:
        """Write the receipt of a unit with its checksum, after all else that the unit writes."""
        self.note(f"{unit}.receipt", with_checksum(receipt))

    def receipt(self, unit: str, decode: Callable[[bytes], _Receipt]) -> _Receipt:
        """The receipt of a unit; raises DatasetError if it is gone or cannot be decoded."""
        content = checked_bytes(self.noted(f"{unit}.receipt") or b"")
        with suppress(
            DatasetError, ValueError, LookupError, TypeError, AttributeError, RecursionError
        ):
            if content is not None:
                return decode(content)
        name = _name(self.folder, f"work/{unit}.receipt")
        raise DatasetError(
            f"{self.store.url}/{name} is damaged, or of another version of jaxdata: delete it and "
            "run the same command again, which repeats that part of the work"
        )

    def end(self) -> None:
        """Delete `work/`: first the record, without which nobody resumes from what is left."""
        self.store.delete(_name(self.folder, self.parameters))
        self.store.delete(_name(self.folder, "work/"))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Say what to do if the output cannot be written; reading the input raises other errors."""
        try:
            yield
        except OSError as error:
            file = f" ({error.filename})" if error.filename else ""
            raise DatasetError(
                f"{self.store.url} cannot be written: {error.strerror or error}{file}. Finished "
                "work is kept: fix the cause, and the same command resumes"
            ) from error


def unfinished_conversions(names: Iterable[str]) -> set[str]:
    """The sources in a list of the files of a dataset that a conversion is making."""
    end = f"/{_PARAMETERS}"
    return {name.removesuffix(end) for name in names if name.endswith(end)}


_MOST = 2**14
_HIDDEN = "…"
_NAMED = r"(?:password|passwd|secret|credentials?|api[_-]?key)"
_VALUE = r"(?:'[^']*'|\"[^\"]*\"|[^\s,)}]+)"
# As Hugging Face, GitHub, OpenAI, Amazon, Google and JSON web tokens write theirs.
_KEY = r"\b(?:hf_|gh[opsu]_|github_pat_|sk-|AKIA|ASIA|ya29\.|AIza|eyJ)[\w.-]{12,}"
_SECRETS = (
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/ '\"]*@"), rf"\1{_HIDDEN}@"),  # who asks
    (re.compile(r"(?<=[?&])([\w.~%-]+)=[^&#\s'\"]*"), rf"\1={_HIDDEN}"),  # signatures, and others
    (re.compile(rf"(?i)({_NAMED}[\w-]*['\"]?[=:\s]+){_VALUE}"), rf"\1{_HIDDEN}"),
    (re.compile(_KEY), _HIDDEN),
)


def redacted(command: str) -> str:
    """A command without names and passwords in URLs, values of their queries, and known tokens.

    At most 16,384 characters are kept.

    >>> redacted("jaxdata convert 'https://me:pass@host/a.jsonl?X-Amz-Signature=ab12&v=3'")
    "jaxdata convert 'https://…@host/a.jsonl?X-Amz-Signature=…&v=…'"
    """
    for secret, instead in _SECRETS:
        command = secret.sub(instead, command)
    return command if len(command) <= _MOST else f"{command[:_MOST]} {_HIDDEN}"


HISTORY = "history.jsonl"


def note_conversion(
    store: Store, sources: Sequence[str], command: str, encoding: Mapping[str, Any] | None = None
) -> None:
    """Append a line: a conversion that made or added to `sources` ends now.

    Args:
        store: the dataset.
        sources: those that it could feed.
        command: what was run.
        encoding: what encoded their texts.
    """
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "version": VERSION,
        "sources": [*sources],
        "command": redacted(command),
        "encoding": encoding,
    }
    line = json.dumps(facts, ensure_ascii=False).encode() + b"\n"
    store.update(HISTORY, lambda before: (before or b"") + line)


def read_history(store: Store) -> list[dict[str, Any]]:
    """The conversions, the first one first: date, version, sources and command of each, and more.

    Lines that are none are passed over.
    """
    found = []
    for line in (store.read(HISTORY) or b"").splitlines():
        with suppress(ValueError, RecursionError):
            one = json.loads(line)
            if isinstance(one, dict) and {"date", "version", "sources", "command"} <= one.keys():
                found.append(one)
    return found
