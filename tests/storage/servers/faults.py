"""A server between clients and a bucket: it lets requests go wrong as it is told, and counts them.

A request is drawn by what it asks and how often it was asked before, so that a run meets the same
faults in whatever order its requests arrive.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.storage.servers.http_messages import LIMIT, Request, Response, read_request

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


CONTROL = "/-/"
"""below it, requests are about the server itself; no bucket is called so"""
_PIECE = 1 << 16  # bytes that are sent between two looks at the bandwidth
_ENDED = (
    *(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError),
    asyncio.CancelledError,  # a task that ends so makes Python 3.11's streams print a traceback
)
"""how a connection ends: by its client, by what is no HTTP, by the end of the server"""


class FaultProxy:
    """Stands between clients and a bucket, in an event loop of its caller's.

    Args:
        answer: makes the response to a request that reaches the bucket.
        control: makes that to a request which is about the server itself: below `/-/`, neither
            counted nor subject to faults.
    """

    def __init__(
        self, answer: Callable[[Request], Response], control: Callable[[Request], Response]
    ) -> None:
        self.log = RequestLog()
        self.draws = Draws()
        self._answer = answer
        self._control = control
        self._free_at = 0.0

    async def serve(self) -> asyncio.Server:
        """Listen on a free port of 127.0.0.1."""
        return await asyncio.start_server(
            self._connected, "127.0.0.1", 0, limit=LIMIT, backlog=1024
        )

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*_ENDED):
            while request := await read_request(reader, writer):
                if request.path.startswith(CONTROL):
                    told = self._control(request)
                    writer.write(told.head() + told.body)
                elif not await self._served(request, reader, writer):
                    break
        writer.close()

    async def _served(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request, or not; True while the connection may go on."""
        fate, one = self.draws.draw(request), self.log.begin(request)
        try:
            if fate.latency:
                await asyncio.sleep(fate.latency)
            if fate.fault == "silent":
                one.fault = fate.fault
                return bool(await reader.read())  # until the client has had enough
            if fate.fault == "reset":
                return _reset(one, fate.fault, writer)
            if fate.fault in STATUSES:
                one.fault = fate.fault
                response = Response(STATUSES[fate.fault], f"{fate.fault}, for a test".encode())
            else:
                response = self._answered(request)
            if fate.fault == "lost":
                return _reset(one, fate.fault, writer)
            return await self._deliver(response, request, fate, one, writer)
        finally:
            self.log.end(one)

    def _answered(self, request: Request) -> Response:
        try:
            return self._answer(request)
        except FileNotFoundError as error:  # others change the folder, too
            return Response(404, str(error).encode())
        except (ValueError, OSError) as error:
            return Response(400, str(error).encode())

    async def _deliver(
        self,
        response: Response,
        request: Request,
        fate: Fate,
        one: Served,
        writer: asyncio.StreamWriter,
    ) -> bool:
        if request.method == "HEAD":
            response.headers.setdefault("Content-Length", str(len(response.body)))
            response.body = b""
        body, damaged = memoryview(response.body), fate.fault in ("cut", "short")
        if damaged and body and response.status < 300:
            one.fault, body = fate.fault, body[: len(body) // 2]
        if one.fault == "short":
            response.body = body
        # The log is right before the client can look at it.
        one.status, one.sent = response.status, len(body)
        try:
            writer.write(response.head())
            await self._send(body, fate.bandwidth, writer)
        except (ConnectionError, asyncio.CancelledError):
            one.sent = 0
            raise
        return one.fault != "cut" and request.headers.get("connection", "").lower() != "close"

    async def _send(self, body: memoryview, bandwidth: float, writer: asyncio.StreamWriter) -> None:
        """Send a body, all bodies together at most so many bytes a second."""
        if not bandwidth:
            writer.write(body)
            await writer.drain()
            return
        loop = asyncio.get_running_loop()
        for start in range(0, len(body), _PIECE):
            piece = body[start : start + _PIECE]
            self._free_at = max(self._free_at, loop.time()) + len(piece) / bandwidth
            await asyncio.sleep(self._free_at - loop.time())
            writer.write(piece)
            await writer.drain()


def _reset(one: Served, fault: str, writer: asyncio.StreamWriter) -> bool:
    """Reset a connection: with this option, closing it sends RST instead of FIN."""
    one.fault = fault
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
