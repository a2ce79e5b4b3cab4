"""Which requests a server got, and what it sent: exactly, and countable from another thread."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from jaxdata.testing.buckets.http_messages import Request


@dataclass
class Served:
    """A request, and what became of it."""

    method: str
    object: str
    """`<bucket>/<name>`; `<bucket>/` of a list"""
    range: str
    """the header: `bytes=0-99`, or empty"""
    when: float
    """of its arrival, in seconds since 1970"""
    status: int = 0
    """0 where nothing was answered"""
    sent: int = 0
    """bytes of the body that went out"""
    received: int = 0
    """bytes of the body that came in"""
    fault: str = ""
    """which of `Faults` was delivered; empty for none"""
    seconds: float = 0.0
    """until the answer had gone out"""


@dataclass
class Counts:
    """Sums over a log."""

    requests: int = 0
    methods: dict[str, int] = field(default_factory=dict)
    """method -> requests"""
    statuses: dict[int, int] = field(default_factory=dict)
    """status -> requests"""
    faults: dict[str, int] = field(default_factory=dict)
    """fault -> requests"""
    sent: int = 0
    """bytes of bodies"""
    received: int = 0
    """bytes of bodies"""
    most_at_once: int = 0
    """requests under way at the same time"""


class RequestLog:
    """Requests in the order of their arrival."""

    def __init__(self) -> None:
        self.served: list[Served] = []
        self._under_way = 0
        self._most = 0

    def begin(self, request: Request) -> Served:
        """A request has arrived."""
        asked = request.headers.get("range", "")
        one = Served(request.method, request.object, asked, time.time())
        one.received = len(request.body)
        self.served.append(one)
        self._under_way += 1
        self._most = max(self._most, self._under_way)
        return one

    def end(self, one: Served) -> None:
        """It is over, whatever came of it."""
        one.seconds = time.time() - one.when
        self._under_way -= 1

    def clear(self) -> None:
        """Forget all that was served."""
        self.served.clear()
        self._most = self._under_way

    def counts(self) -> Counts:
        """Sums over all."""
        served = list(self.served)
        return Counts(
            len(served),
            dict(Counter(one.method for one in served)),
            dict(Counter(one.status for one in served)),
            dict(Counter(one.fault for one in served if one.fault)),
            sum(one.sent for one in served),
            sum(one.received for one in served),
            self._most,
        )
