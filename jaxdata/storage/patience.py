"""Waiting for a bucket: second tries, limits of time, words where it takes long or is refused."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any, Literal

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.threads import TICK, check_stop, pause
from jaxdata.storage.contract import Unwritten, truncated
from jaxdata.storage.credentials import bucket_of, credentials_of, service_of

_log = logging.getLogger("jaxdata")

Done = Literal["read", "listed", "written"]
"""What is asked of a bucket."""
_SECOND_TRY = 4.0
"""seconds after which an unanswered request is sent again, and whichever answers first counts"""
_TRY = 20.0
"""seconds after which both are given up, and a little more for each byte"""
LEAST_RATE = 2**19
"""bytes a second of a line that is not given up"""
_SAY = 30.0
"""seconds between lines about a stall"""
_SAY_FIRST = 10.0
"""seconds before the first line about a bucket that has not answered yet"""
_LIMIT = 600.0
_FIRST_LIMIT = 60.0
"""seconds in which a bucket answers for the first time: else its service is another one"""
_DENIED_LIMIT = 60.0
"""seconds in which a bucket that has answered may refuse: credentials are rotated"""
_FIRST_PAUSE, _MOST_PAUSE = 0.05, 5.0
_SHORT_TRIES = 3
_VARIABLE = "JAXDATA_STORAGE_SECONDS"
_BUSY = (408, 425, 429, *range(500, 600))
_DENIED = (401, 403)
_EXPIRED = ("AccessDenied", "ExpiredToken", "TokenRefreshRequired")

_reached: set[str] = set()
"""buckets whose service has answered this process, whatever it said"""
_allowed: set[tuple[str, Done]] = set()
"""what buckets have done for this process"""
_denied: dict[str, float] = {}
"""since when buckets refuse what they did before: all requests share the time that this may last"""


def limit_seconds() -> float:
    """`$JAXDATA_STORAGE_SECONDS`: how long a bucket may fail before a run ends; 600."""
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

    @property
    def may_pass(self) -> bool:
        """Whether another try may do."""
        return self.status == 0 or self.status in _BUSY

    @property
    def is_denied(self) -> bool:
        """Whether other credentials would do."""
        return self.status in _DENIED or any(each in self.said for each in _EXPIRED)


class Short(Failed):
    """An answer has fewer bytes than the object."""


class Request:
    """A request that is under way; `result` waits for its answer.

    Args:
        ask: sends it, and returns a future that raises `Failed`.
        url: of what is asked for, for messages.
        part: bytes that are asked for; None for a whole object.
        done: what is asked; only what is read is sent again where no answer comes.
    """

    def __init__(
        self, ask: Callable[[], Any], url: str, part: slice | None = None, done: Done = "read"
    ) -> None:
        self._ask, self.url, self._part, self._done = ask, url, part, done
        self._sent = [ask()]
        self.tries = 1

    def result(self) -> Any:
        """The answer.

        Raises:
            DatasetError: the store refuses, or has not answered for `limit_seconds`.
            Stopped: see `until`.
        """
        stall = _Stall(self.url, self._done)
        try:
            while True:
                try:
                    found = self._answer(stall)
                except TimeoutError:
                    stall.failed(Failed(f"no answer in {self._seconds:.0f} s"))
                except Failed as error:
                    stall.failed(error)
                    if not (self._may_pass(error) or stall.may_be_let()):
                        raise self._refusal(error) from None
                else:
                    stall.ended()
                    return found
                stall.pause()
                self._send()
        finally:
            self._forget()

    def _forget(self) -> None:
        """Wait for nothing that was sent."""
        for each in self._sent:
            each.cancel()

    def _may_pass(self, error: Failed) -> bool:
        if isinstance(error, Short):  # as some proxies cut answers
            return self.tries < _SHORT_TRIES
        return error.may_pass

    def _refusal(self, error: Failed) -> DatasetError:
        if self._part is not None and (isinstance(error, Short) or error.status == 416):
            return truncated(self.url, self._part.stop)
        return refusal(self.url, error, self._done)

    def _send(self, also: bool = False) -> None:
        if not also:
            self._forget()
        self._sent = [*(self._sent if also else []), self._ask()]
        self.tries += 1

    @property
    def _seconds(self) -> float:
        size: int = self._part.stop - self._part.start if self._part else 0
        return _TRY + size / LEAST_RATE

    def _answer(self, stall: _Stall) -> Any:
        sent = time.monotonic()
        while True:
            for each in self._sent:
                try:
                    return each.result(timeout=TICK)
                except TimeoutError:
                    stall.check()
            waited = time.monotonic() - sent
            if self._done != "read":
                continue
            if waited > self._seconds:
                raise TimeoutError
            if waited > _SECOND_TRY and len(self._sent) == 1:
                self._send(also=True)


class _Stall:
    """How long a request has waited, and why."""

    def __init__(self, url: str, done: Done) -> None:
        self._url, self._bucket, self._done = url, bucket_of(url), done
        self._since, self._limit = time.monotonic(), limit_seconds()
        self._said: float | None = None
        self._pause, self._why = _FIRST_PAUSE, "no answer"
        self._denied = False

    def failed(self, error: Failed) -> None:
        self._why, self._denied = error.said, error.is_denied
        if error.status:
            _reached.add(self._bucket)

    def ended(self) -> None:
        """The bucket has done what was asked."""
        _reached.add(self._bucket)
        _allowed.add((self._bucket, self._done))
        if self._denied:
            _denied.pop(self._bucket, None)

    def may_be_let(self) -> bool:
        """Whether credentials that were good are refused for less than a minute; says so once."""
        if not self._denied or (self._bucket, self._done) not in _allowed:
            return False
        now, seconds = time.monotonic(), min(_DENIED_LIMIT, self._limit)
        since = _denied.setdefault(self._bucket, now)
        if now - since > _LIMIT:
            _denied[self._bucket] = since = now
        if since == now:
            _log.warning(
                "%s is refused (%s), but was not before: trying again for %.0f s, in case "
                "credentials are being rotated",
                *(self._url, self._why, seconds),
            )
        return now - since < seconds

    def check(self) -> None:
        """Raise if it has lasted too long or nobody waits; say so from time to time."""
        check_stop()
        if self._denied:  # it has a limit of its own
            return
        now, first = time.monotonic(), self._bucket not in _reached
        waited = now - self._since
        if waited > self._limit:
            raise DatasetError(
                f"{self._url} cannot be {self._done} for {waited:.0f} s ({self._why}): look "
                "whether the bucket can be reached and these credentials still hold; "
                f"{_VARIABLE} sets how long a run waits"
            )
        if first and waited > _FIRST_LIMIT and _VARIABLE not in os.environ:
            raise DatasetError(
                f"{self._url} cannot be {self._done}: {service_of(self._url)} has not answered "
                f"for {waited:.0f} s ({self._why}). Look whether that is the service, and whether "
                f"this machine reaches it; {_VARIABLE} sets how long to wait"
            )
        if now - (self._said or self._since) > (_SAY if self._said or not first else _SAY_FIRST):
            self._said = now
            _log.warning(
                "waiting for %s since %.0f s (%s)",
                *(
                    f"{self._url} at {service_of(self._url)}" if first else self._url,
                    waited,
                    self._why,
                ),
            )

    def pause(self) -> None:
        """Wait before the next try, longer each time."""
        end = time.monotonic() + self._pause
        while (remains := end - time.monotonic()) > 0:
            self.check()
            pause(min(TICK, remains))
        self._pause = min(2 * self._pause, _MOST_PAUSE)


def refusal(url: str, error: Failed, done: Done = "read") -> DatasetError:
    """The error for a request that a bucket refuses, and would again."""
    kind = Unwritten if done == "written" else DatasetError
    return kind(f"{url} cannot be {done}: {error.said.rstrip('.')}. {_meaning(url, error, done)}")


def no_such_bucket(url: str) -> str:
    """What is said of a bucket that is not there."""
    used = credentials_of(url).words
    return f"There is no bucket {bucket_of(url)}, or {_lower(used)} may not see it: check its name"


def _meaning(url: str, error: Failed, done: Done) -> str:
    bucket, used = bucket_of(url), credentials_of(url).words
    verb = {"read": "read", "listed": "list", "written": "write"}[done]
    if error.is_denied:
        return f"{used} may not {verb} it: use others, or let these {verb} {bucket}"
    if "redirect" in error.said.lower() or error.status == 301:
        return f"{bucket} is in another region: AWS_REGION names it"
    if error.status == 404:
        return no_such_bucket(url)
    return f"Look whether {bucket} is there and {_lower(used)} may {verb} it"


def _lower(words: str) -> str:
    """In the middle of a sentence; names keep their capitals."""
    return words[:1].lower() + words[1:]
