"""Google Cloud Storage and Amazon S3, as much of them as clients ask for: requests to responses.

An object has a generation, a number that grows with every writing, so that a client can say "only
if it is still the one that I read", and an ETag, the MD5 of its content, as of S3: the same content
has the same. Of Google's two interfaces the XML API is served, as S3's.
Signatures and tokens are not looked at.

https://docs.aws.amazon.com/AmazonS3/latest/API
https://cloud.google.com/storage/docs/xml-api
"""

import hashlib
import html
import os
import re
import tempfile
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

_PAGE = 1000
"""most names in one answer"""


class Request(NamedTuple):
    """What a client asks."""

    method: str
    target: str
    """path and query, as sent"""
    headers: Mapping[str, str] = {}
    body: bytes = b""

    @property
    def object(self) -> str:
        """`<bucket>/<name>` of what it is about, `<bucket>/` of a list."""
        bucket, _, name = self.target.partition("?")[0].removeprefix("/").partition("/")
        return unquote(f"{bucket}/{name}")

    @property
    def query(self) -> dict[str, str]:
        """Its parameters, the first value of each."""
        found = parse_qs(self.target.partition("?")[2], keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}


class Response(NamedTuple):
    """What it is answered."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Entry(NamedTuple):
    """What is known of an object."""

    generation: int
    """nanoseconds since 1970"""
    size: int
    etag: str


_MARK = "%marker"


class Objects:
    """Objects as files, whose names begin with that of their bucket; what others change is seen.

    An object may mark a folder: its name ends with "/".

    Args:
        folder: where they are; None for one that is gone in the end.
    """

    def __init__(self, folder: Path | None) -> None:
        self._own = None if folder else tempfile.TemporaryDirectory()
        self._folder = folder or Path(self._own.name if self._own else "")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._etags, self._last = dict[tuple[str, int], str](), 0

    def _path(self, name: str) -> Path:
        return self._folder / (name + _MARK if name.endswith("/") else name)

    def stat(self, name: str) -> Entry | None:
        """What is known of an object; None if there is none."""
        path = self._path(name)
        if ".." in name.split("/") or not path.is_file():
            return None
        generation, size = path.stat().st_mtime_ns, path.stat().st_size
        key = name, generation
        if key not in self._etags:
            self._etags[key] = _etag(self.read(name, 0, size))
        return Entry(generation, size, self._etags[key])

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Some of its bytes."""
        with self._path(name).open("rb") as file:
            return os.pread(file.fileno(), stop - start, start)

    def write(self, name: str, data: bytes) -> Entry:
        """Write an object over whatever had its name, with a generation larger than all before."""
        self._last, path = max(self._last + 1, time.time_ns()), self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.write(data)
        os.utime(file.name, ns=(self._last, self._last))
        Path(file.name).rename(path)
        return Entry(self._last, len(data), _etag(data))

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        self._path(name).unlink(missing_ok=True)

    def names(self, prefix: str = "") -> list[str]:
        """Names of all objects that begin with `prefix`, in order."""
        files = (file for file in self._folder.glob("*/**/*") if file.is_file())
        found = (file.relative_to(self._folder).as_posix().removesuffix(_MARK) for file in files)
        return sorted(name for name in found if name.startswith(prefix))


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


class Service:
    """The REST API over some objects, with the bucket as the first part of the path.

    Args:
        objects: what it serves and changes.
        buckets: the buckets that there are; None for every name.
    """

    def __init__(self, objects: Objects, buckets: Collection[str] | None) -> None:
        self._objects, self._buckets = objects, buckets
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._numbers = count(1)

    def answer(self, request: Request) -> Response:
        """The response to a request."""
        bucket, _, name = request.object.partition("/")
        if self._buckets is not None and bucket not in self._buckets:
            return _error(404, "NoSuchBucket", "The specified bucket does not exist.")
        if request.method == "POST" and "delete" in request.query:
            keys = re.findall(r"<Key>(.*?)</Key>", request.body.decode())
            for key in keys:
                self._objects.delete(f"{bucket}/{html.unescape(key)}")
            deleted = (f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return _xml("DeleteResult", "".join(deleted))
        if not name:
            return self._list(bucket, request.query)
        if {"uploads", "uploadId"} & request.query.keys():
            return self._upload(request)
        answer = self._get if request.method in ("GET", "HEAD") else self._change
        return answer(request.object, request)

    def _get(self, name: str, request: Request) -> Response:
        entry = self._objects.stat(name)
        if entry is None:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        told = {
            "ETag": entry.etag,
            "x-goog-generation": str(entry.generation),
            "Last-Modified": formatdate(entry.generation / 1e9, usegmt=True),
        }
        start, stop, status = 0, entry.size, 200
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range") or ""):
            start, status = int(asked[1]), 206
            stop = min(int(asked[2] or stop) + 1, stop) if asked[2] else stop
            told["Content-Range"] = f"bytes {start}-{stop - 1}/{entry.size}"
        if status == 206 and start >= stop:
            return _error(416, "InvalidRange", f"no bytes {start} to {stop} in {entry.size}")
        return Response(status, self._objects.read(name, start, stop), told)

    def _change(self, name: str, request: Request) -> Response:
        entry = self._objects.stat(name)
        now = str(entry.generation) if entry else "0"
        if (request.headers.get("x-goog-if-generation-match") or now) != now:
            return _error(412, "PreconditionFailed", "A precondition did not hold: generation")
        if request.headers.get("If-Match") and not entry:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        if refused := _precondition(entry.etag if entry else "", request.headers):
            return refused
        if request.method == "DELETE":
            self._objects.delete(name)
            return Response(204)
        written = self._objects.write(name, request.body)
        told = {"ETag": written.etag, "x-goog-generation": str(written.generation)}
        return Response(200, b"", told)

    def _list(self, bucket: str, asked: dict[str, str]) -> Response:
        after = max(asked.get("start-after", ""), unquote(asked.get("continuation-token", "")))
        names = self._objects.names(f"{bucket}/{asked.get('prefix', '')}")
        names = [name for name in names if name.partition("/")[2] > after]
        page, more = names[:_PAGE], len(names) > _PAGE
        token = quote(page[-1].partition("/")[2]) if more else ""
        items = "".join(self._item(name) for name in page)
        following = f"<NextContinuationToken>{token}</NextContinuationToken>" if more else ""
        return _xml("ListBucketResult", following + items)

    def _item(self, name: str) -> str:
        entry = self._objects.stat(name)
        if entry is None:  # deleted by somebody else just now
            return ""
        moment = datetime.fromtimestamp(entry.generation / 1e9, UTC)
        return (
            f"<Contents><Key>{escape(name.partition('/')[2])}</Key>"
            f"<LastModified>{moment:%Y-%m-%dT%H:%M:%S.000Z}</LastModified><ETag>{escape(entry.etag)}</ETag>"
            f"<Size>{entry.size}</Size></Contents>"
        )

    def _upload(self, request: Request) -> Response:
        """An upload in parts: the object appears when it is complete."""
        upload = request.query.get("uploadId", f"upload-{next(self._numbers)}")
        if "uploads" in request.query:
            self._uploads[upload] = {}
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        if request.method == "PUT":
            self._uploads[upload][int(request.query["partNumber"])] = request.body
            return Response(200, b"", {"ETag": _etag(request.body)})
        parts = self._uploads.pop(upload)
        if request.method == "DELETE":
            return Response(204)
        numbers = re.findall(r"<PartNumber>(\d+)</PartNumber>", request.body.decode())
        data = b"".join(parts[int(number)] for number in numbers)
        etag = escape(self._objects.write(request.object, data).etag)
        return _xml("CompleteMultipartUploadResult", f"<ETag>{etag}</ETag>")


def _precondition(etag: str, headers: Mapping[str, str]) -> Response | None:
    """The refusal of a request whose object (ETag "": none) is not as it must be."""
    wanted, unwanted = headers.get("If-Match"), headers.get("If-None-Match")
    if wanted and wanted not in ("*", etag):
        return _error(412, "PreconditionFailed", "A precondition did not hold: If-Match")
    if unwanted and etag and unwanted in ("*", etag):
        return _error(412, "PreconditionFailed", "A precondition did not hold: If-None-Match")
    return None


def _xml(name: str, inside: str, status: int = 200) -> Response:
    space = "" if name == "Error" else ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}{space}>{inside}</{name}>'
    return Response(status, text.encode(), {"Content-Type": "application/xml"})


def _error(status: int, code: str, message: str) -> Response:
    return _xml("Error", f"<Code>{code}</Code><Message>{escape(message)}</Message>", status)
