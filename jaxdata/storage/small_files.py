"""Small files wherever they are, on this machine or behind a URL: configs, lists, tokenizers."""

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.storage import client
from jaxdata.storage.contract import WEB, is_url, plain_path, public_url
from jaxdata.storage.local import LocalStore, open_plain
from jaxdata.storage.ranges import Part
from jaxdata.storage.remote import RemoteStore

MOST_SMALL = 2**30
"""bytes of one"""


def read_small(given: str | os.PathLike[str]) -> bytes:
    """The content of a file or object.

    Raises:
        OSError: there is none, or it cannot be read.
        InputError, DatasetError: it cannot be had from its bucket or server, or is too large.
    """
    path = plain_path(given)
    if not is_url(path):
        with Path(path).expanduser().open("rb") as file:
            return _read(file, path)
    facts = client.look(path)
    if facts is None:
        RemoteStore(path).check_bucket()
        raise FileNotFoundError(2, "there is no such object", public_url(path))
    _check(facts.size, public_url(path))
    return Part(path, 0, facts.size, {path: facts.tag}).data


def read_lines(given: str | os.PathLike[str], named: str, expected: str) -> list[str]:
    """The lines of a text file or object, of which errors say what is `expected`.

    Raises:
        InputError: there is none, it cannot be read, or it is not UTF-8.
    """
    try:
        return read_small(given).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        place = public_url(plain_path(given))
        raise InputError(f"{named} {place} cannot be read ({error}); expected {expected}") from None


def read_plain(path: Path) -> bytes:
    """The content of a file of this machine.

    Raises:
        OSError: there is none, or it cannot be read.
        InputError: it is a device or a pipe, which may never end, or too large.
    """
    try:
        with open_plain(path) as file:
            return _read(file, str(path))
    except DatasetError:
        raise InputError(f"{path} is a device or a pipe; expected a file") from None


def _read(file: IO[bytes], path: str) -> bytes:
    data = file.read(MOST_SMALL + 1)
    _check(len(data), path)
    return data


def _check(size: int, path: str) -> None:
    if size > MOST_SMALL:
        raise InputError(
            f"{path} has more than {MOST_SMALL:,} bytes: it is not what is expected there"
        )


def write_small(given: str | os.PathLike[str], data: bytes) -> None:
    """Write a file or object, whole or not at all; folders are made.

    Raises:
        InputError: nothing can be written there.
    """
    path = plain_path(given)
    if path.startswith(WEB):
        raise InputError(f"{path}: nothing is written to web servers; give a path, gs:// or s3://")
    folder, _, name = path.rpartition("/")
    if is_url(path):
        RemoteStore(folder).write(name, data)
    else:
        LocalStore(Path(path).expanduser().parent).write(name, data)


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
    url = given.rstrip("/")
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, url.rpartition("/")[2])
        try:
            path.write_bytes(read_small(url))
        except FileNotFoundError:
            _copy_folder(url, path, endings)
        yield path


def _copy_folder(url: str, path: Path, endings: Collection[str]) -> None:
    names = [] if url.startswith(WEB) else RemoteStore(url).list()
    if not names:
        raise InputError(f"{url}: there is no such object, nor any below {url}/")
    path.mkdir()
    for name in names:
        if "/" not in name and Path(name).suffix in endings:
            (path / name).write_bytes(read_small(f"{url}/{name}"))
