"""Small files wherever they are, on this machine or behind a URL: configs, lists, tokenizers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.storage.local import LocalStore
from jaxdata.storage.maps import open_plain
from jaxdata.storage.objects import is_url, plain_path, public_url, read_object
from jaxdata.storage.remote import RemoteStore

MOST_SMALL = 2**30
"""bytes of one"""
_PIECE = 2**20
_OF_SERVERS = ("http://", "https://")


def read_small(given: str | os.PathLike[str]) -> bytes:
    """The content of a file or object.

    Raises:
        OSError: there is none, or it cannot be read.
        InputError, DatasetError: it cannot be had from its bucket or server, or is too large.
    """
    path = plain_path(given)
    if not is_url(path):
        return _read(Path(path).expanduser().open("rb"), path)
    if path.startswith(_OF_SERVERS):
        data = read_object(path, MOST_SMALL)
    else:
        folder, _, name = path.rpartition("/")
        store = RemoteStore(folder)
        if (data := store.read(name, MOST_SMALL)) is None:
            store.check_bucket()
    if data is None:
        raise FileNotFoundError(2, "there is no such object", public_url(path))
    return data


def read_plain(path: Path) -> bytes:
    """The content of a file of this machine.

    Raises:
        OSError: there is none, or it cannot be read.
        InputError: it is a device or a pipe, which may never end, or too large.
    """
    try:
        return _read(open_plain(path), str(path))
    except DatasetError:
        raise InputError(f"{path} is a device or a pipe; expected a file") from None


def _read(opened: BinaryIO | FileIO, path: str) -> bytes:
    pieces, size = [], 0
    with opened as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            pieces.append(piece)
            if size > MOST_SMALL:
                raise InputError(
                    f"{path} has more than {MOST_SMALL:,} bytes: it is not what is expected there"
                )
    return b"".join(pieces)


def write_small(given: str | os.PathLike[str], data: bytes) -> None:
    """Write a file or object, whole or not at all; folders are made.

    Raises:
        InputError: nothing can be written there.
    """
    path = plain_path(given)
    if path.startswith(_OF_SERVERS):
        raise InputError(f"{path}: nothing is written to web servers; give a path, gs:// or s3://")
    if is_url(path):
        folder, _, name = path.rpartition("/")
        RemoteStore(folder).write(name, data)
    else:
        whole = Path(path).expanduser()
        LocalStore(whole.parent).write(whole.name, data)


@contextmanager
def local_copy(given: str, endings: Collection[str]) -> Iterator[Path]:
    """The path of a file or folder; of a URL, that of a copy, which is there for a while.

    Of a folder in a bucket, files with one of some endings are copied, not what lies deeper.

    Raises:
        InputError: there is nothing behind the URL.
    """
    if not is_url(given):
        yield Path(plain_path(given)).expanduser()
        return
    name = given.rstrip("/").rpartition("/")[2]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, name)
        try:
            path.write_bytes(read_small(given.rstrip("/")))
        except FileNotFoundError:
            _copy_folder(given.rstrip("/"), path, endings)
        yield path


def _copy_folder(url: str, path: Path, endings: Collection[str]) -> None:
    names = [] if url.startswith(_OF_SERVERS) else RemoteStore(url).list()
    if not names:
        raise InputError(f"{url}: there is no such object, nor any below {url}/")
    path.mkdir()
    for name in names:
        if "/" not in name and Path(name).suffix in endings:
            (path / name).write_bytes(read_small(f"{url}/{name}"))
