"""Files of web servers that hand out ranges of bytes, as most do."""

from __future__ import annotations

import base64
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import unquote

from jaxdata.base.errors import InputError
from jaxdata.base.threads import left_alone, pause, waited
from jaxdata.storage.client import Facts
from jaxdata.storage.objects import changed, public_url, unreadable

_SECONDS = 60.0  # without a byte
_TRIES = 5
_GONE = 404, 410
_NOT_NOW = 408, 425, 429, 500, 502, 503, 504
_BEYOND = 416


class _Answer(NamedTuple):
    status: int
    headers: Any
    data: bytes


class Web:
    """See `Place`."""

    def look(self, url: str) -> Facts | None:
        answer = _ask(url, 0, 1)
        if answer.status in _GONE:
            return None
        said = answer.headers
        size = re.fullmatch(r"bytes .*/(\d+)", said.get("Content-Range") or "")
        if answer.status not in (206, _BEYOND) or not size:
            raise InputError(
                f"{public_url(url)}: this server hands out whole files only, not ranges of bytes; "
                "download the file and give that"
            )
        date = said.get("Last-Modified") or ""
        return Facts(int(size[1]), _tag(said), _nanoseconds(date))

    def listed(self, prefix: str) -> Iterator[tuple[str, Facts]]:
        raise InputError(
            f"{public_url(prefix)}: a web server lists no files; give the URL of each, or a list "
            "of them with --files-from"
        )

    def read(self, url: str, start: int, stop: int, tag: str) -> bytes:
        if start == stop:
            return b""
        answer = _ask(url, start, stop)
        if answer.status != 206 or _tag(answer.headers) != tag:
            raise changed(url)
        return answer.data


def _ask(url: str, start: int, stop: int) -> _Answer:
    """Ask for bytes `[start, stop)`, again where the server is busy or the line breaks."""
    wanted = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    address, asker = _with_asker(url)
    reason: object = ""
    for attempt in range(_TRIES):
        if attempt:
            pause(0.25 * 2**attempt)
        try:
            request = urllib.request.Request(address, headers=wanted)  # noqa: S310
            for name, value in asker.items():
                request.add_unredirected_header(name, value)  # no other server is told
            answer = waited(left_alone(partial(_answer, request, stop - start)))
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            continue
        if answer.status == 206 and len(answer.data) < _promised(answer):
            reason = "its answers are cut short"
        elif answer.status not in _NOT_NOW:
            return _allowed(url, answer)
        else:
            reason = f"the server says {answer.status}"
    raise unreadable(url, reason)


def _with_asker(url: str) -> tuple[str, dict[str, str]]:
    """A URL without the name and password in it, and the header that says them."""
    scheme, _, rest = url.partition("://")
    host, slash, below = rest.partition("/")
    named, at, host = host.rpartition("@")
    if not at:
        return url, {}
    said = base64.b64encode(unquote(named).encode()).decode()
    return f"{scheme}://{host}{slash}{below}", {"Authorization": f"Basic {said}"}


def _answer(request: urllib.request.Request, size: int) -> _Answer:
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as got:  # noqa: S310
            # A server without ranges would send all of it.
            return _Answer(got.status, got.headers, got.read(size) if got.status == 206 else b"")
    except urllib.error.HTTPError as error:
        with error:
            return _Answer(error.code, error.headers, b"")


def _promised(answer: _Answer) -> int:
    """The bytes that an answer says it has."""
    found = re.match(r"bytes (\d+)-(\d+)/", answer.headers.get("Content-Range") or "")
    return int(found[2]) - int(found[1]) + 1 if found else 0


def _allowed(url: str, answer: _Answer) -> _Answer:
    if answer.status >= 400 and answer.status not in (*_GONE, _BEYOND):
        raise unreadable(url, f"the server says {answer.status}")
    return answer


def _tag(headers: Any) -> str:
    """What differs when the file does."""
    size = (headers.get("Content-Range") or "").rpartition("/")[2]
    return headers.get("ETag") or f"{headers.get('Last-Modified') or ''} {size}"


def _nanoseconds(date: str) -> int:
    try:
        return int(parsedate_to_datetime(date).timestamp()) * 10**9
    except ValueError:
        return 0
