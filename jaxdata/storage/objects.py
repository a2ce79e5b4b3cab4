"""Inputs behind URLs, in buckets and on web servers: how large they are, their names, their bytes.

An input has a size and a version, other than a file of a dataset, and only that version is read.
`ObjectPath` is what a `Path` is for a file. Secrets that a URL may hold are never shown.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol
from urllib.parse import unquote

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.threads import left_alone, pause, waited
from jaxdata.storage import client
from jaxdata.storage.client import Facts, Found
from jaxdata.storage.contract import Truncated
from jaxdata.storage.credentials import BUCKETS
from jaxdata.storage.ranged_file import RangedFile

_COPIED = 2**22
_SECONDS = 60.0  # without a byte
_TRIES = 5
_GONE = 404, 410
_NOT_NOW = 408, 425, 429, 500, 502, 503, 504
_BEYOND = 416
_SIGNED = re.compile(r"[?#].*", re.DOTALL)
_UNSIGNED = tuple(f"{scheme}://" for scheme in (*BUCKETS, "memory"))  # a ? in a name is part of it


def public_url(url: str) -> str:
    """A URL as messages may show it: without name and password, and what its query says.

    >>> public_url("https://me:pass@host/a.jsonl?X-Amz-Signature=ab12")
    'https://host/a.jsonl?…'
    """
    bare = bare_url(url)
    return f"{bare}?…" if "?" in url[len(bare) :] else bare


def bare_url(url: str) -> str:
    """A URL without name and password, query and fragment; paths stay.

    >>> bare_url("https://me:pass@host/a.jsonl?X-Amz-Signature=ab12")
    'https://host/a.jsonl'
    """
    scheme, mark, rest = url.partition("://")
    if not mark or url.startswith(_UNSIGNED):
        return url
    host, slash, path = _SIGNED.sub("", rest).partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def without_secrets(text: str, url: str) -> str:
    """A text that may quote parts of a URL, without those that :func:`public_url` leaves out."""
    host, _, target = url.partition("://")[2].partition("/")
    named, at, _ = host.rpartition("@")
    query = _SIGNED.search(target)
    for secret in (named + at, query.group() if query else ""):
        text = text.replace(secret, "…") if secret and bare_url(url) != url else text
    return text


def is_url(given: str | os.PathLike[str]) -> bool:
    """Tell whether this is a URL of an object, and not a path on this machine.

    >>> [is_url(given) for given in ("gs://bucket/a", "a/b", "file:///a", "C:/a")]
    [True, False, False, False]
    """
    return bool(re.match(r"(?!file:)[a-z][a-z0-9+.-]*://", os.fspath(given)))


def plain_path(given: str | os.PathLike[str]) -> str:
    """A path or URL as text, `file://` without that.

    >>> plain_path("file:///data/a"), plain_path("gs://b/a")
    ('/data/a', 'gs://b/a')
    """
    return os.fspath(given).removeprefix("file://")


class Place(Protocol):
    """A place that holds objects, each of which has a URL."""

    def look(self, url: str) -> Facts | None:
        """The facts of an object, None if there is none."""

    def listed(self, prefix: str) -> Iterator[tuple[str, Facts]]:
        """The URLs that begin with a prefix, with their facts.

        Raises:
            InputError: this place lists nothing.
        """

    def read(self, url: str, start: int, stop: int, tag: str) -> bytes:
        """Bytes `[start, stop)` of the version with this tag.

        Raises:
            InputError: the object is another one now, or cannot be read.
        """


def changed(url: str) -> InputError:
    """The error for an object that was replaced or deleted after it was looked at."""
    return InputError(
        f"{public_url(url)} changed while it was read: let it be as it is and run the same "
        "command again, which reads it anew"
    )


def unreadable(url: str, reason: object) -> InputError:
    """The error for an object that its place does not hand out."""
    return InputError(
        f"{public_url(url)} cannot be read: {without_secrets(str(reason), url)}. Look whether it "
        "is there and these credentials may read it"
    )


class _Bucket:
    """See `Place`; memory of this process is one too, which workers do not see."""

    def look(self, url: str) -> Facts | None:
        with _as_input():
            return client.look(url)

    def listed(self, prefix: str) -> Iterator[tuple[str, Facts]]:
        with _as_input():
            yield from client.listed(prefix)

    def read(self, url: str, start: int, stop: int, tag: str) -> bytes:
        if start == stop:
            return b""
        with _as_input():
            try:
                found: Found | None = client.get(url, start, stop).result()
            except Truncated:
                raise changed(url) from None
        if found is None or tag not in ("", found.facts.tag):
            raise changed(url)
        return found.value


@contextmanager
def _as_input() -> Iterator[None]:
    try:
        yield
    except DatasetError as error:
        raise InputError(str(error)) from None


class _Answer(NamedTuple):
    status: int
    headers: Any
    data: bytes


class _Web:
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


def place_of(url: str) -> Place:
    """The place that has the object of a URL; raises InputError for one of another kind."""
    scheme = url.partition("://")[0]
    if scheme in (*BUCKETS, "memory"):
        return _Bucket()
    if scheme in ("http", "https"):
        return _Web()
    raise InputError(
        f"cannot read {public_url(url)!r}: expected a path on this machine, gs://, s3://, az:// or "
        "https://"
    )


def read_object(url: str, most: int) -> bytes | None:
    """All of an object, None if there is none.

    Raises:
        InputError: it has more than `most` bytes, or cannot be read.
    """
    place = place_of(url)
    if (facts := place.look(url)) is None:
        return None
    if facts.size > most:
        raise InputError(f"{public_url(url)} has {facts.size:,} bytes, expected at most {most:,}")
    return place.read(url, 0, facts.size, facts.tag)


class Stat(NamedTuple):
    """As of `os.stat`."""

    st_size: int
    st_mtime_ns: int


class ObjectPath:
    """What a `Path` is for a file, for an object of a bucket or web server."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def __str__(self) -> str:
        return self._url

    @property
    def name(self) -> str:
        return self._url.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self._url.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> ObjectPath:
        return ObjectPath(f"{self.parent}/{Path(self.name).with_suffix(suffix)}")

    @cached_property
    def _found(self) -> Facts | None:
        return place_of(self._url).look(self._url)

    @property
    def _facts(self) -> Facts:
        if self._found is None:
            raise DatasetError(f"{self._url} is missing")
        return self._found

    @property
    def version(self) -> str:
        """64 hex digits that differ for other URLs, sizes and versions."""
        facts = self._facts
        return hashlib.sha256(f"{self._url} {facts.size} {facts.tag}".encode()).hexdigest()

    def is_file(self) -> bool:
        return self._found is not None

    def is_dir(self) -> bool:
        return not self._url.startswith("http") and any(True for _ in self.iterdir())

    def iterdir(self) -> Iterator[ObjectPath]:
        """The objects directly below."""
        for url, _ in place_of(self._url).listed(f"{self._url}/"):
            if url.rpartition("/")[0] == self._url:
                yield ObjectPath(url)

    def stat(self) -> Stat:
        return Stat(self._facts.size, self._facts.modified)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """The version that was looked at first, to read."""
        assert mode == "rb", "objects are only read"
        facts = self._facts

        def read(start: int, stop: int) -> bytes:
            return place_of(self._url).read(self._url, start, stop, facts.tag)

        return RangedFile(read, facts.size).buffered()

    def copy_to(self, path: Path) -> None:
        """Write a copy."""
        with self.open() as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, _COPIED)


AnyPath = Path | ObjectPath


def any_path(given: str) -> AnyPath:
    """The path of a file, or of an object.

    >>> any_path("gs://bucket/pile.bin").with_suffix("").name, any_path("a/b").name
    ('pile', 'b')
    """
    path = plain_path(given)
    return ObjectPath(path) if is_url(path) else Path(path).expanduser()
