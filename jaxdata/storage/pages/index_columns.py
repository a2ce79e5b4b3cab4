"""Columns of an index: copied to this host once, in parallel parts, and mapped by all processes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

from jaxdata.base.errors import DatasetError
from jaxdata.base.threads import check_stop
from jaxdata.storage.pages.own_folder import COLUMN
from jaxdata.storage.pages.page_cache import page_cache
from jaxdata.storage.pages.page_folder import key_of
from jaxdata.storage.pages.read_counts import READS
from jaxdata.storage.patience import Request

_PART_BYTES = 2**24
_AT_ONCE = 16
"""parts that are under way; so many are in memory"""
_MOST = 1 / 2
"""of the cache: a larger column is read into memory"""
_OTHERS_SECONDS = 0.02
Send = Callable[[int, int], Request]
"""`(first byte, byte after the last)` -> a request for a part, which lies in one object"""


def cached_column(
    url: str, sha256: str, edges: list[int], send: Send, label: str
) -> memoryview | None:
    """The bytes of a column, mapped; None if the cache has no room for it, or takes nothing.

    Args:
        url: of the column, for messages.
        sha256: of its bytes, in hex.
        edges: its first byte, those where another object begins, and the byte after its last.
        send: asks for a part.
        label: what `PageFolder.label` says.

    Raises:
        DatasetError: they are not the bytes that were written.
    """
    cache = page_cache()
    if cache is None or edges[-1] > cache.most * _MOST:
        return None
    name = f"{key_of(sha256)}/{COLUMN}"
    cache.folder.label(sha256, label)
    while (found := cache.folder.get([name])[0]) is None and not cache.folder.refuses:
        if not cache.folder.claims.take(name):
            check_stop()
            time.sleep(_OTHERS_SECONDS)
            continue
        try:
            if not cache.folder.has(name):
                cache.folder.add(name, edges[-1], lambda: _checked(url, sha256, edges, send))
        finally:
            cache.folder.claims.release(name)
    return found


def _checked(url: str, sha256: str, edges: list[int], send: Send) -> Iterator[bytes]:
    """All bytes in order; raises DatasetError if in the end they are not those of the checksum."""
    content = hashlib.sha256()
    for part in _parts(edges, send):
        content.update(part)
        yield part
    if content.hexdigest() != sha256:
        raise DatasetError(
            f"{url} is not what was written: its checksum is another. Restore it from a copy, "
            "or convert the source again"
        )


def _parts(edges: list[int], send: Send) -> Iterator[bytes]:
    """All bytes in order, some parts ahead."""
    waiting = _requests(edges, send)
    sent = list(islice(waiting, _AT_ONCE))
    while sent:
        request = sent.pop(0)
        answer: Any = request.result()
        READS.add(gets=request.tries, bytes=len(answer.value))
        sent += islice(waiting, 1)
        yield answer.value


def _requests(edges: list[int], send: Send) -> Iterator[Request]:
    for begin, end in pairwise(edges):
        for start in range(begin, end, _PART_BYTES):
            yield send(start, min(start + _PART_BYTES, end))
