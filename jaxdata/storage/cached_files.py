"""Files that are kept on this host: computed once, or copied page by page; listed and removed.

What is computed lies beside the data, or in the user's cache if that fails. A kept file is taken
only if nobody but the user, root and the owner of the data could have written it: a cache may be
shared by people who do not trust each other. What a page cache holds is seen here from outside, by
file; only `clear` and `verify` remove a page.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG, S_IWGRP, S_IWOTH
from typing import NamedTuple

from jaxdata.base.errors import DatasetError
from jaxdata.base.progress import Advance
from jaxdata.storage import LocalStore, Store, cache_root
from jaxdata.storage.pages import page_cache
from jaxdata.storage.pages.page_cache import PageFile, is_whole, limit_bytes

MANIFEST = "dataset.json"
"""The manifest of a dataset: whoever owns it owns the data."""
CACHED_ARRAYS = ".sealed.arrays"
"""Ending of files of arrays. They are mapped, so only `jaxdata verify` reads their checksum."""
_FOLDERS = ("plans", "encoders")
_KEPT = re.compile(
    rf"(plans|encoders)/(\d+/)?[\w-]*[0-9a-f]{{32}}(\.npy|\.json|\.datasets\.jsonl|{re.escape(CACHED_ARRAYS)})"
)
"""Names in the user's cache: whatever else lies there is not ours to remove."""


def find_kept(name: str, beside: Store | None) -> Iterator[tuple[Store, str]]:
    """Where a file of this name may be that can be trusted: stores, and its names in them."""
    for store in _stores(beside):
        for each in _names(name):
            if not store.local or _can_be_trusted(f"{store.url}/{each}", beside):
                yield store, each


def keep(name: str, beside: Store | None, write: Callable[[Store, str], None]) -> tuple[Store, str]:
    """Write a file called `name`; returns the store, and the name in it.

    It goes `beside` the data if that can be written, else to the user's cache, and it never takes
    the place of another user's file. `write(store, name)` writes it.

    Raises:
        OSError, DatasetError: it can be written nowhere.
    """
    assert _KEPT.fullmatch(name), f"{name}: `jaxdata cache clear --all` has to know such names"
    *stores, last = _stores(beside)
    for store in stores:
        with suppress(OSError, DatasetError):
            return store, _write(store, name, beside, write)
    return last, _write(last, name, beside, write)


def kept_files(root: Path) -> dict[Path, int]:
    """The kept files of this user in a cache, and their bytes; nothing behind a link."""
    real, own = Path(os.path.realpath(root)), os.getuid()
    found = {}
    for folder in (real / kind / user for kind in _FOLDERS for user in ("", str(own))):
        if folder.is_dir() and os.path.realpath(folder) == str(folder):
            for path in folder.iterdir():
                seen = path.lstat()
                named = _KEPT.fullmatch(path.relative_to(real).as_posix())
                if named and S_ISREG(seen.st_mode) and seen.st_uid == own:
                    found[path] = seen.st_size
    return found


def _stores(beside: Store | None) -> list[Store]:
    user = LocalStore(cache_root())
    return [user] if beside is None else [beside, user]


def _names(name: str) -> tuple[str, str]:
    """The name of a file, and where it is if the file of that name is another user's."""
    folder, _, file = name.rpartition("/")
    return name, f"{folder}/{os.getuid()}/{file}".removeprefix("/")


def _write(
    store: Store, name: str, beside: Store | None, write: Callable[[Store, str], None]
) -> str:
    if not store.local:
        write(store, name)
        return name
    root = Path(store.url)
    first, own = _names(name)
    free = not (root / first).exists() or _can_be_trusted(f"{root}/{first}", beside)
    chosen = first if free else own
    write(store, chosen)
    path = root / chosen
    with suppress(OSError):  # of file systems without modes
        path.chmod(path.stat().st_mode & ~(S_IWGRP | S_IWOTH))
    return chosen


def _can_be_trusted(path: str, beside: Store | None) -> bool:
    """Whether only those can have written a file who may decide what the data is."""
    found = _stat(path)
    if found is None or not S_ISREG(found.st_mode):
        return False
    owners, writers = {os.getuid(), 0}, 0
    data = _stat(f"{beside.url}/{MANIFEST}") if beside is not None and beside.local else None
    if data is not None:
        owners.add(data.st_uid)
        same_group = data.st_gid == found.st_gid
        writers = data.st_mode & (S_IWOTH | (S_IWGRP if same_group else 0))
    return found.st_uid in owners and not found.st_mode & (S_IWGRP | S_IWOTH) & ~writers


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 (Path takes longer than the call)
    except OSError:
        return None


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
    folder, kept = page_cache.place_of(root), kept_files(root)
    files: dict[str, CachedFile] = {}
    for page in _pages(folder):
        file = files.setdefault(page.key, CachedFile(page.key, *_label(folder, page.key)))
        file.pages, file.bytes = file.pages + 1, file.bytes + page.found.st_size
        file.column |= page.name == page_cache.COLUMN
    return Inventory(
        root,
        limit_bytes(root),
        [files[key] for key in sorted(files)],
        len(kept),
        sum(kept.values()),
        len(page_cache.other_folders(folder)),
    )


class Removed(NamedTuple):
    """Files and their bytes."""

    files: int
    bytes: int


def clear(*, kept: bool = False) -> tuple[Removed, Removed]:
    """Remove the pages, and with `kept` also kept plans; returns what of both was removed.

    What is mapped stays valid: a run under way fetches the rest again as it needs it.
    """
    root = cache_root()
    folder = page_cache.place_of(root)
    gone = page_cache.remove_earlier(folder)
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
    folder = page_cache.place_of(cache_root())
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
    found = page_cache.made_pages(folder / page_cache.PAGES) if page_cache.markers(folder) else ()
    return (page for page in found if not page.name.startswith(page_cache.TEMPORARY))


def _label(folder: Path, key: str) -> tuple[str, str]:
    """The dataset that a file is of, and its name there; "" where nothing says it."""
    label = ""
    with suppress(OSError, UnicodeDecodeError):
        label = (folder / page_cache.LABELS / key).read_text()
    dataset, _, name = label.partition("\n")
    return dataset, name


def _described(folder: Path, page: PageFile) -> str:
    label = "/".join(filter(None, _label(folder, page.key))) or f"a file {page.key}"
    start, _, stop = page.name.partition("-")
    part = f", bytes {int(start):,} to {int(stop):,}" if stop else ""
    return f"{label}{part} ({page.path})"
