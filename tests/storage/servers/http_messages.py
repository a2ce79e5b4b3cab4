"""HTTP/1.1 messages: a request and a response, read from a connection and written to one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cached_property
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

LIMIT = 1 << 18
"""most bytes of the head of a message"""
_BODILESS = {204, 304}


@dataclass
class Request:
    """What a client asks; names of headers are in lower case."""

    method: str
    target: str
    """path and query, as sent"""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @cached_property
    def path(self) -> str:
        """The path as sent: percent signs and all."""
        return self.target.partition("?")[0]

    @cached_property
    def query(self) -> dict[str, str]:
        """Its parameters, the first value of each."""
        found = parse_qs(self.target.partition("?")[2], keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    @cached_property
    def object(self) -> str:
        """`<bucket>/<name>` of what it is about, `<bucket>/` of a list; for both protocols."""
        bucket_and_name = self.path.removeprefix("/")
        for prefix in ("/storage/v1/b/", "/upload/storage/v1/b/"):
            if self.path.startswith(prefix):
                bucket, _, name = self.path.removeprefix(prefix).partition("/o")
                bucket_and_name = f"{bucket}/{name.removeprefix('/')}"
                return unquote(bucket_and_name) + self.query.get("name", "")
        bucket, _, name = bucket_and_name.partition("/")
        return unquote(f"{bucket}/{name}")


@dataclass
class Response:
    """What it is answered."""

    status: int
    body: bytes | memoryview = b""
    headers: dict[str, str] = field(default_factory=dict)

    def head(self) -> bytes:
        """The bytes before the body."""
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = ""
        lines = [f"HTTP/1.1 {self.status} {phrase}"]
        told = {"Date": formatdate(usegmt=True), "Content-Length": str(len(self.body))}
        if self.status in _BODILESS:
            del told["Content-Length"]
        lines += [f"{name}: {value}" for name, value in (told | self.headers).items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    """The next request of a connection; None when the client has closed it.

    Raises:
        ValueError: what comes is no request of HTTP/1.
    """
    try:
        first, headers = await read_head(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, target, version = first.split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{first!r} is no request of HTTP/1")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await read_body(reader, headers)
    if "x-amz-decoded-content-length" in headers:  # S3 signs pieces of a body, in HTTP's own form
        pieces = asyncio.StreamReader()
        pieces.feed_data(body)
        pieces.feed_eof()
        body = await _chunked(pieces)
    return Request(method, target, headers, body)


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """The first line of a message, and its headers by name in lower case."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """The body that these headers announce."""
    if "chunked" in headers.get("transfer-encoding", ""):
        return await _chunked(reader)
    length = int(headers.get("content-length", 0))
    return await reader.readexactly(length) if length else b""


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int((await reader.readline()).partition(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        await reader.readline()
    while (await reader.readline()).strip():  # trailers
        pass
    return b"".join(pieces)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Where a `Range` header begins and stops in an object of `size` bytes; None for all of it.

    Raises:
        ValueError: no byte of the object is in it.

    >>> byte_range("bytes=2-5", 4), byte_range("bytes=-3", 9), byte_range(None, 9)
    ((2, 4), (6, 9), None)
    """
    unit, _, asked = (header or "").partition("=")
    first, dash, last = asked.partition("-")
    if unit.strip() != "bytes" or not dash:
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        raise ValueError(f"no bytes {asked} in {size}")
    return start, stop
