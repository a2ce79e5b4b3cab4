"""Uploads to S3 in parts: begun, filled part by part, then put together or given up."""

from __future__ import annotations

import hashlib
import re
from itertools import count
from xml.sax.saxutils import escape

from jaxdata.testing.buckets.http_messages import Request, Response
from jaxdata.testing.buckets.objects import Objects


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
            return _xml("Error", "<Code>NoSuchUpload</Code><Message>no such upload</Message>", 404)
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
            return _xml(
                "Error", "<Code>InvalidPart</Code><Message>a part is missing</Message>", 400
            )
        if request.headers.get("if-none-match") == "*" and self._objects.stat(name):
            code = "<Code>PreconditionFailed</Code><Message>it exists</Message>"
            return _xml("Error", code, 412)
        self._objects.write(name, b"".join(parts[number] for number in numbers))
        del self._parts[upload]
        inside = f"{place}<ETag>{escape(self._objects.etag(name))}</ETag>"
        return _xml("CompleteMultipartUploadResult", inside)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, inside: str, status: int = 200) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}>{inside}</{name}>'
    return Response(status, text.encode(), {"Content-Type": "application/xml"})
