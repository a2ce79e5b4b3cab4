"""The page cache of this host: pages of files in a folder that all its processes share.

A page is a file, published by rename and mapped by whoever needs it. What is evicted is unlinked:
maps of it stay valid, so a reader never sees anything but the page. The page that was used longest
ago goes first: whoever uses one that it has mapped says so from time to time. A page ends with its
size and its CRC-32, begun with its name, which are compared when a process maps it.

A boot's id belongs to one machine, so hosts that share `$JAXDATA_CACHE` have a folder each. Only
what has a name that the cache gives is ever removed, in a folder that has the marker; links are
never followed.
"""

import atexit
import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cache
from pathlib import Path
from stat import S_ISDIR, S_ISREG, S_IWGRP, S_IWOTH
from typing import NamedTuple

import numpy as np

from jaxdata.base.errors import DatasetError, InputError, log, warn_once
from jaxdata.base.threads import TICK, Threads, check_stop, pause
from jaxdata.storage.local import locked, map_file, open_plain
from jaxdata.storage.pages.read_counts import ENTRIES, READS, ReadCounts

COLUMN = "column"
"""the only page of a column of an index"""
TEMPORARY = ".tmp-"
"""how the name of a page begins that is being written"""
FOLDERS = (PAGES, LABELS, COUNTS) = "pages", "labels", "counts"
PAGE_BYTES = 2**20
"""fixed: an index has a checksum of each page"""
END = struct.Struct("<QI")
"""of a page: its size without this, and its CRC-32"""
_PIECE_BYTES = 2**18
_PAUSE_SECONDS = 60.0
"""in which no page is written, once one could not be"""
_USED_SECONDS = 60.0
"""after which it is said again that a page is used"""
_MOST_MAPS = 2**13
_SLACK = 1 / 32
"""of the limit: bytes that a process adds before it looks at all pages again"""
_MOST_AHEAD = 2**28
_SHARE = 1 / 10
"""of the free disk, by default"""
_THREADS = 32
_BEHIND = 9 * _THREADS
_OTHERS_SECONDS = 0.02


def key_of(sha256: str) -> str:
    """The name of the folder of the pages of a file."""
    return sha256[:32]


class Wanted(NamedTuple):
    """A page to fetch."""

    name: str
    size: int
    pieces: Callable[[], Iterable[bytes]]
    """fetches it"""


class PageCache:
    """The pages that this host has, and threads that fetch others, each once for all processes.

    Args:
        folder: of the pages; one for each user and boot of a machine.
        most: bytes of all pages together.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.most, self.folder = most, folder
        self._pages = folder / PAGES
        make_folder(folder)
        self._counts = READS.share(folder / COUNTS)
        self._maps: OrderedDict[str, tuple[memoryview, float]] = OrderedDict()
        self._wanted: dict[str, Future[None]] = {}
        self._lock, self._threads, self._closed = threading.Lock(), Threads(_THREADS), False
        self._added = most  # nothing is known yet
        self._refused_until, self._damaged = 0.0, False

    def get(self, names: Sequence[str]) -> list[memoryview | None]:
        """The content of pages, as far as they are here."""
        now = time.monotonic()
        with self._lock:
            found = [self._known(name, now) for name in names]
        return [data or self._open(name) for name, data in zip(names, found, strict=True)]

    def _known(self, name: str, now: float) -> memoryview | None:
        if (known := self._maps.get(name)) is None:
            return None
        data, used = known
        if now - used > _USED_SECONDS:
            self._maps[name] = data, now
            with suppress(OSError):
                os.utime(self._pages / name)
        self._maps.move_to_end(name)
        return data

    def _open(self, name: str, *, compare: bool = True) -> memoryview | None:
        """The content of a page that this process has not mapped; None if it is not here."""
        page = self._pages / name
        try:
            if compare and not is_whole(page, name):
                page.unlink(missing_ok=True)
                READS.add(damaged_pages=1)
                if not self._damaged:
                    self._damaged = True
                    log.warning(
                        f"{page} is not what was written there: it is fetched again, as every such "
                        "page is; look after the disk. `jaxdata cache verify` checks all pages"
                    )
                return None
            data = map_file(page)[: -END.size]
            os.utime(page)
        except (DatasetError, FileNotFoundError):  # it is not here, or not any longer
            return None
        except OSError as error:
            self._refuse(error)
            return None
        with self._lock:
            if not self._closed:
                data, _ = self._maps.setdefault(name, (data, time.monotonic()))
                if len(self._maps) > _MOST_MAPS:
                    self._maps.popitem(last=False)
        return data

    def fetch(self, page: Wanted) -> bool:
        """Publish a page.

        Returns:
            Whether nothing more is to be done, as it is here, or cannot be written, which is said
            the first time; False while another process fetches it.
        """
        if self._closed or self.refuses or page.name in self._maps:
            return True
        path = self._pages / page.name
        temporary = path.with_name(f"{TEMPORARY}{path.name}")
        try:
            if not path.parent.is_dir():
                make_folder(self.folder)  # somebody may have removed it
                path.parent.mkdir(exist_ok=True)
            with temporary.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(temporary.stat(), os.fstat(file.fileno())):
                    return False  # another process has just published it
                try:
                    if path.exists():  # before this was opened
                        raise FileExistsError
                    file.truncate(0)
                    checksum = zlib.crc32(page.name.encode())
                    for piece in page.pieces():
                        checksum = zlib.crc32(piece, checksum)
                        file.write(piece)
                    file.write(END.pack(page.size, checksum))
                    file.flush()
                    temporary.replace(path)
                except BaseException:
                    temporary.unlink(missing_ok=True)
                    raise
        except FileExistsError:
            return True
        except (BlockingIOError, FileNotFoundError):  # another process has it, or had it just now
            return False
        except OSError as error:
            self._refuse(error)
            return True
        self._open(page.name, compare=False)
        self._added += page.size
        if self._added > self.most * _SLACK:
            self.make_room()
        return True

    @property
    def refuses(self) -> bool:
        """Whether pages are of no use now, as they cannot be written."""
        return time.monotonic() < self._refused_until

    def _refuse(self, error: OSError) -> None:
        if not self._closed:
            self._refused_until = time.monotonic() + _PAUSE_SECONDS
            warn_once(
                f"no pages can be kept in {self.folder} ({error.strerror or error}): free space "
                "there, or let JAXDATA_CACHE name another folder that you may write. Until then "
                "exactly what rows need is fetched, with far more requests"
            )

    def make_room(self) -> None:
        """Evict what is beyond the limit; one process at a time."""
        self._added = 0
        with suppress(OSError), locked(self._pages):
            make_folder(self.folder)
            remove_earlier(self.folder)
            made = made_pages(self._pages)
            pages = sorted(made, key=lambda page: page.found.st_mtime_ns)
            beyond = sum(page.found.st_size for page in pages) - int(self.most * (1 - _SLACK))
            for page in pages:
                if beyond <= 0:
                    break
                with suppress(FileNotFoundError):
                    os.unlink(page.path)  # noqa: PTH108
                    beyond -= page.found.st_size
        with self._lock:
            for name in [name for name in self._maps if not (self._pages / name).exists()]:
                del self._maps[name]

    def label(self, sha256: str, text: str) -> None:
        """Say what file it is that pages are of, for people who look at the cache."""
        label = self.folder / LABELS / key_of(sha256)
        with suppress(OSError):
            if not label.exists():
                label.write_text(text)

    def want(self, pages: Iterable[Wanted]) -> None:
        """Fetch pages that are neither here nor asked for, after those that were wanted before."""
        with self._lock:
            for page in pages:
                if page.name not in self._wanted:
                    self._wanted[page.name] = self._threads.submit(self._fetch, page)

    def _fetch(self, page: Wanted) -> None:
        there = True
        with suppress(Exception):  # whoever needs the page asks for its ranges, and meets it, too
            there = self.fetch(page)
        if not there:
            pause(_OTHERS_SECONDS)
        with self._lock:
            if there:
                del self._wanted[page.name]
            else:  # later, as another process fetches it
                self._wanted[page.name] = self._threads.submit(self._fetch, page)

    @property
    def is_behind(self) -> bool:
        """Whether a page that is wanted now comes late."""
        return len(self._wanted) > _BEHIND

    def wait_for(self, names: Iterable[str], seconds: float) -> bool:
        """Wait for pages that are being fetched, for some seconds at most; whether some are."""
        end = time.monotonic() + seconds
        sent = {one for name in names if (one := self._wanted.get(name)) and one.running()}
        left = sent
        while left and (remains := end - time.monotonic()) > 0:
            check_stop()
            left = wait(left, min(remains, TICK)).not_done
        return bool(sent)

    def close(self) -> None:
        """Stop fetching, and need no page any more."""
        self._threads.close()
        with self._lock:
            self._closed = True
            self._maps.clear()
        READS.move_to(np.zeros(ENTRIES))  # else their file stays mapped
        self._counts.unlink(missing_ok=True)


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


_open: dict[tuple[int, str], PageCache | None] = {}


def page_cache() -> PageCache | None:
    """The cache of this process; None if there can be none, which is said once.

    It lies in `$JAXDATA_CACHE` (`~/.cache/jaxdata`) and holds at most `$JAXDATA_CACHE_BYTES`, by
    default a tenth of the free disk.
    """
    root = cache_root()
    key = (os.getpid(), str(root))
    if key not in _open:
        _open[key] = None
        atexit.register(close_caches)
        try:
            _open[key] = PageCache(place_of(root), limit_bytes(root))
        except OSError as error:
            log.warning(  # without the error, whose frames would live as long as the record
                f"no pages are cached in {root} ({error}): what rows need is fetched range by "
                "range; JAXDATA_CACHE names another folder"
            )
    return _open[key]


def cache_root() -> Path:
    """`$JAXDATA_CACHE`, or `~/.cache/jaxdata`."""
    return Path(os.environ.get("JAXDATA_CACHE", "~/.cache/jaxdata")).expanduser()


def limit_bytes(root: Path) -> int:
    """`$JAXDATA_CACHE_BYTES`, or a tenth of what the disk has free."""
    text = os.environ.get("JAXDATA_CACHE_BYTES", "")
    there = next(each for each in (root, *root.absolute().parents) if each.exists())
    try:
        return int(text) if text else int(shutil.disk_usage(there).free * _SHARE)
    except ValueError:
        raise InputError(
            f"JAXDATA_CACHE_BYTES={text!r}: expected a whole number of bytes, like 200000000000"
        ) from None


def most_ahead(processes: int = 1) -> int:
    """Bytes of rows that one of so many fetches ahead: together an eighth of the cache, at most."""
    cache = page_cache()
    return _MOST_AHEAD if cache is None else min(_MOST_AHEAD, cache.most // (8 * processes))


def read_counts() -> ReadCounts:
    """What this process and its children have fetched from buckets."""
    cache = page_cache()
    return READS.read() if cache is None else READS.of_family(cache.folder / COUNTS)


def close_caches() -> None:
    """Close the caches of this process, as at its end."""
    for key in [key for key in _open if key[0] == os.getpid()]:
        if cache := _open.pop(key):
            cache.close()


_KEY, _PAGE = "[0-9a-f]{32}", rf"(\d+-\d+|{COLUMN})"
_MARKER = re.compile(r"\.jaxdata-[0-9a-f]{16}")
_SAYS = "jaxdata keeps pages of datasets here, and removes them: jaxdata cache --help\n"
_OUR_FOLDERS = re.compile(rf"{PAGES}(/{_KEY})?|{LABELS}|{COUNTS}")
_OUR_PAGES = re.compile(rf"{_KEY}/({re.escape(TEMPORARY)})?{_PAGE}")
_OUR_FILES = re.compile(
    rf"{_MARKER.pattern}|{PAGES}/{_OUR_PAGES.pattern}|{LABELS}/{_KEY}|{COUNTS}/\d+-[0-9a-f]{{8}}"
)
_LEFT_SECONDS = 3600.0
"""after which a folder that was not used is left: another machine may have our name"""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE = Path("/etc/machine-id")


class PageFile(NamedTuple):
    """A page as it lies in the cache."""

    path: str
    key: str
    name: str
    found: os.stat_result


def place_of(root: Path) -> Path:
    """Where the pages of this user and boot lie below `$JAXDATA_CACHE`.

    Pages are not flushed to disk: after the machine has stopped, they may not be what was written.
    """
    return root / f"{_prefix()}{_boot()}"


def make_folder(folder: Path) -> None:
    """Have a folder for pages, with the marker of this machine.

    Raises:
        OSError: it cannot be, or something lies in its place that jaxdata did not make.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is a link, or belongs to somebody else: move it away")
    if found.st_mode & (S_IWGRP | S_IWOTH):
        folder.chmod(0o700)
    names = {each.name for each in folder.iterdir()}
    if names - {*FOLDERS} and not any(map(_MARKER.fullmatch, names)):
        raise PermissionError(f"{folder} has files that are not jaxdata's: move it away")
    # Written each time: where old files are purged, it is not to be the first that goes.
    (folder / f".jaxdata-{_machine()}").write_text(_SAYS)
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
        if (folder / name).is_symlink():
            raise PermissionError(f"{folder / name} is a link: remove it")


def markers(folder: Path) -> list[Path]:
    """The markers of machines in a folder of this user; a folder without any is not ours."""
    with suppress(OSError):
        found = folder.lstat()
        if S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            return [each for each in folder.iterdir() if _MARKER.fullmatch(each.name)]
    return []


def other_folders(folder: Path) -> list[Path]:
    """The folders of pages of this user beside this one: of other machines, or of other boots."""
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    named = [each for each in beside if re.fullmatch(rf"{_prefix()}[0-9a-f]{{16}}", each.name)]
    return sorted(each for each in named if each != folder and markers(each))


def remove_earlier(folder: Path) -> list[int]:
    """Remove what this machine kept before it started anew; the bytes of each page."""
    removed: list[int] = []
    for each in other_folders(folder):
        used = max((path.stat().st_mtime for path in markers(each)), default=0.0)
        ours = each / f".jaxdata-{_machine()}"
        if ours.exists() and time.time() - used > _LEFT_SECONDS:
            removed += _remove_made(each)
    return removed


def made_pages(pages: Path) -> Iterator[PageFile]:
    """The pages in a folder `pages`, in no order, also those that are being written."""
    with suppress(FileNotFoundError):
        for folder, _, names, handle in os.fwalk(pages):
            key = os.path.relpath(folder, pages)
            for name in names:
                if _OUR_PAGES.fullmatch(f"{key}/{name}") and (found := _regular(name, handle)):
                    yield PageFile(f"{folder}/{name}", key, name, found)


def _regular(name: str, folder: int) -> os.stat_result | None:
    """What a plain file is; None for a link, and for one that was just removed."""
    with suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return found if S_ISREG(found.st_mode) else None
    return None


def _remove_made(folder: Path) -> list[int]:
    """Remove what jaxdata made in a folder, and the folder, unless others have something there."""
    removed: list[int] = []
    with suppress(OSError):
        for path, folders, names, handle in os.fwalk(folder, topdown=False):
            inside = "" if path == str(folder) else f"{os.path.relpath(path, folder)}/"
            # The marker goes last: who is killed can be followed.
            for name in sorted(names, key=lambda each: _MARKER.fullmatch(each) is not None):
                if _OUR_FILES.fullmatch(inside + name) and (found := _regular(name, handle)):
                    os.unlink(name, dir_fd=handle)
                    removed += [found.st_size] * inside.startswith(f"{PAGES}/")
            for name in folders:
                if _OUR_FOLDERS.fullmatch(inside + name):
                    with suppress(OSError):  # it is a link, or something is left in it
                        os.rmdir(name, dir_fd=handle)
        folder.rmdir()
    return removed


def _prefix() -> str:
    return f"pages-{os.getuid()}-"


def _boot() -> str:
    """What this boot of this machine is called; the machine where nothing names the boot."""
    with suppress(OSError):
        return _BOOT.read_text().strip().replace("-", "")[:16]
    return _machine()


@cache
def _machine() -> str:
    """What this machine is called, however often it starts; not as others of the same image."""
    name = socket.gethostname()
    with suppress(OSError):
        name += _MACHINE.read_text()
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
