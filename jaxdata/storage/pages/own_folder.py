"""The folder of this host's pages: its name, its marker, and what may be removed of it.

A boot's id belongs to one machine, so hosts that share `$JAXDATA_CACHE` have a folder each. Only
what has a name that the cache gives is ever removed, in a folder that has the marker; links are
never followed.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from stat import S_ISDIR, S_IWGRP, S_IWOTH
from typing import NamedTuple

COLUMN = "column"
"""the only page of a column of an index"""
FOLDERS = (PAGES, RUNS, LABELS) = "pages", "runs", "labels"
CLAIMS = "claims"
_KEY, _PAGE, _RUN = "[0-9a-f]{32}", rf"(\d+-\d+|{COLUMN})", r"\d+-[0-9a-f]{8}"
_MARKER = ".jaxdata-"
_SAYS = "jaxdata keeps pages of datasets here, and removes them: jaxdata cache --help\n"
_OUR_FOLDERS = re.compile(rf"{PAGES}(/{_KEY})?|{RUNS}(/{_RUN})?|{LABELS}")
_OUR_FILES = re.compile(
    rf"{CLAIMS}|{re.escape(_MARKER)}[0-9a-f]{{16}}|{PAGES}/{_KEY}/{_PAGE}|{LABELS}/{_KEY}"
    rf"|{RUNS}/{_RUN}(\.lock|/(counts|\.tmp-[0-9a-f]{{16}}|{_KEY}-{_PAGE}))"
)
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE = Path("/etc/machine-id")
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|lustre|gpfs|beegfs\w*|ceph|afs|glusterfs|orangefs|pvfs2|panfs|wekafs|"
    r"fuse\.(sshfs|nfs\S*|glusterfs|ceph\S*|gcsfuse|s3fs|mount\S*-s3|goofys|rclone|juicefs\S*|"
    r"blobfuse\d?|quobyte\S*|mfs|davfs\S*|dfuse)"
)


class Removed(NamedTuple):
    """Pages and their bytes."""

    pages: int = 0
    bytes: int = 0

    def plus(self, pages: int, size: int) -> Removed:
        """These and others."""
        return Removed(self.pages + pages, self.bytes + size)


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
    names = set(os.listdir(folder))  # noqa: PTH208
    if not _markers(names) and names - {*FOLDERS, CLAIMS}:
        raise PermissionError(f"{folder} has files that are not jaxdata's: move it away")
    # Written each time: where old files are purged, it is not to be the first that goes.
    (folder / (_MARKER + _machine())).write_text(_SAYS)
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
        if (folder / name).is_symlink():
            raise PermissionError(f"{folder / name} is a link: remove it")


def is_made(folder: Path, marker: str = "") -> bool:
    """Whether a folder is of pages of this user; with `marker`, whether it has that one."""
    with suppress(OSError):
        found = folder.lstat()
        if S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            return bool(_markers(os.listdir(folder), marker))  # noqa: PTH208
    return False


def other_folders(folder: Path) -> list[Path]:
    """The folders of pages of this user beside this one: of other machines, or of other boots."""
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    named = [each for each in beside if re.fullmatch(rf"{_prefix()}[0-9a-f]{{16}}", each.name)]
    return sorted(each for each in named if each != folder and is_made(each))


def earlier_folders(folder: Path) -> list[Path]:
    """Those that this machine has left when it stopped."""
    return [each for each in other_folders(folder) if is_made(each, _MARKER + _machine())]


def made_pages(pages: Path) -> Iterator[PageFile]:
    """The pages in a folder `pages`, in no order."""
    with suppress(FileNotFoundError), os.scandir(pages) as folders:
        for folder in folders:
            if not folder.is_dir(follow_symlinks=False) or not _is_ours(folder.name, _OUR_FOLDERS):
                continue
            with suppress(FileNotFoundError), os.scandir(folder.path) as files:
                yield from _pages_in(folder.name, files)


def _pages_in(key: str, files: Iterator[os.DirEntry[str]]) -> Iterator[PageFile]:
    for each in files:
        if each.is_file(follow_symlinks=False) and _is_ours(f"{key}/{each.name}", _OUR_FILES):
            with suppress(FileNotFoundError):
                yield PageFile(each.path, key, each.name, each.stat(follow_symlinks=False))


def _is_ours(name: str, names: re.Pattern[str]) -> bool:
    return names.fullmatch(f"{PAGES}/{name}") is not None


def is_run(name: str) -> bool:
    """Whether a folder below `runs` has the name of one that a process made."""
    return re.fullmatch(_RUN, name) is not None


def remove_made(folder: Path, below: str = "") -> Removed:
    """Remove what jaxdata made in a folder, and the folder, unless others have something there.

    Args:
        folder: the folder of a host's pages, or one in that.
        below: its own name in that, with a `/` at its end; "" for the folder of the pages itself.
    """
    removed = Removed()
    with suppress(OSError), _opened(folder) as handle:
        removed = _remove(handle, below)
        folder.rmdir()
    return removed


def _remove(folder: int, below: str) -> Removed:
    with os.scandir(folder) as entries:  # the marker goes last: who is killed can be followed
        found = sorted(entries, key=lambda each: each.name.startswith(_MARKER))
    removed = Removed()
    for each in found:
        name = below + each.name
        with suppress(OSError):
            if each.is_dir(follow_symlinks=False) and _OUR_FOLDERS.fullmatch(name):
                with _opened(each.name, folder) as inner:
                    removed = removed.plus(*_remove(inner, f"{name}/"))
                os.rmdir(each.name, dir_fd=folder)
            elif each.is_file(follow_symlinks=False) and _OUR_FILES.fullmatch(name):
                size = each.stat(follow_symlinks=False).st_size
                os.unlink(each.name, dir_fd=folder)
                removed = removed.plus(*((1, size) if name.startswith(f"{PAGES}/") else (0, 0)))
    return removed


@contextmanager
def _opened(folder: str | Path, inside: int | None = None) -> Iterator[int]:
    """A descriptor of a folder that is no link."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inside)
    try:
        yield handle
    finally:
        os.close(handle)


def network_file_system(folder: Path) -> str | None:
    """The type of the network file system that a folder lies on; None for a disk of this host.

    >>> network_file_system(Path("/proc"))
    """
    path, best, kind = os.path.realpath(folder), "", ""
    with suppress(OSError):
        for line in _MOUNTS.read_text(errors="surrogateescape").splitlines():
            mount, _, rest = line.partition(" - ")
            point = re.sub(r"\\(\d{3})", lambda one: chr(int(one[1], 8)), mount.split()[4])
            if f"{path}/".startswith(f"{point.rstrip('/')}/") and len(point) >= len(best):
                best, kind = point, rest.split()[0]
    return kind if _NETWORK.fullmatch(kind) else None


def _markers(names: Iterable[str], marker: str = "") -> list[str]:
    pattern = re.escape(marker) or rf"{re.escape(_MARKER)}[0-9a-f]{{16}}"
    return [name for name in names if re.fullmatch(pattern, name)]


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
