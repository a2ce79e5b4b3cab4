"""A server between clients and a bucket: it answers, counts, and lets go wrong what it is told to.

What it answers comes from a function: of a server in this process, or of `Upstream`, which asks any
other HTTP server.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

from jaxdata.testing.buckets.control import Control
from jaxdata.testing.buckets.faults import STATUSES, Fate
from jaxdata.testing.buckets.http_messages import (
    LIMIT,
    Request,
    Response,
    read_request,
    read_response,
)
from jaxdata.testing.buckets.request_log import Served

Answer = Callable[[Request], Awaitable[Response]]

_PIECE = 1 << 16  # bytes that are sent between two looks at the bandwidth
_ENDED = (
    *(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError),
    asyncio.CancelledError,  # a task that ends so makes Python 3.11's streams print a traceback
)
"""how a connection ends: by its client, by what is no HTTP, by the end of the server"""
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date"}


class FaultProxy:
    """The proxy, in an event loop of its caller's.

    Args:
        answer: makes the response to a request that reaches it.
        control: answers what is about the proxy itself, and holds its log and its faults.
    """

    def __init__(self, answer: Answer, control: Control) -> None:
        self._answer = answer
        self._control = control
        self._free_at = 0.0

    async def serve(self, port: int) -> asyncio.Server:
        """Listen on 127.0.0.1; port 0 for a free one."""
        return await asyncio.start_server(
            self._connected, "127.0.0.1", port, limit=LIMIT, backlog=1024
        )

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*_ENDED):
            while request := await read_request(reader, writer):
                if told := self._control.answer(request):
                    writer.write(told.head() + told.body)
                elif not await self._served(request, reader, writer):
                    break
        writer.close()

    async def _served(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request, or not; True while the connection may go on."""
        control = self._control
        fate, one = control.draws.draw(request), control.log.begin(request)
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
                response = await self._answered(request)
            if fate.fault == "lost":
                return _reset(one, fate.fault, writer)
            return await self._deliver(response, request, fate, one, writer)
        finally:
            control.log.end(one)

    async def _answered(self, request: Request) -> Response:
        try:
            return await self._answer(request)
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


class Upstream:
    """Another HTTP server, asked over connections that are kept.

    Args:
        address: as `http://127.0.0.1:5000`.
    """

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{address!r} is no server: http://<host>:<port> was expected")
        self._place = parts.hostname, parts.port or 80
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def answer(self, request: Request) -> Response:
        """The other server's response; 502 where it cannot be asked."""
        while self._idle:
            with suppress(ConnectionError, asyncio.IncompleteReadError):  # it was closed meanwhile
                return await self._asked(request, *self._idle.pop())
        try:
            connection = await asyncio.open_connection(*self._place, limit=LIMIT)
            return await self._asked(request, *connection)
        except (OSError, asyncio.IncompleteReadError) as error:
            return Response(502, f"the server behind the proxy: {error}".encode())

    async def _asked(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Response:
        told = {key: value for key, value in request.headers.items() if key not in _HOP_BY_HOP}
        told.pop("expect", None)
        told |= {"content-length": str(len(request.body))}
        lines = [f"{request.method} {request.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in told.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + request.body)
        response = await read_response(reader, request.method)
        if response.headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))
        length = response.headers.get("content-length", "")
        headers = {k: v for k, v in response.headers.items() if k not in _HOP_BY_HOP}
        if request.method == "HEAD" and length:
            headers["Content-Length"] = length
        return Response(response.status, response.body, headers)
