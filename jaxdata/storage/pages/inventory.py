"""What a page cache holds, by file, seen from outside. Only `clear` and `verify` remove a page."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxdata.base.progress import Advance
from jaxdata.storage.cached_files import kept_files
from jaxdata.storage.pages import own_folder
from jaxdata.storage.pages.own_folder import PageFile, Removed
from jaxdata.storage.pages.page_cache import cache_root, is_whole, limit_bytes


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
    others: int
    """folders of pages of other machines, or from before this one was started"""


def inventory() -> Inventory:
    """What the cache of this user holds.

    Raises:
        OSError: the folder cannot be read.
    """
    root = cache_root()
    folder, kept = own_folder.place_of(root), kept_files(root)
    files: dict[str, CachedFile] = {}
    for page in _pages(folder):
        file = files.setdefault(page.key, CachedFile(page.key, *_label(folder, page.key)))
        file.pages, file.bytes = file.pages + 1, file.bytes + page.found.st_size
        file.column |= page.name == own_folder.COLUMN
    return Inventory(
        root,
        limit_bytes(root),
        [files[key] for key in sorted(files)],
        len(kept),
        sum(kept.values()),
        len(own_folder.other_folders(folder)),
    )


def clear(*, kept: bool = False) -> tuple[Removed, Removed]:
    """Remove the pages, and with `kept` also kept plans; returns what of both was removed.

    What is mapped stays valid: a run under way fetches the rest again as it needs it.
    """
    root = cache_root()
    folder = own_folder.place_of(root)
    gone = own_folder.remove_earlier(folder)
    for page in _pages(folder):  # their folders stay: somebody may be about to add a page
        Path(page.path).unlink(missing_ok=True)
        gone.append(page.found.st_size)
    plans = kept_files(root) if kept else {}
    for path in plans:
        path.unlink(missing_ok=True)
    return Removed(len(gone), sum(gone)), Removed(len(plans), sum(plans.values()))


@dataclass(frozen=True)
class Verified:
    """What was compared, and what was not what had been written there."""

    pages: int
    bytes: int
    damaged: list[str]
    """which bytes of which file; they are removed"""


def verify(progress: Advance = lambda _done, _total: None) -> Verified:
    """Compare all pages of this user on this host with their checksums; remove those that differ.

    Args:
        progress: called with (bytes compared, bytes of all).

    Raises:
        OSError: a page cannot be read.
    """
    folder = own_folder.place_of(cache_root())
    pages = sorted(_pages(folder), key=lambda page: page.path)
    total, done, damaged = sum(page.found.st_size for page in pages), 0, []
    for page in pages:
        with suppress(FileNotFoundError):  # another process needed its room
            if not is_whole(page.path, f"{page.key}/{page.name}"):
                damaged.append(_described(folder, page))
                Path(page.path).unlink(missing_ok=True)
            done += page.found.st_size
            progress(done, total)
    return Verified(len(pages), done, damaged)


def _pages(folder: Path) -> Iterator[PageFile]:
    found = own_folder.made_pages(folder / own_folder.PAGES) if own_folder.markers(folder) else ()
    return (page for page in found if not page.name.startswith(own_folder.TEMPORARY))


def _label(folder: Path, key: str) -> tuple[str, str]:
    """The dataset that a file is of, and its name there; "" where nothing says it."""
    label = ""
    with suppress(OSError, UnicodeDecodeError):
        label = (folder / own_folder.LABELS / key).read_text()
    dataset, _, name = label.partition("\n")
    return dataset, name


def _described(folder: Path, page: PageFile) -> str:
    label = "/".join(filter(None, _label(folder, page.key))) or f"a file {page.key}"
    start, _, stop = page.name.partition("-")
    part = f", bytes {int(start):,} to {int(stop):,}" if stop else ""
    return f"{label}{part} ({page.path})"
