"""Objects of Google's and Amazon's stores, and of services like Amazon's, through obstore.

tensorstore, which reads datasets, knows neither the size of an object nor uploads in pieces.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from jaxdata.base.errors import DatasetError, InputError, MissingExtra
from jaxdata.base.threads import in_background
from jaxdata.storage.kvstores import FORKED
from jaxdata.storage.objects.bucket_settings import said_of_services, settings_of
from jaxdata.storage.objects.contract import Facts, changed
from jaxdata.storage.patience import Request
from jaxdata.storage.refusals import Done

_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}
"""beyond these few tries `Request` tries again, and says so"""
_PAGE = 1000
_MOST_SAID = 300
_STATUS = re.compile(r"status code: (\d+)")
_STATUSES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
_PASSING = (408, 425, 429, *range(500, 600))
_opened: dict[tuple[Any, ...], Any] = {}
_loops: dict[int, asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


class Bucket:
    """See `Place`."""

    def look(self, url: str) -> Facts | None:
        store, name = open_bucket(url)
        if not name:  # a whole bucket
            return None

        async def head() -> Facts | None:
            try:
                return _facts(await library().head_async(store, name))
            except FileNotFoundError:
                return None

        found: Facts | None = answer(head, url)
        return found

    def listed(self, prefix: str) -> Iterator[tuple[str, Facts]]:
        store, name = open_bucket(prefix)
        root = prefix.removesuffix(name)
        # A prefix of obstore's ends where a folder does.
        folder, _, begin = name.rpartition("/")
        stream, place, seen = None, 0, 0

        async def page() -> Any:
            nonlocal stream, place
            begun, stream = stream, None
            if begun is None:  # at first, and after an error
                begun, place = library().list(store, folder or None, chunk_size=_PAGE), 0
            found = await anext(begun, None)
            stream = begun
            return found

        while (some := answer(page, prefix, done="listed")) is not None:
            for one in some:
                place += 1
                if place > seen:
                    seen = place
                    if one["path"].startswith(f"{folder}/{begin}" if folder else begin):
                        yield root + one["path"], _facts(one)

    def read(self, url: str, start: int, stop: int, tag: str) -> bytes:
        if start == stop:
            return b""
        store, name = open_bucket(url)
        wanted: dict[str, Any] = {"range": (start, stop)}
        if tag:
            wanted["if_match"] = tag
        obstore = library()

        async def get() -> _Found:
            try:
                got = await obstore.get_async(store, name, options=wanted)
                if tag and got.meta["e_tag"] != tag:  # of a service that heeds no condition
                    return _Found("changed")
                return _Found("value", bytes(await got.bytes_async()))
            except (FileNotFoundError, obstore.exceptions.PreconditionError):
                return _Found("changed")

        found: _Found = answer(get, url, slice(start, stop))
        if found.state != "value":
            raise changed(url)
        return found.value


class _Found(NamedTuple):
    """A part of an object, as `Request` expects it."""

    state: str
    value: bytes = b""


def open_bucket(url: str, writing: bool = False) -> tuple[Any, str]:
    """Obstore's store of the bucket of a URL, and the name of the object in it."""
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    key = os.getpid(), scheme, bucket, writing, *said_of_services()
    if key not in _opened:
        if any(process != os.getpid() for process, *_ in _opened):
            raise DatasetError(FORKED)
        kind = library().store.GCSStore if scheme == "gs" else library().store.S3Store
        retries = None if writing else _RETRIES  # nobody else tries again what is written
        _opened[key] = kind(bucket, **settings_of(scheme, bucket), retry_config=retries)
    return _opened[key], name


def answer(
    ask: Callable[[], Coroutine[Any, Any, Any]],
    url: str,
    part: slice | None = None,
    done: Done = "read",
) -> Any:
    """What obstore says; other than its own calls, a wait for it ends with Ctrl-C.

    Raises:
        InputError: the bucket refuses, or does not answer; DatasetError where it is written to.
    """
    try:
        return Request(lambda: _sent(ask()), url, part, done).result()
    except DatasetError as error:
        if done == "written":
            raise
        raise InputError(str(error)) from None


def _sent(asked: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Have the thread of this process that asks buckets ask."""
    process = os.getpid()
    with _starting:
        if process not in _loops:
            _loops[process] = loop = asyncio.new_event_loop()
            run, end = partial(_run, loop), partial(_end, loop)
            in_background(run, name="jaxdata-obstore", wake=end)
    return asyncio.run_coroutine_threadsafe(_translated(asked), _loops[process])


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))


def _end(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)


async def _translated(asked: Coroutine[Any, Any, Any]) -> Any:
    """An answer; errors say what tensorstore's would."""
    try:
        return await asked
    except (FileNotFoundError, library().exceptions.BaseError) as error:
        said = " ".join(str(error).partition("Debug source")[0].split())
        code = _STATUS.search(said)
        passing = "HTTP error" in said or (code is not None and int(code[1]) in _PASSING)
        known = _STATUSES.get(int(code[1])) if code else None
        status = "UNAVAILABLE" if passing else known or "UNKNOWN"
        said = said[code.start(1) :].partition("<")[0] if code else said.rpartition(" - ")[2]
        number = f" [http_response_code='{code[1]}']" if code else ""
        raise ValueError(f"{status}: {said[:_MOST_SAID].rstrip('.: ')}{number}") from None


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
