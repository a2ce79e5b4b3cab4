"""Waiting for a bucket: further tries, limits of time, words where it takes long or is refused.

What is asked runs on an event loop in a thread of this process, so that a wait ends with Ctrl-C.
"""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any, Literal

from jaxdata.base.errors import InputError, log
from jaxdata.base.threads import in_background, waited
from jaxdata.storage.contract import StorageError
from jaxdata.storage.credentials import credentials_of, service_of
from jaxdata.storage.urls import WEB, bucket_of

Done = Literal["read", "listed", "written"]
"""What is asked of a bucket."""
Queue = Literal["reading", "ahead", "writing"]
"""What nobody waits for yet has a queue of its own, and what is written."""
_AT_ONCE = 64
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

_reached: set[str] = set()
"""buckets whose service has answered this process, whatever it said"""
_allowed: set[tuple[str, Done]] = set()
"""what buckets have done for this process"""
_said: dict[str, float] = {}
"""when it was said last that a bucket is waited for"""


def limit() -> float:
    """`$JAXDATA_STORAGE_SECONDS`, 600: how long a bucket may fail before a run ends."""
    text = os.environ.get(_VARIABLE, "")
    try:
        return float(text) if text else _LIMIT
    except ValueError:
        raise InputError(f"{_VARIABLE}={text!r}: expected a number of seconds") from None


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

    def __init__(
        self,
        ask: Callable[[], Awaitable[Any]],
        url: str,
        done: Done = "read",
        queue: Queue = "reading",
    ) -> None:
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
