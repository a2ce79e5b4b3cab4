"""What goes wrong on the way to a bucket: how often, for which requests, and when it is drawn."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from jaxdata.testing.buckets.http_messages import Request

STATUSES = {"unavailable": 503, "throttled": 429, "forbidden": 403, "vanished": 404}
"""faults that are answers"""
KINDS = (*STATUSES, "reset", "lost", "cut", "short", "silent")


@dataclass(frozen=True)
class Faults:
    """Shares of requests that go wrong, each between 0 and 1, and how slow all of them are.

    Args:
        latency: seconds before an answer begins.
        bandwidth: bytes a second of all answers together; 0 for no limit.
        unavailable: answered 503.
        throttled: answered 429.
        forbidden: answered 403.
        vanished: answered 404, as if the object were gone.
        reset: the connection is reset, and nothing was done.
        lost: what was asked is done, but the connection is reset instead of an answer.
        cut: the body breaks off in the middle, where the connection ends.
        short: the second half of the body is missing, and Content-Length says so.
        silent: accepted, and never answered.
        methods: of which methods, as "GET" or "PUT POST"; empty for all.
        path: of which objects: a pattern as of `fnmatch` for `<bucket>/<name>`, or `<bucket>/`
            of a list.
        after: so many of these requests go well first.
        seed: of what is drawn. A request is drawn by what it asks and how often it was asked
            before, so that a run meets the same faults in whatever order requests arrive.

    >>> Faults(latency=0.03, unavailable=0.1, path="*.array_record").unavailable
    0.1
    """

    latency: float = 0.0
    bandwidth: float = 0.0
    unavailable: float = 0.0
    throttled: float = 0.0
    forbidden: float = 0.0
    vanished: float = 0.0
    reset: float = 0.0
    lost: float = 0.0
    cut: float = 0.0
    short: float = 0.0
    silent: float = 0.0
    methods: str = ""
    path: str = "*"
    after: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        shares = {kind: getattr(self, kind) for kind in KINDS}
        wrong = [kind for kind, share in shares.items() if not 0 <= share <= 1]
        if wrong or sum(shares.values()) > 1 + 1e-9:
            raise ValueError(f"shares of requests lie in [0, 1], all together too; got {shares}")
        if self.latency < 0 or self.bandwidth < 0:
            raise ValueError(f"latency and bandwidth are not negative; got {self}")

    def matches(self, request: Request) -> bool:
        """Whether this is about such a request."""
        of_method = not self.methods or request.method in self.methods.split()
        return of_method and fnmatchcase(request.object, self.path)


class Fate(NamedTuple):
    """What happens to one request."""

    latency: float = 0.0
    bandwidth: float = 0.0
    fault: str = ""


class Draws:
    """The fate of each request, under one or several `Faults` at once."""

    def __init__(self, faults: Faults | Sequence[Faults] = ()) -> None:
        self.faults = (faults,) if isinstance(faults, Faults) else tuple(faults)
        self._matched = [0] * len(self.faults)
        self._asked: Counter[bytes] = Counter()

    def draw(self, request: Request) -> Fate:
        """Latencies add up, the least bandwidth and the first fault count."""
        latency, bandwidths, fault = 0.0, [], ""
        for number, each in enumerate(self.faults):
            if each.matches(request):
                self._matched[number] += 1
                latency += each.latency
                bandwidths += [each.bandwidth] if each.bandwidth else []
                if self._matched[number] > each.after:
                    fault = fault or self._fault(number, each, request)
        return Fate(latency, min(bandwidths, default=0.0), fault)

    def _fault(self, number: int, faults: Faults, request: Request) -> str:
        asked = f"{number}\n{faults.seed}\n{request.method}\n{request.target}\n" + (
            request.headers.get("range", "")
        )
        key = hashlib.blake2b(asked.encode(), digest_size=8)
        self._asked[key.digest()] += 1
        key.update(str(self._asked[key.digest()]).encode())
        drawn = int.from_bytes(key.digest()) / 2**64
        for kind in KINDS:
            drawn -= getattr(faults, kind)
            if drawn < 0:
                return kind
        return ""
