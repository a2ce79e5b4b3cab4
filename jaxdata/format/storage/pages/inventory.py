"""What a page cache holds, seen from outside: by file, and what runs under way need of it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxdata.format.storage.pages.page_cache import cache_root, limit_bytes, own_folder
from jaxdata.format.storage.pages.page_folder import COLUMN, LABELS
from jaxdata.format.storage.pages.run_folder import sweep


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


def inventory() -> Inventory:
    """What the cache of this user holds.

    Raises:
        OSError: the folder cannot be read.
    """
    root = cache_root()
    if not root.exists():
        return Inventory(root, limit_bytes(root), [], 0, 0, 0)
    pages = _pages_of(root)
    if pages is None:
        files, runs = [], 0
    else:
        sweep(pages / "runs")
        files = [_file(each, pages / LABELS) for each in _folders(pages / "pages")]
        runs = len(list((pages / "runs").glob("*.lock")))
    kept = _kept(root)
    held = [each for each in files if each.pages]
    return Inventory(root, limit_bytes(root), held, len(kept), sum(map(_size, kept)), runs)


def clear(*, kept: bool = False) -> Cleared:
    """Remove the pages that no run under way needs; with `kept` also kept plans.

    What is mapped stays valid, so a run that begins meanwhile fetches again what it needs.
    """
    root, gone, freed = cache_root(), 0, 0
    pages = _pages_of(root) if root.exists() else None
    if pages is not None:
        sweep(pages / "runs")
        for folder in _folders(pages / "pages"):
            count, size = _clear_folder(folder)
            gone, freed = gone + count, freed + size
    plans = _kept(root) if kept and root.exists() else []
    sizes = [_size(path) for path in plans]
    for path in plans:
        path.unlink(missing_ok=True)
    left = inventory().files
    return Cleared(
        gone,
        freed,
        len(plans),
        sum(sizes),
        sum(each.pages for each in left),
        sum(each.bytes for each in left),
    )


def _pages_of(root: Path) -> Path | None:
    """The folder of this user's pages, if there is one."""
    return own_folder(root) if any(root.glob("pages*")) else None


def _folders(pages: Path) -> list[Path]:
    return sorted(each for each in pages.iterdir()) if pages.is_dir() else []


def _file(folder: Path, labels: Path) -> CachedFile:
    label = ""
    with suppress(OSError, UnicodeDecodeError):
        label = (labels / folder.name).read_text()
    dataset, _, name = label.partition("\n")
    file = CachedFile(folder.name, dataset, name)
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found = path.stat()
            file.pages, file.bytes = file.pages + 1, file.bytes + found.st_size
            file.column |= path.name == COLUMN
            if found.st_nlink > 1:
                file.needed_pages += 1
                file.needed_bytes += found.st_size
    return file


def _clear_folder(folder: Path) -> tuple[int, int]:
    """Pages and bytes that are gone; the folder stays, as somebody may be about to add a page."""
    gone = freed = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found = path.stat()
            if found.st_nlink == 1:
                path.unlink()
                gone, freed = gone + 1, freed + found.st_size
    return gone, freed


def _kept(root: Path) -> list[Path]:
    """Files of the cache that are no pages."""
    below = [each for each in root.iterdir() if not each.name.startswith("pages")]
    files = [file for each in below for file in ([each] if each.is_file() else each.rglob("*"))]
    mine = os.getuid()
    whole = [each for each in files if each.is_file() and not each.name.startswith(".")]
    return [each for each in whole if each.stat().st_uid == mine]


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
