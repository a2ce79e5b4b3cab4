"""What a page cache holds, seen from outside: by file, and what runs under way need of it.

Only `clear` and `verify` remove anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxdata.base.progress import Advance
from jaxdata.storage.cached_files import kept_files
from jaxdata.storage.pages.own_folder import (
    COLUMN,
    LABELS,
    PAGES,
    RUNS,
    PageFile,
    is_made,
    made_pages,
    network_file_system,
    other_folders,
    place_of,
)
from jaxdata.storage.pages.page_cache import cache_root, limit_bytes
from jaxdata.storage.pages.page_folder import is_whole, remove_earlier
from jaxdata.storage.pages.run_folder import sweep, under_way


@dataclass
class CachedFile:
    """Pages of a shard, or a column of an index."""

    key: str
    dataset: str
    """its URL; "" if nothing says which"""
    name: str
    column: bool = False
    pages: int = 0
    bytes: int = 0
    needed_pages: int = 0
    """that runs under way need"""
    needed_bytes: int = 0

    def add(self, page: PageFile, needed: bool) -> None:
        """Count a page."""
        self.pages, self.bytes = self.pages + 1, self.bytes + page.found.st_size
        self.column |= page.name == COLUMN
        self.needed_pages += needed
        self.needed_bytes += page.found.st_size * needed


@dataclass(frozen=True)
class Inventory:
    """What lies in `$JAXDATA_CACHE`."""

    folder: Path
    limit: int
    """bytes of pages and columns together"""
    files: list[CachedFile]
    kept_files: int
    """plans, orders and ends of documents that datasets could not keep themselves"""
    kept_bytes: int
    runs: int
    """processes under way that need pages"""
    network: str | None
    """the type of the network file system where it lies; None on a disk of this host"""
    others: int
    """folders of pages of other machines, or from before this one was started"""


@dataclass(frozen=True)
class Cleared:
    """What was removed, and what was not."""

    pages: int
    bytes: int
    kept_files: int
    kept_bytes: int
    needed_pages: int
    """that stay, as runs under way need them"""
    needed_bytes: int


@dataclass(frozen=True)
class Verified:
    """What was compared, and what was not what had been written there."""

    pages: int
    bytes: int
    damaged: list[str]
    """which bytes of which file; they are removed"""


def inventory() -> Inventory:
    """What the cache of this user holds.

    Raises:
        OSError: the folder cannot be read.
    """
    root = cache_root()
    folder = place_of(root)
    runs = list(under_way(folder / RUNS))
    needed = {link.stat().st_ino for run in runs for link in run.glob("*-*")}
    files: dict[str, CachedFile] = {}
    for page in _pages(folder):
        file = files.setdefault(page.key, CachedFile(page.key, *_label(folder, page.key)))
        file.add(page, page.found.st_ino in needed)
    kept = kept_files(root)
    return Inventory(
        root,
        limit_bytes(root),
        [files[key] for key in sorted(files)],
        len(kept),
        sum(kept.values()),
        len(runs),
        network_file_system(root),
        len(other_folders(folder)),
    )


def clear(*, kept: bool = False) -> Cleared:
    """Remove the pages that no run under way needs; with `kept` also kept plans.

    What is mapped stays valid, so a run that begins meanwhile fetches again what it needs.
    """
    root = cache_root()
    folder = place_of(root)
    gone = remove_earlier(folder)
    sweep(folder / RUNS)
    for page in _pages(folder):  # their folders stay: somebody may be about to add a page
        if page.found.st_nlink == 1:
            Path(page.path).unlink(missing_ok=True)
            gone = gone.plus(1, page.found.st_size)
    plans = kept_files(root) if kept else {}
    for path in plans:
        path.unlink(missing_ok=True)
    left = inventory().files
    return Cleared(
        *gone,
        len(plans),
        sum(plans.values()),
        sum(each.pages for each in left),
        sum(each.bytes for each in left),
    )


def verify(progress: Advance = lambda _done, _total: None) -> Verified:
    """Compare all pages of this user on this host with their checksums; remove those that differ.

    Args:
        progress: called with (bytes compared, bytes of all).

    Raises:
        OSError: a page cannot be read.
    """
    folder = place_of(cache_root())
    pages = sorted(_pages(folder), key=lambda page: page.path)
    total, done, damaged = sum(page.found.st_size for page in pages), 0, []
    for page in pages:
        try:
            if not is_whole(page.path, f"{page.key}/{page.name}"):
                damaged.append(_described(folder, page))
                Path(page.path).unlink(missing_ok=True)
        except FileNotFoundError:  # another process needed its room
            continue
        done += page.found.st_size
        progress(done, total)
    return Verified(len(pages), done, damaged)


def _pages(folder: Path) -> Iterator[PageFile]:
    return made_pages(folder / PAGES) if is_made(folder) else iter(())


def _label(folder: Path, key: str) -> tuple[str, str]:
    """The dataset that a file is of, and its name there; "" where nothing says it."""
    label = ""
    with suppress(OSError, UnicodeDecodeError):
        label = (folder / LABELS / key).read_text()
    dataset, _, name = label.partition("\n")
    return dataset, name


def _described(folder: Path, page: PageFile) -> str:
    label = "/".join(filter(None, _label(folder, page.key))) or f"a file {page.key}"
    start, _, stop = page.name.partition("-")
    part = f", bytes {int(start):,} to {int(stop):,}" if stop else ""
    return f"{label}{part} ({page.path})"
