"""Google Cloud Storage and Amazon S3, as much of them as clients ask for: requests to responses.

An object has a generation, a number that grows with every writing, so that a client can say "only
if it is still the one that I read", and an ETag, the MD5 of its content, as of S3: the same content
has the same. Of Google's two interfaces the XML API is served, as S3's.
Signatures and tokens are not looked at.

https://docs.aws.amazon.com/AmazonS3/latest/API
https://cloud.google.com/storage/docs/xml-api
"""

from __future__ import annotations

import hashlib
import html
import os
import re
import tempfile
import time
from datetime import UTC, datetime
from email.utils import formatdate
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from tests.storage.servers.http_messages import Request, Response, byte_range

_PAGE = 1000
"""most names in one answer"""


class Entry(NamedTuple):
    """What is known of an object."""

    generation: int
    size: int
    modified: float
    """seconds since 1970"""


class Objects:
    """Objects in memory; their names begin with that of their bucket."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Entry, bytes]] = {}
        self._etags: dict[tuple[str, int], str] = {}
        self._last = 0

    def stat(self, name: str) -> Entry | None:
        """What is known of an object; None if there is none."""
        return self._held[name][0] if name in self._held else None

    def read(self, name: str, start: int, stop: int) -> memoryview:
        """Some of its bytes."""
        return memoryview(self._held[name][1])[start:stop]

    def write(self, name: str, data: bytes) -> Entry:
        """Write an object over whatever had its name."""
        entry = Entry(self._next(), len(data), time.time())
        self._held[name] = entry, data
        return entry

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        self._held.pop(name, None)

    def names(self, prefix: str = "") -> list[str]:
        """Names of all objects that begin with `prefix`, in order."""
        return sorted(name for name in self._held if name.startswith(prefix))

    def etag(self, name: str) -> str:
        """The ETag of an object, quotes included."""
        entry = self.stat(name)
        if entry is None:
            raise KeyError(name)
        key = name, entry.generation
        if key not in self._etags:
            content = self.read(name, 0, entry.size)
            self._etags[key] = _etag(content)
        return self._etags[key]

    def _next(self) -> int:
        """A generation larger than all before, also than those of a server that ended."""
        self._last = max(self._last + 1, time.time_ns())
        return self._last


class FolderObjects(Objects):
    """Objects that are files: `<folder>/<bucket>/<name>`; what others change there is seen.

    Args:
        folder: exists, or is made.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def stat(self, name: str) -> Entry | None:
        path = self._folder / name
        if not _is_path(name) or not path.is_file():
            return None
        found = path.stat()
        return Entry(found.st_mtime_ns, found.st_size, found.st_mtime)

    def read(self, name: str, start: int, stop: int) -> memoryview:
        with (self._folder / name).open("rb") as file:
            return memoryview(os.pread(file.fileno(), stop - start, start))

    def write(self, name: str, data: bytes) -> Entry:
        if not _is_path(name):
            raise ValueError(f"no file can be called {name!r}: keep such objects in memory")
        path, generation = self._folder / name, self._next()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.write(data)
        os.utime(file.name, ns=(generation, generation))
        Path(file.name).rename(path)
        return Entry(generation, len(data), generation / 1e9)

    def delete(self, name: str) -> None:
        if self.stat(name):
            (self._folder / name).unlink()

    def names(self, prefix: str = "") -> list[str]:
        files = (file for file in self._folder.glob("*/**/*") if file.is_file())
        named = (file.relative_to(self._folder).as_posix() for file in files)
        return sorted(name for name in named if name.startswith(prefix))


def _etag(content: bytes | memoryview) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _is_path(name: str) -> bool:
    parts = name.split("/")
    return all(parts) and not {".", ".."} & {*parts} and "\0" not in name


class Uploads:
    """The uploads under way; an object appears when its upload is complete.

    Args:
        objects: where it then is.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._parts: dict[str, dict[int, bytes]] = {}
        self._numbers = count(1)

    def answer(self, name: str, request: Request) -> Response:
        """The response to a request that is about an upload of `<bucket>/<name>`."""
        bucket, _, key = name.partition("/")
        place = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key>"
        upload = request.query.get("uploadId", "")
        if request.method == "POST" and "uploads" in request.query:
            upload = f"upload-{next(self._numbers)}"
            self._parts[upload] = {}
            inside = f"{place}<UploadId>{upload}</UploadId>"
            return _xml("InitiateMultipartUploadResult", inside)
        if upload not in self._parts:
            return _xml_error(404, "NoSuchUpload", "no such upload")
        if request.method == "PUT":
            self._parts[upload][int(request.query["partNumber"])] = request.body
            return Response(200, b"", {"ETag": _etag(request.body)})
        if request.method == "POST":
            return self._complete(name, upload, place, request)
        del self._parts[upload]
        return Response(204)

    def _complete(self, name: str, upload: str, place: str, request: Request) -> Response:
        parts, told = self._parts[upload], request.body.decode()
        numbers = [int(each) for each in re.findall(r"<PartNumber>(\d+)</PartNumber>", told)]
        if not numbers or any(number not in parts for number in numbers):
            return _xml_error(400, "InvalidPart", "a part is missing")
        if request.headers.get("if-none-match") == "*" and self._objects.stat(name):
            return _xml_error(412, "PreconditionFailed", "it exists")
        self._objects.write(name, b"".join(parts[number] for number in numbers))
        del self._parts[upload]
        inside = f"{place}<ETag>{escape(self._objects.etag(name))}</ETag>"
        return _xml("CompleteMultipartUploadResult", inside)


class S3Server:
    """The REST API over some objects, with the bucket as the first part of the path.

    Args:
        objects: what it serves and changes.
        buckets: the buckets that there are; None for every name.
    """

    def __init__(self, objects: Objects, buckets: frozenset[str] | None = None) -> None:
        self._objects = objects
        self._buckets = buckets
        self._uploads = Uploads(objects)
        self._requests = count(1)

    @staticmethod
    def environment(address: str) -> dict[str, str]:
        """The variables with which clients use a server at `address`."""
        return {
            "AWS_ENDPOINT_URL": address,
            "AWS_ENDPOINT_URL_S3": address,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def answer(self, request: Request) -> Response:
        """The response to a request."""
        response = self._answer(request)
        response.headers |= {"x-amz-request-id": f"{next(self._requests):016}"}
        return response

    def _answer(self, request: Request) -> Response:
        bucket, _, name = unquote(request.path.removeprefix("/")).partition("/")
        if not name and request.method == "PUT":
            self._buckets = None if self._buckets is None else self._buckets | {bucket}
            return Response(200)
        if not bucket or (self._buckets is not None and bucket not in self._buckets):
            return _xml_error(404, "NoSuchBucket", "The specified bucket does not exist")
        if not name and request.method == "POST" and "delete" in request.query:
            keys = re.findall("<Key>(.*?)</Key>", request.body.decode())
            for key in keys:
                self._objects.delete(f"{bucket}/{html.unescape(key)}")
            deleted = (f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return _xml("DeleteResult", "".join(deleted))
        if not name:
            return self._list(bucket, request) if request.method == "GET" else Response(200)
        if "uploads" in request.query or "uploadId" in request.query:
            return self._uploads.answer(f"{bucket}/{name}", request)
        if request.method in ("GET", "HEAD"):
            return self._get(f"{bucket}/{name}", request)
        if request.method in ("PUT", "DELETE"):
            return self._change(f"{bucket}/{name}", request)
        return _xml_error(405, "MethodNotAllowed", f"{request.method} is not served here")

    def _get(self, name: str, request: Request) -> Response:
        entry = self._objects.stat(name)
        if entry is None:
            return _xml_error(404, "NoSuchKey", "The specified key does not exist.")
        etag = self._objects.etag(name)
        if refused := _precondition(etag, request.headers, 304):
            return refused
        try:
            part = byte_range(request.headers.get("range"), entry.size)
        except ValueError as error:
            return _xml_error(416, "InvalidRange", str(error))
        start, stop = part or (0, entry.size)
        told = {
            "ETag": etag,
            "x-goog-generation": str(entry.generation),
            "Last-Modified": formatdate(entry.modified, usegmt=True),
        }
        told |= {"Accept-Ranges": "bytes", "Content-Type": "binary/octet-stream"}
        if part:
            told["Content-Range"] = f"bytes {start}-{stop - 1}/{entry.size}"
        if request.method == "HEAD":
            return Response(206 if part else 200, b"", told | {"Content-Length": str(stop - start)})
        data = self._objects.read(name, start, stop)
        return Response(206 if part else 200, data, told)

    def _change(self, name: str, request: Request) -> Response:
        entry = self._objects.stat(name)
        etag, now = (self._objects.etag(name), str(entry.generation)) if entry else ("", "0")
        if request.headers.get("x-goog-if-generation-match", now) != now:
            return _xml_error(412, "PreconditionFailed", "A precondition did not hold: generation")
        if request.headers.get("if-match") and not etag:
            return _xml_error(404, "NoSuchKey", "The specified key does not exist.")
        if refused := _precondition(etag, request.headers, 412):
            return refused
        if request.method == "DELETE":
            self._objects.delete(name)
            return Response(204)
        written = str(self._objects.write(name, request.body).generation)
        told = {"ETag": self._objects.etag(name), "x-goog-generation": written}
        return Response(200, b"", told)

    def _list(self, bucket: str, request: Request) -> Response:
        asked = request.query
        after = max(asked.get("start-after", ""), unquote(asked.get("continuation-token", "")))
        names = self._objects.names(f"{bucket}/{asked.get('prefix', '')}")
        names = [name for name in names if name.partition("/")[2] > after]
        page = names[: min(int(asked.get("max-keys", _PAGE)), _PAGE)]
        quoted = asked.get("encoding-type") == "url"
        items = "".join(self._item(name, quoted) for name in page)
        further = len(names) > len(page)
        token = quote(page[-1].partition("/")[2]) if further and page else ""
        prefix = asked.get("prefix", "")
        return _xml(
            "ListBucketResult",
            f"<Name>{bucket}</Name><Prefix>{quote(prefix) if quoted else escape(prefix)}</Prefix>"
            + ("<EncodingType>url</EncodingType>" if quoted else "")
            + f"<KeyCount>{len(page)}</KeyCount><MaxKeys>{_PAGE}</MaxKeys>"
            f"<IsTruncated>{str(further).lower()}</IsTruncated>"
            + (f"<NextContinuationToken>{token}</NextContinuationToken>" if token else "")
            + items,
        )

    def _item(self, name: str, quoted: bool) -> str:
        entry = self._objects.stat(name)
        if entry is None:  # deleted by somebody else just now
            return ""
        key = name.partition("/")[2]
        moment = datetime.fromtimestamp(entry.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return (
            f"<Contents><Key>{quote(key) if quoted else escape(key)}</Key>"
            f"<LastModified>{moment}</LastModified><ETag>{escape(self._objects.etag(name))}</ETag>"
            f"<Size>{entry.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )


def _precondition(etag: str, headers: dict[str, str], unmet: int) -> Response | None:
    """The refusal of a request whose object (ETag "": none) is not as it must be."""
    wanted, unwanted = headers.get("if-match"), headers.get("if-none-match")
    if wanted and wanted not in ("*", etag):
        return _xml_error(412, "PreconditionFailed", "A precondition did not hold: If-Match")
    if unwanted and etag and unwanted in ("*", etag):
        if unmet == 304:
            return Response(304, b"", {"ETag": etag})
        return _xml_error(412, "PreconditionFailed", "A precondition did not hold: If-None-Match")
    return None


def _xml(name: str, inside: str, status: int = 200) -> Response:
    space = "" if name == "Error" else ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}{space}>{inside}</{name}>'
    return Response(status, text.encode(), {"Content-Type": "application/xml"})


def _xml_error(status: int, code: str, message: str) -> Response:
    return _xml("Error", f"<Code>{code}</Code><Message>{escape(message)}</Message>", status)


class GcsServer(S3Server):
    """The XML API of Google Cloud Storage, which is S3's with generations."""

    @staticmethod
    def environment(address: str) -> dict[str, str]:
        """The variables with which clients use a server at `address`."""
        return {"TENSORSTORE_GCS_HTTP_URL": address, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any"}
