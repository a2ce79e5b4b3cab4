"""Files that are computed once and kept beside the data, or in the user's cache if that fails.

A kept file is taken only if nobody but the user, root and the owner of the data could have written
it: a cache may be shared by people who do not trust each other.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG, S_IWGRP, S_IWOTH

from jaxdata.base.errors import DatasetError
from jaxdata.storage import LocalStore, Store, cache_root

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
