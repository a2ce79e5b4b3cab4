"""Buckets on this machine: gs:// and s3:// without an account or another package, with faults.

    with bucket_server("gs") as server:
        os.environ |= server.env
        jaxdata.convert("texts", output=server.url("bucket/data"), source="web")
        server.faults = Faults(latency=0.03, unavailable=0.1)
        ...
        print(server.counts)

They run for a `with` block, in threads of this process or in a process of its own, let requests go
wrong as they are told, and count them. What our clients ask is answered, with true generations,
ETags, preconditions and uploads in parts.
moto serves S3's conditions and ranges as well, but it refuses clients that sign nothing, keeps no
folder, needs 60 packages, and takes 80 ms for a range of an object of 64 MiB (5 ms here); and
Google's XML API, which speaks as S3 does, needs this server anyway.
"""

import hashlib
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import RLock, Thread
from types import SimpleNamespace
from typing import Any, Literal

from tests.storage.servers.service import Objects, Request, Response, Service

ROOT = Path(__file__).parents[3]
Scheme = Literal["gs", "s3"]
Buckets = Collection[str] | None
STATUSES = {"unavailable": 503, "forbidden": 403}
"""faults that are answers"""
KINDS = (*STATUSES, "reset", "lost", "cut", "short", "silent")


@dataclass(frozen=True)
class Faults:
    """Shares of requests that go wrong, each between 0 and 1, and how slow all of them are.

    Args:
        latency: seconds before an answer begins.
        unavailable: answered 503.
        forbidden: answered 403.
        reset: the connection is reset, and nothing was done.
        lost: what was asked is done, but the connection is reset instead of an answer.
        cut: the body breaks off in the middle, where the connection ends.
        short: the second half of the body is missing, and Content-Length says so.
        silent: accepted, and never answered.
        methods: of which methods, as "GET" or "PUT POST"; empty for all.
        path: of which objects: a pattern as of `fnmatch` for `<bucket>/<name>`, or `<bucket>/`
            of a list.
        seed: of what is drawn. A request is drawn by what it asks and how often it was asked
            before, so that a run meets the same faults in whatever order requests arrive.

    >>> Faults(latency=0.03, unavailable=0.1, path="*.array_record").unavailable
    0.1
    """

    latency: float = 0.0
    unavailable: float = 0.0
    forbidden: float = 0.0
    reset: float = 0.0
    lost: float = 0.0
    cut: float = 0.0
    short: float = 0.0
    silent: float = 0.0
    methods: str = ""
    path: str = "*"
    seed: int = 0

    def matches(self, request: Request) -> bool:
        """Whether this is about such a request."""
        methods = self.methods.split() or [request.method]
        return request.method in methods and fnmatchcase(request.object, self.path)

    def draw(self, request: Request, asked: Counter[bytes]) -> str:
        """The fault of a request; empty for none."""
        said = [self.seed, request.method, request.target, request.headers.get("Range", "")]
        key = hashlib.blake2b("\n".join(map(str, said)).encode(), digest_size=8)
        asked[key.digest()] += 1
        key.update(str(asked[key.digest()]).encode())
        drawn = int.from_bytes(key.digest()) / 2**64
        for kind in KINDS:
            drawn -= getattr(self, kind)
            if drawn < 0:
                return kind
        return ""


@dataclass
class Served:
    """A request, and what became of it."""

    method: str
    object: str
    """`<bucket>/<name>`; `<bucket>/` of a list"""
    range: str
    """the header: `bytes=0-99`, or empty"""
    status: int = 0
    """0 where nothing was answered"""
    sent: int = 0
    """bytes of the body that went out"""
    fault: str = ""
    """which of `Faults` was delivered; empty for none"""


class BucketServer(ThreadingHTTPServer):
    """A server of a kind of buckets, in threads of this process, until it is ended.

    Args:
        scheme: "gs" or "s3".
        objects: what it serves.
        buckets: the only buckets that there are; None for every name.
    """

    request_queue_size = 1024
    daemon_threads = False

    def __init__(self, scheme: Scheme, objects: Objects, buckets: Buckets) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.scheme, self._objects = scheme, objects
        self.service, self.served = Service(objects, buckets), list[Served]()
        self.lock, self.asked = RLock(), Counter[bytes]()
        self.connections = set[socket.socket]()
        self._faults: Sequence[Faults] = ()
        self.address = f"http://127.0.0.1:{self.server_port}"
        self._serving = Thread(target=self.serve_forever, args=(0.05,), name="buckets", daemon=True)
        self._serving.start()

    @property
    def env(self) -> dict[str, str]:
        """The variables with which clients use it: `os.environ | server.env`."""
        if self.scheme == "gs":
            token = {"GOOGLE_AUTH_TOKEN_FOR_TESTING": "any"}
            return token | {"TENSORSTORE_GCS_HTTP_URL": self.address}
        service = dict.fromkeys(("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), self.address)
        keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "any")
        return service | keys | {"AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}

    def url(self, place: str = "") -> str:
        """The URL of `<bucket>/<path>`, as jaxdata takes it."""
        return f"{self.scheme}://{place}"

    @property
    def faults(self) -> Sequence[Faults]:
        """What goes wrong; assign one `Faults`, a list of them, or `()`, at any time."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults | Sequence[Faults]) -> None:
        self._faults = [faults] if isinstance(faults, Faults) else faults
        self.asked.clear()

    @property
    def requests(self) -> list[Served]:
        """Every request since the beginning, or since `clear`."""
        return [*self.served]

    @property
    def counts(self) -> Any:
        """Sums over `requests`: `requests`, `sent`, and how often each of the `faults` was."""
        served = self.requests
        faults = dict(Counter(one.fault for one in served if one.fault))
        sent = sum(one.sent for one in served)
        return SimpleNamespace(requests=len(served), sent=sent, faults=faults)

    def clear(self) -> None:
        """Forget the requests so far."""
        self.served.clear()

    def names(self, prefix: str = "") -> list[str]:
        """`<bucket>/<name>` of the objects that begin with `prefix`, in order."""
        with self.lock:
            return self._objects.names(prefix)

    def read(self, name: str) -> bytes:
        """The content of `<bucket>/<name>`; raises LookupError if there is no such object."""
        with self.lock:
            if (entry := self._objects.stat(name)) is None:
                raise LookupError(f"there is no {name}")
            return self._objects.read(name, 0, entry.size)

    def write(self, name: str, data: bytes) -> None:
        """Write `<bucket>/<name>`, or overwrite it with a new generation."""
        with self.lock:
            self._objects.write(name, data)

    def handle_error(self, *_: object) -> None:
        """A client went away."""

    def end(self) -> None:
        """End it, and its connections."""
        self.shutdown()
        self._serving.join()
        for each in list(self.connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: BucketServer

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self._serve(Request(self.command, self.path, self.headers, self.rfile.read(length)))  # type: ignore[arg-type]

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def _serve(self, request: Request) -> None:
        one = Served(request.method, request.object, request.headers.get("Range") or "")
        with self.server.lock:
            self.server.served.append(one)
            faults = [each for each in self.server.faults if each.matches(request)]
            drawn = [each.draw(request, self.server.asked) for each in faults]
        fault = next(filter(None, drawn), "")
        time.sleep(sum(each.latency for each in faults))
        if fault not in ("cut", "short"):
            one.fault = fault
        if fault == "silent":
            self.rfile.read(1)  # until the client has had enough
            self.close_connection = True
            return
        if fault != "reset":
            with self.server.lock:
                if fault in STATUSES:
                    said = Response(STATUSES[fault], f"{fault}, for a test".encode())
                else:
                    said = self.server.service.answer(request)
        if fault in ("reset", "lost"):  # with this option, closing sends RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.server.connections.discard(self.connection)
            os.close(self.connection.detach())
            self.close_connection = True
            return
        body, length = said.body, len(said.body)
        if fault in ("cut", "short") and body and said.status < 300 and request.method != "HEAD":
            one.fault, body = fault, body[: length // 2]
            length = len(body) if fault == "short" else length
        # The log is right before the client can look at it.
        one.status, one.sent = said.status, len(body) * (request.method != "HEAD")
        self._send(said._replace(body=body), length)
        self.close_connection |= one.fault == "cut"

    def _send(self, said: Response, length: int) -> None:
        self.send_response(said.status)
        for name, value in said.headers.items():
            self.send_header(name, value)
        if said.status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said.body)


@contextmanager
def bucket_server(
    scheme: Scheme = "gs", *, folder: str | Path | None = None, buckets: Buckets = None
) -> Iterator[BucketServer]:
    """A server of Google Cloud Storage or of S3 in threads of this process.

    Args:
        scheme: "gs" or "s3".
        folder: where objects are, as files `<bucket>/<name>`; None for memory.
        buckets: the only buckets that there are; None for every name.
    """
    server = BucketServer(scheme, Objects(None if folder is None else Path(folder)), buckets)
    try:
        yield server
    finally:
        server.end()


class _Elsewhere:
    """A `BucketServer` of another process, which is asked over pipes."""

    def __init__(self, process: Any) -> None:
        vars(self)["_process"] = process

    def _ask(self, *what: Any) -> Any:
        pickle.dump(what, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)

    def __getattr__(self, name: str) -> Any:
        is_method = callable(getattr(BucketServer, name))
        return partial(self._ask, "call", name) if is_method else self._ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)


@contextmanager
def bucket_process(scheme: Scheme, folder: str | Path) -> Iterator[Any]:
    """As `bucket_server`, in a process of its own: it takes no time from what is measured."""
    code = f"import sys, {__name__} as server; server._serve_elsewhere(*sys.argv[1:])"
    command = [sys.executable, "-c", code, scheme, str(folder)]
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": python_path}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env) as process:
        yield _Elsewhere(process)  # closing the pipes ends the process


def _serve_elsewhere(scheme: Any, folder: str) -> None:
    with bucket_server(scheme, folder=folder) as server, suppress(EOFError):
        while True:
            how, name, *given = pickle.load(sys.stdin.buffer)
            found = setattr(server, name, *given) if how == "set" else getattr(server, name)
            pickle.dump(found(*given) if how == "call" else found, sys.stdout.buffer)
            sys.stdout.flush()
