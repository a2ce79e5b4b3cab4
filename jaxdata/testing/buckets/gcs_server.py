"""Answers of Google Cloud Storage: what tensorstore asks of its JSON API, preconditions included.

Other clients ask its XML API, which reads, writes and lists as S3's.
https://cloud.google.com/storage/docs/json_api/v1/objects and …/docs/xml-api
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from jaxdata.testing.buckets.http_messages import Request, Response, byte_range
from jaxdata.testing.buckets.objects import Entry, Objects
from jaxdata.testing.buckets.s3_server import S3Server

_PAGE = 1000


class GcsServer:
    """The JSON API over some objects.

    Args:
        objects: what it serves and changes.
        buckets: the buckets that there are; None for every name.
    """

    def __init__(self, objects: Objects, buckets: frozenset[str] | None = None) -> None:
        self._objects = objects
        self._buckets = buckets
        self._xml = S3Server(objects, buckets)

    @staticmethod
    def environment(address: str) -> dict[str, str]:
        """The variables with which clients use a server at `address`."""
        return {"TENSORSTORE_GCS_HTTP_URL": address, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any"}

    def answer(self, request: Request) -> Response:
        """The response to a request."""
        _, asks_json, place = request.path.partition("/storage/v1/b/")
        if not asks_json:
            return self._xml.answer(request)
        bucket, slash, rest = place.partition("/o")
        bucket = unquote(bucket)
        if not slash or (self._buckets is not None and bucket not in self._buckets):
            return _failed(404, "The specified bucket does not exist.")
        name = unquote(rest.removeprefix("/")) or request.query.get("name", "")
        if request.method == "GET" and not name:
            return self._list(bucket, request)
        if request.method == "GET":
            return self._get(bucket, name, request)
        if request.method in ("POST", "DELETE"):
            return self._change(bucket, name, request)
        return _failed(405, f"{request.method} is not served here")

    def _get(self, bucket: str, name: str, request: Request) -> Response:
        entry = self._objects.stat(f"{bucket}/{name}")
        asked = request.query
        if entry is None or asked.get("generation", str(entry.generation)) != str(entry.generation):
            return _failed(404, f"No such object: {bucket}/{name}")
        if refused := _precondition(entry.generation, asked, 304):
            return refused
        if asked.get("alt") != "media":
            return _json(_metadata(bucket, name, entry))
        told = {"x-goog-generation": str(entry.generation), "x-goog-metageneration": "1"}
        try:
            part = byte_range(request.headers.get("range"), entry.size)
        except ValueError as error:
            return _failed(416, str(error))
        start, stop = part or (0, entry.size)
        if part:
            told["Content-Range"] = f"bytes {start}-{stop - 1}/{entry.size}"
        data = self._objects.read(f"{bucket}/{name}", start, stop)
        return Response(206 if part else 200, data, told)

    def _change(self, bucket: str, name: str, request: Request) -> Response:
        entry = self._objects.stat(f"{bucket}/{name}")
        if refused := _precondition(entry.generation if entry else 0, request.query, 412):
            return refused
        if request.method == "POST":
            written = self._objects.write(f"{bucket}/{name}", request.body)
            return _json(_metadata(bucket, name, written))
        if entry is None:
            return _failed(404, f"No such object: {bucket}/{name}")
        self._objects.delete(f"{bucket}/{name}")
        return Response(204)

    def _list(self, bucket: str, request: Request) -> Response:
        asked = request.query
        first = max(asked.get("startOffset", ""), asked.get("pageToken", ""))
        end = asked.get("endOffset", "")
        found = [
            name
            for each in self._objects.names(f"{bucket}/{asked.get('prefix', '')}")
            if (name := each.partition("/")[2]) >= first and (not end or name < end)
        ]
        page = min(int(asked.get("maxResults", _PAGE)), _PAGE)
        entries = ((name, self._objects.stat(f"{bucket}/{name}")) for name in found[:page])
        items = [_metadata(bucket, name, entry) for name, entry in entries if entry]
        further = {"nextPageToken": found[page]} if len(found) > page else {}
        return _json({"kind": "storage#objects", "items": items} | further)


def _precondition(now: int, asked: dict[str, str], unmet: int) -> Response | None:
    """The refusal of a request whose generation (0: none) is not as it must be."""
    if asked.get("ifGenerationMatch", str(now)) != str(now):
        return _failed(412, "At least one of the pre-conditions you specified did not hold.")
    if asked.get("ifGenerationNotMatch") == str(now):
        return _failed(unmet, "not changed")
    return None


def _metadata(bucket: str, name: str, entry: Entry) -> dict[str, Any]:
    moment = datetime.fromtimestamp(entry.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{quote(name)}/{entry.generation}",
        "bucket": bucket,
        "name": name,
        "size": str(entry.size),
        "generation": str(entry.generation),
        "metageneration": "1",
        "timeCreated": moment,
        "updated": moment,
    }


def _json(value: object) -> Response:
    return Response(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _failed(status: int, message: str) -> Response:
    if status == 304:
        return Response(304)
    body = json.dumps({"error": {"code": status, "message": message}}).encode()
    return Response(status, body, {"Content-Type": "application/json"})
