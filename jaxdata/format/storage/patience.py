"""Waiting for a bucket: second tries, limits of time, and words where it takes long."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from jaxdata.background import check_stop
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.storage.contract import truncated
from jaxdata.format.storage.kvstores import reason
from jaxdata.format.storage.refusals import refusal

_log = logging.getLogger("jaxdata")

_TICK = 0.05
_SECOND_TRY = 4.0
"""seconds after which an unanswered request is sent again, and whichever answers first counts"""
_TRY = 20.0
"""seconds after which both are given up"""
_SAY = 30.0
"""seconds between lines about a stall"""
_LIMIT = 600.0
_MOST_PAUSE = 5.0
_SHORT_TRIES = 3
_PASSING = ("ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL")


def limit_seconds() -> float:
    """`$JAXDATA_STORAGE_SECONDS`: how long a bucket may fail before a run ends; 600."""
    text = os.environ.get("JAXDATA_STORAGE_SECONDS", "")
    try:
        return float(text) if text else _LIMIT
    except ValueError:
        raise InputError(
            f"JAXDATA_STORAGE_SECONDS={text!r}: expected a number of seconds"
        ) from None


class Request:
    """A request that is under way; `result` waits for its answer.

    Args:
        ask: sends it, and returns a tensorstore future.
        url: of what is asked for, for messages.
        part: bytes that are asked for; None for a whole object.
    """

    def __init__(self, ask: Callable[[], Any], url: str, part: slice | None = None) -> None:
        self._ask, self.url, self._part = ask, url, part
        self._sent = [ask()]
        self.tries = 1

    def result(self) -> Any:
        """The answer.

        Raises:
            DatasetError: the store refuses, or has not answered for `limit_seconds`.
            Stopped: see `until`.
        """
        stall = _Stall(self.url)
        while True:
            try:
                return self._answer(stall)
            except TimeoutError:
                stall.failed(f"no answer in {_TRY:.0f} s")
            except (ValueError, RuntimeError) as error:
                if not self._may_pass(error):
                    raise self._refusal(error) from None
                stall.failed(reason(error))
            stall.pause()
            self._send()

    def _may_pass(self, error: Exception) -> bool:
        """Whether another try may do; a body that came short looks like an object's end."""
        said = str(error)
        return said.startswith(_PASSING) or ("OUT_OF_RANGE" in said and self.tries < _SHORT_TRIES)

    def _refusal(self, error: Exception) -> DatasetError:
        if self._part is not None and "OUT_OF_RANGE" in str(error):
            return truncated(self.url, self._part.stop)
        return refusal(self.url, error)

    def _send(self, also: bool = False) -> None:
        self._sent = [*(self._sent if also else []), self._ask()]
        self.tries += 1

    def _answer(self, stall: _Stall) -> Any:
        sent = time.monotonic()
        while True:
            for each in self._sent:
                try:
                    return self._whole(each.result(timeout=_TICK))
                except TimeoutError:
                    stall.check()
            waited = time.monotonic() - sent
            if waited > _TRY:
                raise TimeoutError
            if waited > _SECOND_TRY and len(self._sent) == 1:
                self._send(also=True)

    def _whole(self, found: Any) -> Any:
        """The answer, if it has all the bytes that were asked for; some proxies cut it short."""
        part = self._part
        if part is not None and found.state == "value":
            size, expected = len(found.value), part.stop - part.start
            if size < expected:
                raise ValueError(f"UNAVAILABLE: {size:,} bytes came, not {expected:,}")
        return found


class _Stall:
    """How long a request has waited, and why."""

    def __init__(self, url: str) -> None:
        self._url, self._since, self._limit = url, time.monotonic(), limit_seconds()
        self._said, self._pause, self._why = self._since, _TICK, "no answer"

    def failed(self, why: str) -> None:
        self._why = why

    def check(self) -> None:
        """Raise if it has lasted too long or nobody waits; say so from time to time."""
        check_stop()
        now = time.monotonic()
        if now - self._since > self._limit:
            raise DatasetError(
                f"{self._url} cannot be read for {now - self._since:.0f} s ({self._why}): look "
                "whether the bucket can be reached and these credentials still hold; "
                "JAXDATA_STORAGE_SECONDS sets how long a run waits"
            )
        if now - self._said > _SAY:
            self._said, waited = now, now - self._since
            _log.warning("waiting for %s since %.0f s (%s)", self._url, waited, self._why)

    def pause(self) -> None:
        """Wait before the next try, longer each time."""
        end = time.monotonic() + self._pause
        while time.monotonic() < end:
            self.check()
            time.sleep(min(_TICK, self._pause))
        self._pause = min(2 * self._pause, _MOST_PAUSE)
