"""URLs and paths: which is which, and what of a URL may be shown."""

import os
import re
from pathlib import Path

from jaxdata.base.errors import InputError

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
