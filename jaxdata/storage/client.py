"""The one client: of Google's, Amazon's and Azure's buckets, of web servers and of memory.

Whatever a URL names is asked through obstore, which also speaks to what speaks as these do. What
goes wrong is asked again, within limits of time; words say where it takes long or is refused. What
is asked runs on an event loop in a thread of this process, so that a wait ends with Ctrl-C. Neither
the loop nor connections live on in a forked process, which is refused.
"""

import asyncio
import base64
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache, lru_cache, partial
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from jaxdata.base.errors import DatasetError, InputError, log
from jaxdata.base.threads import in_background, waited
from jaxdata.storage import contract
from jaxdata.storage.contract import BUCKETS, WEB, StorageError, Truncated, bucket_of, public_url
from jaxdata.storage.credentials import credentials_of, said_of_services, service_of, settings_of

Ask = Callable[[], Awaitable[Any]]
"""Sends a request once."""
Done = Literal["read", "listed", "written"]
"""What is asked of a bucket."""
Queue = Literal["reading", "ahead", "writing"]
"""What nobody waits for yet has a queue of its own, and what is written."""
_AT_ONCE = 64
MOST_WHOLE = 2**26
"""bytes of an object that is written by one request; a larger one is written in parts"""
_PART = 2**24  # at least: there are 10,000 at most
_MOST_PARTS = 10_000
_PARTS_AT_ONCE = 3
_PAGE = 1000
_NONE = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
_OF_PARTS = {"max_retries": 10, "retry_timeout": timedelta(seconds=180)}
"""else all parts would be sent again for one that fails"""
_CLIENT: dict[str, Any] = {"allow_http": True, "connect_timeout": "10s", "timeout": "128s"}
_READS = _CLIENT | {"read_timeout": "10s"}
"""what is read is asked for again where nothing comes for so long"""
_GONE, _UNMET = (404, 410), (412,)
"""what answers say of what is not there, and of what is not as it must be to be written"""
_MOST_URLS = 64
"""of web servers that are open: each has a client, as its query belongs to it"""
_SAY_FIRST, _SAY = 10.0, 30.0
"""seconds before the first line about a stall, and between lines about a bucket"""
_LIMIT, _SHORT_LIMIT = 600.0, 60.0
"""seconds in which requests may fail; the second where the service has not answered yet, as it may
be another one, or where it refuses what it did before, as credentials are rotated"""
_FIRST_PAUSE, _MOST_PAUSE = 0.05, 5.0
_VARIABLE = "JAXDATA_STORAGE_SECONDS"
_BUSY = (0, 408, 425, 429, *range(500, 600))
_DENIED = (401, 403)
_EXPIRED = ("AccessDenied", "ExpiredToken", "TokenRefreshRequired")
_STATUS = re.compile(r"status code: (\d+ [^:<]*)(?::.*?<Code>(\w+)</Code>)?")
_MOST_SAID = 300
_process: int | None = None
_stores: dict[tuple[Any, ...], Any] = {}
_reached: set[str] = set()
"""buckets whose service has answered this process, whatever it said"""
_allowed: set[tuple[str, Done]] = set()
"""what buckets have done for this process"""
_said: dict[str, float] = {}
"""when it was said last that a bucket is waited for"""


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


def get(url: str, start: int = 0, stop: int | None = None, queue: Queue = "reading") -> "Request":
    """Ask for an object, or for its bytes `[start, stop)`: the answer is `Found`, or None."""
    store, name = _opened(url)
    options = {} if stop is None else {"range": (start, stop)}

    async def ask() -> Found | None:
        try:
            got = await _translated(_obstore().get_async(store, name, options=options))
            value = bytes(await _translated(got.bytes_async()))
        except Failed as error:
            if error.status == 416 and stop is not None:
                raise contract.truncated(public_url(url), stop) from None
            if error.status not in _GONE:
                raise
            return None
        facts = _facts(got.meta)
        if stop is not None and facts.size < stop:
            raise contract.truncated(public_url(url), stop)
        if stop is not None and len(value) < stop - start:  # as some proxies cut answers
            raise Failed(f"{len(value):,} bytes came, not {stop - start:,}")
        return Found(facts, value)

    return Request(ask, public_url(url), queue=queue)


def look(url: str) -> Facts | None:
    """The facts of an object; None if there is none."""
    if url.startswith(WEB):  # what is signed is signed for GET
        try:
            found: Found | None = get(url, 0, 1).result()
        except Truncated:
            return Facts(0, "")
        return found and found.facts
    store, name = _opened(url)
    if not name:
        return None
    said = Request(lambda: _unless(_GONE, _obstore().head_async(store, name)), url).result()
    return said and _facts(said)


def listed(prefix: str) -> Iterator[tuple[str, Facts]]:
    """The URLs that begin with a prefix, with their facts, in order.

    Consoles and Spark mark a folder by an empty object `folder/`, which obstore calls `folder`:
    such an object is left out where others are below it.
    """
    for (url, facts), (following, _) in pairwise(chain(_every(prefix), [("", None)])):
        if facts and (facts.size or not following.startswith(f"{url}/")):
            yield url, facts


def _every(prefix: str) -> Iterator[tuple[str, Facts]]:
    if prefix.startswith(WEB):
        raise InputError(
            f"{public_url(prefix)}: a web server lists no files; give the URL of each, or a list "
            "of them with --set files_from=LIST"
        )
    store, name = _opened(prefix)
    root = prefix.removesuffix(name)
    folder = name.rpartition("/")[0]  # a prefix of obstore's ends where a folder does
    stream, last = None, None

    async def page() -> Any:
        nonlocal stream
        begun, stream = stream, None
        if begun is None:  # at first, and after an error
            begun = _obstore().list(store, folder or None, offset=last, chunk_size=_PAGE)
        found = await _translated(anext(begun, None))
        stream = begun
        return found

    while some := Request(page, prefix, "listed").result():
        for one in some:
            if one["path"].startswith(name.removeprefix("/")):
                yield root + one["path"], _facts(one)
        last = some[-1]["path"]


def put(url: str, data: Any, mode: Facts | Literal["create", "overwrite"] = "overwrite") -> bool:
    """Write an object, if it is still the one with these facts, or if there is none to `create`.

    Returns:
        Whether it was written. An answer that was lost may hide that it was.
    """
    store, name = _opened(url, _CLIENT)
    how: Any = mode
    if isinstance(mode, Facts):
        how = {"e_tag": mode.tag} | ({"version": mode.version} if mode.version else {})

    def ask() -> Awaitable[Any]:
        put = _obstore().put_async(store, name, data, mode=how, use_multipart=False)
        return _unless(_UNMET, put)

    return Request(ask, url, "written", queue="writing").result() is not None


def put_parts(url: str, size: int, pieces: Callable[[int], Iterator[Any]]) -> None:
    """Write an object of any size: `pieces(size)` gives it in parts of this size."""
    store, name = _opened(url, _CLIENT, _OF_PARTS)
    part = max(_PART, -(-size // _MOST_PARTS))
    how = {"use_multipart": True, "chunk_size": part, "max_concurrency": _PARTS_AT_ONCE}

    def ask() -> Awaitable[Any]:
        return _translated(_obstore().put_async(store, name, pieces(part), **how))

    Request(ask, url, "written", queue="writing").result()


def delete(urls: list[str]) -> None:
    """Remove objects of a bucket, by one request where it takes one; each may be absent."""

    def sent(some: list[str]) -> Request:
        store, names = _opened(some[0], _CLIENT)[0], [_opened(url)[1] for url in some]
        ask = partial(_obstore().delete_async, store, names)
        return Request(lambda: _unless(_GONE, ask()), some[0], "written", queue="writing")

    together = urls[:1] and urls[0].startswith("s3://")
    for each in [sent(some) for some in ([urls] if together else [[url] for url in urls])]:
        each.result()


def _opened(
    url: str, options: dict[str, Any] = _READS, retries: dict[str, Any] = _NONE
) -> tuple[Any, str]:
    """Obstore's store of the bucket of a URL, and the name of the object in it."""
    refuse_fork()
    if url.startswith(WEB):
        return _web(url), ""
    scheme, _, rest = url.partition("://")
    if scheme not in (*BUCKETS, "memory"):
        raise InputError(
            f"cannot read {public_url(url)!r}: expected a path on this machine, gs://, s3://, "
            "az:// or https://"
        )
    bucket, _, name = ("", "", rest) if scheme == "memory" else rest.partition("/")
    kind = options is _READS, retries is _NONE
    key = (scheme, bucket, *kind, *said_of_services()) if bucket else (scheme,)
    if key not in _stores:
        _stores[key] = _open(scheme, bucket, options, retries)
    return _stores[key], name


def _open(scheme: str, bucket: str, options: dict[str, Any], retries: dict[str, Any]) -> Any:
    kinds = _obstore().store
    if scheme == "memory":
        return kinds.MemoryStore()
    kind = {"gs": kinds.GCSStore, "s3": kinds.S3Store, "az": kinds.AzureStore}[scheme]
    url = f"{scheme}://{bucket}"
    try:
        return kind(bucket, config=settings_of(url), client_options=options, retry_config=retries)
    except _obstore().exceptions.BaseError as error:
        raise InputError(f"{url} cannot be opened: {Failed.of(error).said}") from None


@lru_cache(_MOST_URLS)
def _web(url: str) -> Any:
    scheme, _, rest = url.partition("://")
    host, slash, below = rest.partition("/")
    named, _, host = host.rpartition("@")
    options = dict(_READS)
    if named:  # by a header, which no other server is told
        said = base64.b64encode(unquote(named).encode()).decode()
        options["default_headers"] = {"authorization": f"Basic {said}"}
    address = f"{scheme}://{host}{slash}{below}"
    try:
        return _obstore().store.HTTPStore(address, client_options=options, retry_config=_NONE)
    except (_obstore().exceptions.BaseError, ValueError) as error:
        raise InputError(f"{public_url(url)} is no URL: {Failed.of(error).said}") from None


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


async def _translated(answer: Awaitable[Any]) -> Any:
    """An answer; raises `Failed` for what obstore raises."""
    errors = _obstore().exceptions
    try:
        return await answer
    except (errors.AlreadyExistsError, errors.PreconditionError) as error:
        raise Failed(str(error), *_UNMET) from None
    except (FileNotFoundError, ValueError, errors.BaseError) as error:
        raise Failed.of(error) from None


async def _unless(statuses: tuple[int, ...], answer: Awaitable[Any]) -> Any:
    """The same; None where the answer has one of these statuses."""
    try:
        return await _translated(answer)
    except Failed as error:
        if error.status not in statuses:
            raise
        return None


def _obstore() -> Any:
    import obstore
    import obstore.exceptions
    import obstore.store

    return obstore


def _facts(said: Mapping[str, Any]) -> Facts:
    modified = int(said["last_modified"].timestamp() * 1000) * 10**6
    tag = said["e_tag"] or f"{modified} {said['size']}"
    return Facts(said["size"], tag, modified, said["version"])


class Failed(Exception):
    """A request that failed.

    Args:
        said: what the bucket said, or what became of the connection.
        status: of the answer; 0 if none came, None if the client did not even ask.
    """

    def __init__(self, said: str, status: int | None = 0) -> None:
        super().__init__(said)
        self.said, self.status = said, status

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """The same of an error of obstore's."""
        said = " ".join(str(error).partition("Debug source")[0].split())
        said = said.removeprefix("Generic HTTP error: ")
        if found := _STATUS.search(said):
            words = ": ".join(filter(None, (found[1].strip(), found[2])))
            return cls(words, int(found[1].split()[0]))
        status = 0 if "HTTP error" in said else 416 if "Invalid range" in said else None
        status = 404 if isinstance(error, FileNotFoundError) else status
        return cls(said.rpartition(" - ")[2][:_MOST_SAID].rstrip(".: "), status)

    @property
    def is_denied(self) -> bool:
        """Whether other credentials would do."""
        return self.status in _DENIED or any(each in self.said for each in _EXPIRED)


class Request:
    """A request that is under way, and is sent again while that may help.

    Args:
        ask: sends it; raises `Failed`.
        url: of what is asked for, for messages.
        done: what is asked.
        queue: whose turn it waits for.
    """

    def __init__(self, ask: Ask, url: str, done: Done = "read", queue: Queue = "reading") -> None:
        self._ask, self.url, self._done = ask, url, done
        self._limit, self._bucket, self.tries = limit(), bucket_of(url), 0
        loop, queues = _loop()
        self._future = asyncio.run_coroutine_threadsafe(self._in_turn(queues[queue]), loop)

    def result(self) -> Any:
        """The answer.

        Raises:
            StorageError: the store refuses, or has not answered for `limit`.
            Stopped: see `until`.
        """
        try:
            return waited(self._future)
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Wait for no answer."""
        self._future.cancel()

    async def _in_turn(self, queue: asyncio.Semaphore) -> Any:
        async with queue:
            began, pause = time.monotonic(), _FIRST_PAUSE
            while True:
                self.tries += 1
                try:
                    found = await self._ask()
                except Failed as error:
                    self._check(error, time.monotonic() - began)
                else:
                    _reached.add(self._bucket)
                    _allowed.add((self._bucket, self._done))
                    return found
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE)

    def _check(self, error: Failed, lasted: float) -> None:
        """Raise where trying again does not help, or not any longer; say that it is tried."""
        if error.status:
            _reached.add(self._bucket)
        first, denied = self._bucket not in _reached, error.is_denied
        limit = min(self._limit, _SHORT_LIMIT) if first or denied else self._limit
        if denied:  # a URL of a web server has its credentials in it
            was_allowed = (self._bucket, self._done) in _allowed and not self.url.startswith(WEB)
            helps = was_allowed and lasted <= limit
        else:
            helps = error.status in _BUSY
        if not helps:
            raise _refusal(self.url, error, self._done) from None
        if lasted > limit:
            raise StorageError(
                f"{self.url} cannot be {self._done}: {service_of(self.url)} has not answered as it "
                f"should for {lasted:.0f} s ({error.said}). Look whether that is the service, "
                "whether this machine reaches it, and whether these credentials still hold; "
                f"{_VARIABLE} sets how long a run waits"
            )
        now = time.monotonic()
        if lasted > _SAY_FIRST and now - _said.get(self._bucket, -_SAY) > _SAY:
            _said[self._bucket] = now
            where = f"{self.url} at {service_of(self.url)}" if first else self.url
            log.warning("waiting for %s since %.0f s (%s)", where, lasted, error.said)


def limit() -> float:
    """`$JAXDATA_STORAGE_SECONDS`, 600: how long a bucket may fail before a run ends."""
    text = os.environ.get(_VARIABLE, "")
    try:
        return float(text) if text else _LIMIT
    except ValueError:
        raise InputError(f"{_VARIABLE}={text!r}: expected a number of seconds") from None


def _refusal(url: str, error: Failed, done: Done) -> StorageError:
    """The error for a request that a bucket refuses, and would again."""
    bucket, used = bucket_of(url), credentials_of(url).words
    verb = {"read": "read", "listed": "list", "written": "write"}[done]
    who = used[:1].lower() + used[1:]  # in the middle of a sentence
    if error.is_denied:
        meaning = f"{used} may not {verb} it: use others, or let these {verb} {bucket}"
    elif "redirect" in error.said.lower() or error.status == 301:
        meaning = f"{bucket} is in another region: AWS_REGION names it"
    elif "Range request not supported" in error.said:
        meaning = "This server hands out whole files only, not ranges of bytes: download the file"
    elif error.status == 404:
        meaning = f"There is no bucket {bucket}, or {who} may not see it: check its name"
    else:
        meaning = f"Look whether {bucket} is there and {who} may {verb} it"
    return StorageError(f"{url} cannot be {done}: {error.said.rstrip('.')}. {meaning}")


@cache
def _loop() -> tuple[asyncio.AbstractEventLoop, dict[Queue, asyncio.Semaphore]]:
    """The event loop of this process, in a thread of its own, and who may ask at a time."""
    loop = asyncio.new_event_loop()
    wake = partial(loop.call_soon_threadsafe, loop.stop)
    in_background(partial(_run, loop), name="jaxdata-obstore", wake=wake)
    queues: tuple[Queue, ...] = ("reading", "ahead", "writing")
    return loop, {each: asyncio.Semaphore(_AT_ONCE) for each in queues}


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
