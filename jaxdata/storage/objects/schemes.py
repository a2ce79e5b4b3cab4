"""Which place has the object of a URL."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import import_module

from jaxdata.base.errors import InputError
from jaxdata.storage.objects.contract import Place
from jaxdata.storage.objects.public_urls import public_url

_PACKAGE = __name__.rpartition(".")[0]
_PLACES = {
    "gs": "bucket:Bucket",
    "s3": "bucket:Bucket",
    "http": "web:Web",
    "https": "web:Web",
    "memory": "memory:Memory",
}


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


def place_of(url: str) -> Place:
    """The place that has the object of a URL; raises InputError for one of another kind."""
    scheme = url.partition("://")[0]
    if scheme not in _PLACES:
        raise InputError(
            f"cannot read {public_url(url)!r}: expected a path on this machine, gs://, s3:// or https://"
        )
    return _open(scheme)


@cache
def _open(scheme: str) -> Place:
    module, name = _PLACES[scheme].split(":")
    made: Place = getattr(import_module(f"{_PACKAGE}.{module}"), name)()
    return made


def read_object(url: str, most: int) -> bytes | None:
    """All of an object, None if there is none.

    Raises:
        InputError: it has more than `most` bytes, or cannot be read.
    """
    place = place_of(url)
    if (facts := place.look(url)) is None:
        return None
    if facts.size > most:
        raise InputError(f"{public_url(url)} has {facts.size:,} bytes, expected at most {most:,}")
    return place.read(url, 0, facts.size, facts.tag)
