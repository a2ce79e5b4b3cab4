"""Objects of Google's and Amazon's stores, and of services like Amazon's, through obstore.

tensorstore, which reads datasets, knows neither the size of an object nor uploads in pieces.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from jaxdata.errors import DatasetError, MissingExtra
from jaxdata.format.storage.kvstores import FORKED
from jaxdata.format.storage.objects.bucket_settings import said_of_services, settings_of
from jaxdata.format.storage.objects.contract import Facts, changed, unreadable

_opened: dict[tuple[Any, ...], Any] = {}


class Bucket:
    """See `Place`."""

    def look(self, url: str) -> Facts | None:
        store, name = open_bucket(url)
        if not name:  # a whole bucket
            return None
        try:
            return _facts(library().head(store, name))
        except FileNotFoundError:
            return None
        except Exception as error:  # obstore's have no base that is public
            raise unreadable(url, reason(error)) from None

    def listed(self, prefix: str) -> Iterator[tuple[str, Facts]]:
        store, name = open_bucket(prefix)
        root = prefix.removesuffix(name)
        # A prefix of obstore's ends where a folder does.
        folder, _, begin = name.rpartition("/")
        try:
            for some in library().list(store, folder or None):
                for one in some:
                    if one["path"].startswith(f"{folder}/{begin}" if folder else begin):
                        yield root + one["path"], _facts(one)
        except Exception as error:
            raise unreadable(prefix, reason(error)) from None

    def read(self, url: str, start: int, stop: int, tag: str) -> bytes:
        if start == stop:
            return b""
        store, name = open_bucket(url)
        wanted: dict[str, Any] = {"range": (start, stop)}
        if tag:
            wanted["if_match"] = tag
        obstore = library()
        try:
            got = obstore.get(store, name, options=wanted)
            if tag and got.meta["e_tag"] != tag:  # of a service that heeds no condition
                raise changed(url)
            return bytes(got.bytes())
        except (FileNotFoundError, obstore.exceptions.PreconditionError):
            raise changed(url) from None
        except obstore.exceptions.BaseError as error:
            raise unreadable(url, reason(error)) from None


def open_bucket(url: str) -> tuple[Any, str]:
    """Obstore's store of the bucket of a URL, and the name of the object in it."""
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    key = os.getpid(), scheme, bucket, *said_of_services()
    if key not in _opened:
        if any(process != os.getpid() for process, *_ in _opened):
            raise DatasetError(FORKED)
        kind = library().store.GCSStore if scheme == "gs" else library().store.S3Store
        _opened[key] = kind(bucket, **settings_of(scheme, bucket))
    return _opened[key], name


def library() -> Any:
    """obstore; raises MissingExtra."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise MissingExtra("buckets", "obstore") from None
    return obstore


def _facts(said: Mapping[str, Any]) -> Facts:
    modified = int(said["last_modified"].timestamp() * 1000) * 10**6
    return Facts(said["size"], said["e_tag"] or "", modified)


def reason(error: Exception) -> str:
    """What the library says, in a line."""
    return " ".join(str(error).partition("Debug source")[0].split())[:300].rstrip(". ")
