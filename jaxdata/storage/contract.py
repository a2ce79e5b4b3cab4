"""What every place that can hold a dataset must do, and its name: a URL or a path.

A URL is told from a path here, and what of it may be shown.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.ragged import AnyArray, ByteRanges, Ints

Fence = Callable[[], None]
"""Raises an error where this process may not write any more."""
Kind = tuple[type[np.generic] | None, int | None]
"""(dtype, entries) of an array; None for any"""
ANY: Kind = None, None
MOST_READ = 2**30
"""bytes of a file that is read whole; descriptions of a million inputs take a tenth"""


class Store(Protocol):
    """Named bytes and arrays below one root."""

    url: str
    local: bool
    """Whether reads are plain memory maps, safe in a forked process."""

    def read(self, name: str, most: int | None = MOST_READ) -> bytes | None:
        """The whole content, or None if there is no such name.

        Raises:
            DatasetError: it has more than `most` bytes, or is no plain file.
        """

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name, or, on this machine, anything else."""

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        """Bytes `[start[k], stop[k])` of the file `names[file[k]]`, for every *k*.

        If the files are local, these are ranges of their memory maps, as long as a process has room
        for another map; then copies.

        Raises:
            DatasetError: a file is missing, or ends before a range does.
        """

    def scan(self, name: str) -> Iterator[memoryview | bytes]:
        """The content from beginning to end, in buffers; each is valid until the next one.

        Nothing is mapped: if the disk cannot read the file, this raises OSError, whereas touching
        a mapped page would end the process.

        Raises:
            DatasetError: the file is missing.
        """

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write the whole content atomically: a reader sees all of it or the old content."""

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the content by `change(content)`; safe between processes.

        None is a name that does not exist; in a bucket, one that is about to is empty for a moment.
        `change` is called again if another process was faster; if it raises, nothing changes.
        """

    def fenced(self, fence: Fence) -> "Store":
        """The same store, which calls `fence()` before it changes anything, at the last moment.

        `fence` raises where this process may not write any more. What it lets pass is not delayed
        beyond a write by whoever may write then: local files change under a lock that `update` also
        takes, objects of a bucket are written only if nobody else has changed them since.
        """

    def create(self, name: str) -> AbstractContextManager[Path]:
        """A local path to write to with any library; published if the block ends without error."""

    def list(self, prefix: str = "") -> list[str]:
        """Sorted names that begin with `prefix`."""

    def delete(self, prefix: str) -> None:
        """Remove one name, or with a final `/` everything below it; it may be absent."""

    def sweep(self, *, below: bool = True) -> None:
        """Remove files that killed processes were writing; those of others stay.

        With `below` in all folders below, too.
        """

    def read_array(self, name: str, kind: Kind = ANY, sha256: str | None = None) -> AnyArray:
        """The array, read-only; a view of the mapped file if that is local, large and all of it.

        With the `sha256` of its values, an array of a bucket is copied to this host and mapped.

        Raises:
            DatasetError: it is missing, damaged, or not of this kind.
        """


def missing(url: str) -> DatasetError:
    """The error for a missing file."""
    return DatasetError(
        f"{url} is missing: the dataset is incomplete; restore the file or convert again. If "
        "documents were deleted (jaxdata delete) while this process reads it, start it again"
    )


class StorageError(DatasetError, InputError):
    """A bucket or web server does not do what is asked: of a dataset, or of an input."""


class Truncated(StorageError):
    """A file ends before bytes that are asked for."""


def truncated(url: str, stop: int) -> DatasetError:
    """The error for a file that ends before the index says."""
    return Truncated(
        f"{url} ends before byte {stop}: the file is truncated; restore it or convert again"
    )


def changed(url: str) -> StorageError:
    """The error for an object that is not the one that this process began to read."""
    return StorageError(
        f"{url} changed while it was read: let it be as it is, or write new data under a new name; "
        "then run the same command again, or start again from the last checkpoint"
    )


def too_large(url: str, size: int, most: int) -> DatasetError:
    """The error for a file that is larger than any of its kind."""
    return DatasetError(
        f"{url} has {size:,} bytes, expected at most {most:,}: it is not what its name says; "
        "restore it from a copy"
    )


def unwritable(path: str | os.PathLike[str], error: Exception) -> OSError:
    """The OSError for a library's own error about a file that it cannot write.

    >>> unwritable("a", RuntimeError("write() failed: No space left on device"))
    OSError(28, 'No space left on device')
    """
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.strerror(number) in str(error):
            return OSError(number, os.strerror(number), os.fspath(path))
    return OSError(errno.EIO, f"cannot be written ({error})", os.fspath(path))


BUCKETS = ("gs", "s3", "az")
"""schemes of the URLs of buckets"""
WEB = ("http://", "https://")
_OF_OBJECTS = tuple(f"{scheme}://" for scheme in (*BUCKETS, "memory"))


def is_url(given: str | os.PathLike[str]) -> bool:
    """Tell whether this is a URL of an object, and not a path on this machine.

    >>> [is_url(given) for given in ("gs://bucket/a", "a/b", "file:///a", "C:/a")]
    [True, False, False, False]
    """
    return bool(re.match(r"(?!file:)[a-z][a-z0-9+.-]*://", os.fspath(given)))


def plain_path(given: str | os.PathLike[str]) -> str:
    """A path or URL as text, `file://` without that.

    >>> plain_path("file:///data/a"), plain_path("gs://b/a")
    ('/data/a', 'gs://b/a')
    """
    return os.fspath(given).removeprefix("file://")


def local_path(given: str | os.PathLike[str], remedy: str) -> Path:
    """A path on this machine.

    Raises:
        InputError: it is a URL, which would become a folder named `gs:`.
    """
    if is_url(given):
        raise InputError(f"{given!r} is a URL, expected a path on this machine: {remedy}")
    return Path(plain_path(given)).expanduser()


def bucket_of(url: str) -> str:
    """The URL of a bucket, or of a web server.

    >>> bucket_of("gs://bkt/ds/a")
    'gs://bkt'
    """
    return "/".join(url.split("/")[:3])


def bare_url(url: str) -> str:
    """A URL without name and password, query and fragment; paths stay.

    >>> bare_url("https://me:pass@host/a.jsonl?X-Amz-Signature=ab12")
    'https://host/a.jsonl'
    """
    scheme, mark, rest = url.partition("://")
    if not mark or url.startswith(_OF_OBJECTS):  # a ? in the name of an object is part of it
        return url
    host, slash, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def public_url(url: str) -> str:
    """A URL as messages may show it: without name and password, and what its query says.

    >>> public_url("https://me:pass@host/a.jsonl?X-Amz-Signature=ab12")
    'https://host/a.jsonl?…'
    """
    bare = bare_url(url)
    return f"{bare}?…" if "?" in url[len(bare) :] else bare
