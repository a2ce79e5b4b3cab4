"""Pages of files in a folder that all processes of a host share.

A page is a file, published by rename and mapped by whoever needs it. What is evicted is unlinked:
maps of it stay valid, so a reader never sees anything but the page. A page that a run under way
needs has a link in the folder of that run (`run_folder`), and goes only after all that have none;
among these, the one that was needed longest ago goes first. A page ends with its size and its
CRC-32, begun with its name, which are compared when a process maps it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from jaxdata.base.errors import DatasetError
from jaxdata.storage.maps import map_file, open_plain
from jaxdata.storage.pages.own_folder import (
    CLAIMS,
    COLUMN,
    LABELS,
    PAGES,
    RUNS,
    PageFile,
    Removed,
    earlier_folders,
    made_pages,
    make_folder,
    remove_made,
)
from jaxdata.storage.pages.read_counts import READS
from jaxdata.storage.pages.run_folder import RunFolder, sweep, under_way

_log = logging.getLogger("jaxdata")

PAGE_BYTES = 2**20
"""fixed: an index has a checksum of each page"""
END = struct.Struct("<QI")
"""of a page: its size without this, and its CRC-32"""
_PIECE_BYTES = 2**18
_PAUSE_SECONDS = 60.0
"""in which no page is written, once one could not be"""
_MOST_MAPS = 2**13
_SLACK = 1 / 32
"""of the limit: bytes that a process adds before it looks at all pages again"""

_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
"""of an open file, not of a process; where there is none, two processes may fetch the same page"""


def key_of(sha256: str) -> str:
    """The name of the folder of the pages of a file."""
    return sha256[:32]


class PageFolder:
    """The pages that this host has, and those that this process needs.

    Args:
        folder: of the pages; one for each user and boot of a machine.
        most: bytes of all pages together.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.most = most
        self._folder, self._pages = folder, folder / PAGES
        self.runs, self._labels = folder / RUNS, folder / LABELS
        make_folder(folder)
        self.claims, self._run = Claims(folder / CLAIMS), RunFolder(self.runs)
        self._labelled = set[str]()
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        self._lock, self._closed = threading.Lock(), False
        self._added = most  # nothing is known yet
        self._refused_until, self._said = 0.0, set[str]()
        self.refusal = ""
        """why a page could not be written, for people; "" if all could"""

    def get(self, names: Sequence[str]) -> list[memoryview | None]:
        """The content of pages, as far as they are here; this run needs them from now on."""
        with self._lock:
            found = [self._known(name) for name in names]
        return [
            self._open(name) if data is None else data
            for name, data in zip(names, found, strict=True)
        ]

    def _known(self, name: str) -> memoryview | None:
        if name in self._maps:
            self._maps.move_to_end(name)
        return self._maps.get(name)

    def _open(self, name: str, *, compare: bool = True) -> memoryview | None:
        """The content of a page that this process has not mapped; None if it is not here."""
        try:
            if (link := self._pin(name)) is None:
                return None
            if compare and not is_whole(link, name):
                self._discard(name)
                return None
            data = map_file(link)[: -END.size]
        except (DatasetError, FileNotFoundError):  # somebody removed it meanwhile
            return None
        except OSError as error:
            self._refuse(error)
            return None
        with self._lock:
            data = data if self._closed else self._maps.setdefault(name, data)
            if len(self._maps) > _MOST_MAPS:
                self._drop(1)
        return data

    def _pin(self, name: str) -> Path | None:
        """The link by which this run needs a page; None if that is not here."""
        with self._lock:
            if self._closed:  # a thread that fetches may be late: no link is made any more
                return None
            page = self._pages / name
            link = self._run.pin(page, name.replace("/", "-"))
            if link is None and page.exists():
                self._make_again()
                link = self._run.pin(page, name.replace("/", "-"))
        if link is not None:
            with suppress(OSError):
                os.utime(page)
        return link

    def _make_again(self) -> None:
        """Have the folders that somebody removed, unless another thread was faster."""
        if self._closed or (self._pages.is_dir() and self._run.path.is_dir()):
            return
        make_folder(self._folder)
        self._run.close()
        self._run = RunFolder(self.runs)
        self._maps.clear()
        self._labelled.clear()

    def _discard(self, name: str) -> None:
        """Remove a page that is not what was written."""
        self.remove([name])
        READS.add(damaged_pages=1)
        self._say(
            "damage",
            "%s is not what was written there: it is fetched again, as every such page is; look "
            "after the disk. `jaxdata cache verify` checks all pages",
            self._pages / name,
        )

    def _drop(self, count: int) -> None:
        """Need the pages no more that were needed longest ago."""
        for _ in range(min(count, len(self._maps))):
            name, _data = self._maps.popitem(last=False)
            self._run.unpin(name.replace("/", "-"))

    def has(self, name: str) -> bool:
        """Whether a page is here."""
        return name in self._maps or (self._pages / name).exists()

    def add(self, name: str, size: int, fetch: Callable[[], Iterable[bytes]]) -> bool:
        """Publish a page, which this run needs.

        Args:
            name: of the page.
            size: its bytes, for which the disk has to have room before they are fetched.
            fetch: fetches them, in pieces.

        Returns:
            Whether it could be written; the first time that one cannot, it is said.
        """
        if self._closed or self.refuses:
            return False
        try:
            try:
                self._write(name, size, fetch)
            except FileNotFoundError:
                with self._lock:
                    self._make_again()
                self._write(name, size, fetch)
        except OSError as error:
            self._refuse(error)
            return False
        self.refusal = ""
        self._open(name, compare=False)
        self._added += size
        if self._added > self.most * _SLACK:
            self.make_room()
        return True

    def _write(self, name: str, size: int, fetch: Callable[[], Iterable[bytes]]) -> None:
        page, checksum = self._pages / name, zlib.crc32(name.encode())
        temporary = self._run.path / f".tmp-{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                _reserve(file.fileno(), size + END.size)
                for piece in fetch():
                    checksum = zlib.crc32(piece, checksum)
                    file.write(piece)
                file.write(END.pack(size, checksum))
            page.parent.mkdir(exist_ok=True)
            temporary.replace(page)
        finally:
            temporary.unlink(missing_ok=True)

    @property
    def refuses(self) -> bool:
        """Whether pages are of no use now, as they cannot be written."""
        return time.monotonic() < self._refused_until

    def _refuse(self, error: OSError) -> None:
        if self._closed:
            return
        self._refused_until = time.monotonic() + _PAUSE_SECONDS
        self.refusal = (
            f"no pages can be kept in {self._folder} ({error.strerror or error}): free space "
            "there, or let JAXDATA_CACHE name another folder that you may write"
        )
        self._say(
            "refusal",
            "%s. Until then exactly what rows need is fetched, with far more requests",
            self.refusal,
        )

    def _say(self, what: str, text: str, *values: object) -> None:
        """Say something once."""
        if what not in self._said:
            self._said.add(what)
            _log.warning(text, *values)

    def remove(self, names: Sequence[str]) -> None:
        """Delete pages."""
        with self._lock:
            for name in names:
                self._maps.pop(name, None)
                self._run.unpin(name.replace("/", "-"))
                (self._pages / name).unlink(missing_ok=True)

    def column_bytes(self) -> int:
        """Bytes of the columns of an index that this process needs."""
        with self._lock:
            return sum(len(data) for name, data in self._maps.items() if name.endswith(COLUMN))

    def label(self, sha256: str, text: str) -> None:
        """Say what file it is that pages are of, for people who look at the cache."""
        if sha256 not in self._labelled:
            self._labelled.add(sha256)
            with suppress(OSError):
                (self._labels / key_of(sha256)).write_text(text)

    def make_room(self) -> None:
        """Evict what is beyond the limit; one process at a time."""
        if not self.claims.take("room"):
            return
        try:
            self._evict()
            self._added = 0
        finally:
            self.claims.release("room")

    def _evict(self) -> None:
        sweep(self.runs)
        remove_earlier(self._folder)
        found = _by_use(self._pages)
        beyond = sum(page.found.st_size for page in found) - int(self.most * (1 - _SLACK))
        if beyond <= 0:
            return
        beyond -= _unlink(found, beyond)
        if beyond > 0:
            with self._lock:
                self._drop(max(len(self._maps) // 4, beyond // PAGE_BYTES + 1))
            _unlink(_by_use(self._pages), beyond)

    def close(self) -> None:
        """Need no page any more."""
        with self._lock:
            self._closed = True
            self._maps.clear()
        READS.move_to(None)
        self._run.close()
        self.claims.close()


class Claims:
    """Claims on names: one process of the host fetches a page, the others wait for it.

    A claim is a lock on one byte of a file, which nobody writes: the kernel drops it with the
    process.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, name: str) -> bool:
        """Whether no other process had the name; this one has it now."""
        return self._set(name, fcntl.F_WRLCK)

    def release(self, name: str) -> None:
        """Let others have it."""
        self._set(name, fcntl.F_UNLCK)

    def _set(self, name: str, kind: int) -> bool:
        if _SET_LOCK is None:
            return True
        digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
        lock = struct.pack("hhqqi", kind, os.SEEK_SET, int.from_bytes(digest), 1, 0)
        with suppress(BlockingIOError, PermissionError):
            fcntl.fcntl(self._file, _SET_LOCK, lock)
            return True
        return False

    def close(self) -> None:
        """Release all."""
        os.close(self._file)


def is_whole(path: str | Path, name: str) -> bool:
    """Whether a file is what was written as page `name`; read, not mapped, as disks may fail.

    Raises:
        OSError: it cannot be opened.
    """
    buffer, checksum = memoryview(bytearray(_PIECE_BYTES)), zlib.crc32(name.encode())
    try:
        with open_plain(path) as file:
            left = size = max(os.fstat(file.fileno()).st_size - END.size, 0)
            while left and (count := file.readinto(buffer[:left])):
                checksum, left = zlib.crc32(buffer[:count], checksum), left - count
            return size > 0 and file.read() == END.pack(size, checksum)
    except OSError as error:
        if error.errno == errno.EIO:
            return False
        raise


def remove_earlier(folder: Path) -> Removed:
    """Remove what this machine kept before it started anew, unless a process is there after all."""
    removed = Removed()
    for each in earlier_folders(folder):
        if not any(under_way(each / RUNS)):
            removed = removed.plus(*remove_made(each))
    return removed


def _reserve(file: int, size: int) -> None:
    """Have room on the disk; raises OSError where there is none, if the file system can tell."""
    if reserve := getattr(os, "posix_fallocate", None):
        try:
            reserve(file, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise


def _by_use(pages: Path) -> list[PageFile]:
    """All pages, those first that were needed longest ago."""
    return sorted(made_pages(pages), key=lambda page: page.found.st_mtime_ns)


def _unlink(pages: Sequence[PageFile], beyond: int) -> int:
    """Delete pages that no run needs until `beyond` bytes are gone; returns how many are."""
    gone = 0
    for page in pages:
        if gone >= beyond:
            break
        if page.found.st_nlink == 1:
            with suppress(FileNotFoundError):
                os.unlink(page.path)  # noqa: PTH108
                gone += page.found.st_size
    return gone
