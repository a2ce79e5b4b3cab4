"""The folder of this host's pages: its name, its marker, and what may be removed of it.

A boot's id belongs to one machine, so hosts that share `$JAXDATA_CACHE` have a folder each. Only
what has a name that the cache gives is ever removed, in a folder that has the marker; links are
never followed.
"""

import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from stat import S_ISDIR, S_ISREG, S_IWGRP, S_IWOTH
from typing import NamedTuple

COLUMN = "column"
"""the only page of a column of an index"""
TEMPORARY = ".tmp-"
"""how the name of a page begins that is being written"""
FOLDERS = (PAGES, LABELS, COUNTS) = "pages", "labels", "counts"
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


class Removed(NamedTuple):
    """Pages and their bytes."""

    pages: int
    bytes: int


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
