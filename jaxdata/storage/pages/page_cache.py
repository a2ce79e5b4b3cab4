"""The page cache of this process: where it lies, how large it may become."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
from pathlib import Path

from jaxdata.base.errors import InputError
from jaxdata.storage.pages.own_folder import network_file_system, place_of
from jaxdata.storage.pages.page_fetcher import PageFetcher
from jaxdata.storage.pages.page_folder import PageFolder
from jaxdata.storage.pages.read_counts import READS, ReadCounts
from jaxdata.storage.pages.run_folder import counts_of_family

_log = logging.getLogger("jaxdata")
_MOST_AHEAD = 2**28
_SHARE = 1 / 10
"""of the free disk, by default"""


class PageCache:
    """Pages here, and threads that fetch others."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder = PageFolder(folder, most)
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
    root = cache_root()
    key = (os.getpid(), str(root))
    if key not in _open:
        _open[key] = _try_to_open(root)
        atexit.register(close_caches)
    return _open[key]


def cache_root() -> Path:
    """`$JAXDATA_CACHE`, or `~/.cache/jaxdata`."""
    return Path(os.environ.get("JAXDATA_CACHE", "~/.cache/jaxdata")).expanduser()


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
        cache = PageCache(place_of(root), limit_bytes(root))
    except OSError as error:
        _log.warning(
            "no pages are cached in %s (%s): what rows need is fetched range by range; "
            "JAXDATA_CACHE names another folder",
            root,
            str(error),  # with its frames, whatever these hold would live as long as the record
        )
        return None
    if kind := network_file_system(root):
        _log.warning("%s", network_line(root, kind))
    return cache


def network_line(root: Path, kind: str) -> str:
    """What a cache on a network file system costs, and the remedy."""
    return (
        f"the page cache {root} is on a network file system ({kind}): what was fetched from a "
        "bucket crosses the network again, and each host has pages of its own there. Let "
        "JAXDATA_CACHE name a folder on a local disk"
    )


def limit_bytes(root: Path) -> int:
    """`$JAXDATA_CACHE_BYTES`, or a tenth of what the disk has free."""
    text = os.environ.get("JAXDATA_CACHE_BYTES", "")
    try:
        return int(text) if text else int(shutil.disk_usage(_there(root)).free * _SHARE)
    except ValueError:
        raise InputError(
            f"JAXDATA_CACHE_BYTES={text!r}: expected a whole number of bytes, like 200000000000"
        ) from None


def _there(path: Path) -> Path:
    """The folder, or the first above it that exists."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())
