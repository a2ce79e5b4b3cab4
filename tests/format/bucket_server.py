"""A bucket on this machine: what tensorstore asks of Google Cloud Storage, with its preconditions.

https://cloud.google.com/storage/docs/json_api/v1/objects
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Bucket:
    """The objects of a bucket: name -> (generation, content)."""

    objects: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    generations: Iterator[int] = field(default_factory=lambda: count(1))


@contextmanager
def serving(bucket: Bucket) -> Iterator[dict[str, str]]:
    """Serve a bucket; gives the environment in which gs:// leads to it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, bucket))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        yield {"TENSORSTORE_GCS_HTTP_URL": address, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any"}
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, bucket: Bucket, *args: Any) -> None:
        self._bucket = bucket
        super().__init__(*args)

    def log_message(self, *_: Any) -> None:
        pass

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        url = urlsplit(self.path)
        said = {key: values[0] for key, values in parse_qs(url.query).items()}
        name = unquote(url.path.partition("/o/")[2])
        return name, said, self.rfile.read(int(self.headers.get("content-length") or 0))

    def _answer(self, status: int, data: bytes = b"", **headers: object) -> None:
        self.send_response(status)
        for key, value in ({"content_length": len(data)} | headers).items():
            self.send_header(key.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        name, said, _ = self._asked()
        with self._bucket.lock:
            found = self._bucket.objects.get(name)
            names = sorted(self._bucket.objects)
        if not name:
            first, end = said.get("startOffset", ""), said.get("endOffset", "\uffff")
            items = [_metadata(one, 1, b"") for one in names if first <= one < end]
            self._answer(200, json.dumps({"items": items}).encode())
        elif found is None:
            self._answer(404)
        elif said.get("ifGenerationNotMatch") == str(found[0]):
            self._answer(304)
        elif said.get("alt") == "media":
            self._media(*found)
        else:
            self._answer(200, json.dumps(_metadata(name, *found)).encode())

    def _media(self, generation: int, data: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or "")
        if not asked:
            self._answer(200, data, x_goog_generation=generation)
            return
        start, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if start >= len(data):
            self._answer(416)
            return
        where = f"bytes {start}-{last}/{len(data)}"
        part = data[start : last + 1]
        self._answer(206, part, x_goog_generation=generation, content_range=where)

    def do_POST(self) -> None:
        _, said, data = self._asked()
        self._change(said["name"], said, data)

    def do_DELETE(self) -> None:
        name, said, _ = self._asked()
        self._change(name, said, None)

    def _change(self, name: str, said: dict[str, str], data: bytes | None) -> None:
        with self._bucket.lock:
            objects = self._bucket.objects
            now, _ = objects.get(name, (0, b""))
            if said.get("ifGenerationMatch", str(now)) != str(now):
                self._answer(412)
            elif data is None:
                self._answer(204 if objects.pop(name, None) else 404)
            else:
                objects[name] = next(self._bucket.generations), data
                self._answer(200, json.dumps(_metadata(name, *objects[name])).encode())


def _metadata(name: str, generation: int, data: bytes) -> dict[str, Any]:
    moment = "2026-01-01T00:00:00Z"
    sizes = {"size": str(len(data)), "generation": str(generation), "metageneration": "1"}
    return {"name": name, "bucket": "b", "timeCreated": moment, "updated": moment} | sizes
