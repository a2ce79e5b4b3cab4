"""Answers of Amazon S3 and of what speaks like it: objects, conditions, lists, uploads in parts.

Signatures are not looked at. https://docs.aws.amazon.com/AmazonS3/latest/API
"""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from email.utils import formatdate
from itertools import count
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from jaxdata.testing.buckets.http_messages import Request, Response, byte_range
from jaxdata.testing.buckets.objects import Objects
from jaxdata.testing.buckets.s3_uploads import Uploads

_PAGE = 1000


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
            return _failed(404, "NoSuchBucket", "The specified bucket does not exist")
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
        return _failed(405, "MethodNotAllowed", f"{request.method} is not served here")

    def _get(self, name: str, request: Request) -> Response:
        entry = self._objects.stat(name)
        if entry is None:
            return _failed(404, "NoSuchKey", "The specified key does not exist.")
        etag = self._objects.etag(name)
        if refused := _precondition(etag, request.headers, 304):
            return refused
        try:
            part = byte_range(request.headers.get("range"), entry.size)
        except ValueError as error:
            return _failed(416, "InvalidRange", str(error))
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
            return _failed(412, "PreconditionFailed", "A precondition did not hold: generation")
        if request.headers.get("if-match") and not etag:
            return _failed(404, "NoSuchKey", "The specified key does not exist.")
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
        return _failed(412, "PreconditionFailed", "A precondition did not hold: If-Match")
    if unwanted and etag and unwanted in ("*", etag):
        if unmet == 304:
            return Response(304, b"", {"ETag": etag})
        return _failed(412, "PreconditionFailed", "A precondition did not hold: If-None-Match")
    return None


def _xml(name: str, inside: str, status: int = 200) -> Response:
    space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} {space}>{inside}</{name}>'
    return Response(status, text.encode(), {"Content-Type": "application/xml"})


def _failed(status: int, code: str, message: str) -> Response:
    inside = f"<Code>{code}</Code><Message>{escape(message)}</Message>"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inside}</Error>'
    return Response(status, text.encode(), {"Content-Type": "application/xml"})
