"""The one client of buckets: Google's, Amazon's, Azure's, what speaks as they do, and memory.

Whatever a URL names is asked through obstore, on an event loop in a thread of this process, so that
a wait ends with Ctrl-C. `Request` decides what is asked again. Neither the loop nor connections
live on in a forked process, which is refused.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.threads import in_background
from jaxdata.storage.credentials import said_of_services, settings_of
from jaxdata.storage.patience import LEAST_RATE, Done, Failed, Request, Short

MOST_WHOLE = 2**26
"""bytes of an object that is written by one request; a larger one is written in parts"""
_PART = 2**24  # at least: there are 10,000 at most
_MOST_PARTS = 10_000
_PARTS_AT_ONCE = 3
_PAGE = 1000
_OF_PARTS = {"max_retries": 10, "retry_timeout": timedelta(seconds=180)}
"""else all parts would be sent again for one that fails"""
_NONE = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
_CLIENT = {
    "allow_http": True,
    "connect_timeout": "10s",
    "timeout": f"{MOST_WHOLE // LEAST_RATE}s",
}
_AT_ONCE = 64
_MOST_SAID = 300
_STATUS = re.compile(r"status code: (\d+)")

Queue = Literal["reading", "ahead", "writing"]
"""What nobody waits for yet has a queue of its own, and what is written."""
_process: int | None = None
_stores: dict[tuple[Any, ...], Any] = {}
_loop: asyncio.AbstractEventLoop | None = None
_queues: dict[Queue, asyncio.Semaphore] = {}
_starting = threading.Lock()


class Facts(NamedTuple):
    """What is known of an object before it is read.

    Attributes:
        size: bytes.
        tag: differs when the content does: its ETag.
        modified: when it was written, in ns since 1970; 0 if that is unknown.
        version: what the bucket calls this writing of it; None where the tag says that.
    """

    size: int
    tag: str
    modified: int = 0
    version: str | None = None


class Found(NamedTuple):
    """An object, or a part of it."""

    facts: Facts
    value: bytes


def refuse_fork() -> None:
    """Raise DatasetError in a forked copy of a process that asked a bucket."""
    global _process
    if _process is None:
        _process = os.getpid()
    if _process != os.getpid():
        raise DatasetError(
            "remote data cannot be read in a forked process: start workers with 'spawn' "
            "(torch: DataLoader(multiprocessing_context='spawn'))"
        )


def get(url: str, start: int = 0, stop: int | None = None, queue: Queue = "reading") -> Request:
    """Ask for an object, or for its bytes `[start, stop)`: the answer is `Found`, or None."""
    store, name = _opened(url)
    part = None if stop is None else slice(start, stop)
    options: dict[str, Any] = {} if part is None else {"range": (start, stop)}

    async def ask() -> Found | None:
        try:
            got = await _obstore().get_async(store, name, options=options)
            facts, value = _facts(got.meta), bytes(await got.bytes_async())
        except FileNotFoundError:
            return None
        if part is not None and len(value) < part.stop - part.start:
            if facts.size < part.stop:
                raise Failed(f"it has {facts.size:,} bytes", 416)
            raise Short(f"{len(value):,} bytes came, not {part.stop - part.start:,}")
        return Found(facts, value)

    return _request(ask, url, "read", queue, part)


def look(url: str) -> Facts | None:
    """The facts of an object; None if there is none."""
    store, name = _opened(url)

    async def ask() -> Facts | None:
        try:
            return _facts(await _obstore().head_async(store, name))
        except FileNotFoundError:
            return None

    found: Facts | None = _request(ask, url, "read").result() if name else None
    return found


def listed(prefix: str) -> Iterator[tuple[str, Facts]]:
    """The URLs that begin with a prefix, with their facts, in no order."""
    store, name = _opened(prefix)
    root = prefix.removesuffix(name)
    # A prefix of obstore's ends where a folder does.
    folder, _, begin = name.rpartition("/")
    wanted = f"{folder}/{begin}" if folder else begin
    stream, place, seen = None, 0, 0

    async def page() -> Any:
        nonlocal stream, place
        begun, stream = stream, None
        if begun is None:  # at first, and after an error
            begun, place = _obstore().list(store, folder or None, chunk_size=_PAGE), 0
        found = await anext(begun, None)
        stream = begun
        return found

    while (some := _request(page, prefix, "listed").result()) is not None:
        for one in some:
            place += 1
            if place > seen:
                seen = place
                if one["path"].startswith(wanted):
                    yield root + one["path"], _facts(one)


def put(url: str, data: Any, mode: Facts | Literal["create", "overwrite"] = "overwrite") -> bool:
    """Write an object, if it is still the one with these facts, or if there is none to `create`.

    Returns:
        Whether it was written. An answer that was lost may hide that it was.
    """
    store, name = _opened(url)
    how: Any = mode
    if isinstance(mode, Facts):
        how = {"e_tag": mode.tag} | ({"version": mode.version} if mode.version else {})
    refused = (_obstore().exceptions.AlreadyExistsError, _obstore().exceptions.PreconditionError)

    async def ask() -> bool:
        try:
            await _obstore().put_async(store, name, data, mode=how, use_multipart=False)
        except refused:
            return False
        return True

    written: bool = _request(ask, url, "written", "writing").result()
    return written


def put_parts(url: str, size: int, pieces: Callable[[int], Iterable[Any]]) -> None:
    """Write an object of any size: `pieces(size)` gives it in parts of this size."""
    store, name = _opened(url, _OF_PARTS)
    part = max(_PART, -(-size // _MOST_PARTS))
    how = {"use_multipart": True, "chunk_size": part, "max_concurrency": _PARTS_AT_ONCE}

    async def ask() -> None:
        await _obstore().put_async(store, name, iter(pieces(part)), **how)

    _request(ask, url, "written", "writing").result()


def delete(urls: list[str]) -> None:
    """Remove objects of a bucket, by one request where it takes one; each may be absent."""
    if not urls:
        return
    store, _ = _opened(urls[0])
    names = [_opened(url)[1] for url in urls]

    async def ask() -> None:
        try:
            await _obstore().delete_async(store, names)
        except FileNotFoundError:  # somebody else deleted one: the others are left
            for name in names:
                with suppress(FileNotFoundError):
                    await _obstore().delete_async(store, name)

    _request(ask, urls[0], "written", "writing").result()


def _opened(url: str, retries: dict[str, Any] = _NONE) -> tuple[Any, str]:
    """Obstore's store of the bucket of a URL, and the name of the object in it."""
    refuse_fork()
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        bucket, name = "", rest
    else:
        bucket, _, name = rest.partition("/")
    key = (scheme, bucket, retries is _NONE, *(said_of_services() if bucket else ()))
    if key not in _stores:
        _stores[key] = _open(scheme, bucket, retries)
    return _stores[key], name


def _open(scheme: str, bucket: str, retries: dict[str, Any]) -> Any:
    library = _obstore()
    if scheme == "memory":
        return library.store.MemoryStore()
    kinds = library.store
    kind = {"gs": kinds.GCSStore, "s3": kinds.S3Store, "az": kinds.AzureStore}[scheme]
    url = f"{scheme}://{bucket}"
    try:
        return kind(bucket, **settings_of(url), client_options=_CLIENT, retry_config=retries)
    except library.exceptions.BaseError as error:
        raise InputError(f"{url} cannot be opened: {_said(error)}") from None


def _request(
    ask: Callable[[], Coroutine[Any, Any, Any]],
    url: str,
    done: Done,
    queue: Queue = "reading",
    part: slice | None = None,
) -> Request:
    return Request(lambda: _sent(ask, queue), url, part, done)


def _sent(ask: Callable[[], Coroutine[Any, Any, Any]], queue: Queue) -> Future[Any]:
    """Have the thread of this process that asks buckets ask."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            for each in ("reading", "ahead", "writing"):
                _queues[each] = asyncio.Semaphore(_AT_ONCE)
            in_background(partial(_run, _loop), name="jaxdata-obstore", wake=partial(_end, _loop))
    return asyncio.run_coroutine_threadsafe(_translated(ask, _queues[queue]), _loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))


def _end(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)


async def _translated(ask: Callable[[], Coroutine[Any, Any, Any]], queue: asyncio.Semaphore) -> Any:
    """An answer; raises `Failed` for what obstore raises."""
    async with queue:
        try:
            return await ask()
        except (FileNotFoundError, ValueError, _obstore().exceptions.BaseError) as error:
            said = _said(error)
            if code := _STATUS.search(said):
                said, status = said[code.start(1) :].partition("<")[0], int(code[1])
                raise Failed(said[:_MOST_SAID].rstrip(".: "), status) from None
            broken = 0 if "HTTP error" in said else 416 if "Invalid range" in said else None
            raise Failed(said.rpartition(" - ")[2][:_MOST_SAID].rstrip(".: "), broken) from None


def _said(error: Exception) -> str:
    return " ".join(str(error).partition("Debug source")[0].split())


def _obstore() -> Any:
    import obstore
    import obstore.exceptions
    import obstore.store

    return obstore


def _facts(said: Mapping[str, Any]) -> Facts:
    modified = int(said["last_modified"].timestamp() * 1000) * 10**6
    return Facts(said["size"], said["e_tag"] or "", modified, said["version"])
