"""The page cache of this process: where it lies, how large it may become."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from stat import S_IWGRP, S_IWOTH

from jaxdata.errors import InputError
from jaxdata.format.storage.pages.page_fetcher import PageFetcher
from jaxdata.format.storage.pages.page_folder import PageFolder
from jaxdata.format.storage.pages.read_counts import READS, ReadCounts
from jaxdata.format.storage.pages.run_folder import counts_of_family

_log = logging.getLogger("jaxdata")
_MOST_AHEAD = 2**28
_SHARE = 1 / 10
"""of the free disk, by default"""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class PageCache:
    """Pages here, and threads that fetch others."""

    def __init__(self, root: Path, most: int) -> None:
        self.folder = PageFolder(root, most)
        self.fetcher = PageFetcher(self.folder)

    @property
    def most(self) -> int:
        """Bytes of all pages together."""
        return self.folder.most

    def close(self) -> None:
        """Stop fetching, and need no page any more."""
        self.fetcher.close()
        self.folder.close()


_open: dict[tuple[int, str], PageCache | None] = {}


def page_cache() -> PageCache | None:
    """The cache of this process; None if there can be none, which is said once.

    It lies in `$JAXDATA_CACHE` (`~/.cache/jaxdata`) and holds at most `$JAXDATA_CACHE_BYTES`, by
    default a tenth of the free disk.
    """
    root = Path(os.environ.get("JAXDATA_CACHE", "~/.cache/jaxdata")).expanduser()
    key = (os.getpid(), str(root))
    if key not in _open:
        _open[key] = _try_to_open(root)
        atexit.register(close_caches)
    return _open[key]


def most_ahead() -> int:
    """Bytes of rows that are fetched before they are needed: an eighth of the cache, at most."""
    cache = page_cache()
    return _MOST_AHEAD if cache is None else min(_MOST_AHEAD, cache.most // 8)


def read_counts() -> ReadCounts:
    """What this process and its children have fetched from buckets."""
    cache = page_cache()
    return READS.read() if cache is None else counts_of_family(cache.folder.runs)


def close_caches() -> None:
    """Close the caches of this process, as at its end."""
    for key in [key for key in _open if key[0] == os.getpid()]:
        if cache := _open.pop(key):
            cache.close()


def _try_to_open(root: Path) -> PageCache | None:
    try:
        folder = own_folder(root)
        return PageCache(folder, limit_bytes(root))
    except OSError as error:
        _log.warning(
            "no pages are cached in %s (%s): what rows need is fetched range by range; "
            "JAXDATA_CACHE names another folder",
            root,
            error,
        )
        return None


def own_folder(root: Path) -> Path:
    """The folder of this user and boot; those of earlier boots are removed.

    Pages are not flushed to disk: after the machine has stopped, they may not be what was written.
    """
    pages = root / "pages"
    pages.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = pages.stat()
    if found.st_uid != os.getuid() or found.st_mode & (S_IWGRP | S_IWOTH):
        pages = root / f"pages-{os.getuid()}"
        pages.mkdir(exist_ok=True, mode=0o700)
        if pages.stat().st_uid != os.getuid():
            raise PermissionError(f"{pages} belongs to somebody else")
    for other in pages.iterdir():
        if other.name != _boot():
            shutil.rmtree(other, ignore_errors=True)
    (pages / _boot()).mkdir(exist_ok=True)
    return pages / _boot()


def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text().strip()[:8]
    return "any"


def limit_bytes(root: Path) -> int:
    """`$JAXDATA_CACHE_BYTES`, or a tenth of what the disk has free."""
    text = os.environ.get("JAXDATA_CACHE_BYTES", "")
    try:
        return int(text) if text else int(shutil.disk_usage(root).free * _SHARE)
    except ValueError:
        raise InputError(
            f"JAXDATA_CACHE_BYTES={text!r}: expected a whole number of bytes, like 200000000000"
        ) from None
