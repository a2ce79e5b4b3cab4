"""A server of buckets for a `with` block, in threads of this process or in a process of its own.

It lets requests go wrong as it is told, and counts them. Any process of this machine can look at it
and switch its faults, over HTTP, by `BucketServer`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import RLock, Thread
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from jaxdata.base.processes import hold_on, lifeline
from tests.storage.servers.service import Objects, Request, Response, Service

ROOT = Path(__file__).parents[3]
Scheme = Literal["gs", "s3"]
CONTROL = "/-/"
"""below it, requests are about the server itself; no bucket is called so"""
STATUSES = {"unavailable": 503, "forbidden": 403, "vanished": 404}
"""faults that are answers"""
KINDS = (*STATUSES, "reset", "lost", "cut", "short", "silent")
_PIECE = 1 << 16  # bytes that are sent between two looks at the bandwidth


@dataclass(frozen=True)
class Faults:
    """Shares of requests that go wrong, each between 0 and 1, and how slow all of them are.

    Args:
        latency: seconds before an answer begins.
        bandwidth: bytes a second of all answers together; 0 for no limit.
        unavailable: answered 503.
        forbidden: answered 403.
        vanished: answered 404, as if the object were gone.
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
    bandwidth: float = 0.0
    unavailable: float = 0.0
    forbidden: float = 0.0
    vanished: float = 0.0
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


class BucketServer:
    """A running server, seen from this process or from any other of this machine.

    What it is asked here is neither counted nor subject to faults.

    Args:
        scheme: "gs" or "s3".
        address: as `http://127.0.0.1:8000`.
    """

    def __init__(self, scheme: Scheme, address: str) -> None:
        self.scheme, self.address = scheme, address

    @property
    def env(self) -> dict[str, str]:
        """The variables with which clients use it: `os.environ | server.env`."""
        if self.scheme == "gs":
            return {
                "TENSORSTORE_GCS_HTTP_URL": self.address,
                "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",
            }
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ENDPOINT_URL_S3": self.address,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def url(self, place: str = "") -> str:
        """The URL of `<bucket>/<path>`, as jaxdata takes it."""
        return f"{self.scheme}://{place}"

    @property
    def faults(self) -> tuple[Faults, ...]:
        """What goes wrong; assign one `Faults`, a list of them, or `()`, at any time."""
        return tuple(Faults(**each) for each in json.loads(self._ask("GET", "faults")))

    @faults.setter
    def faults(self, faults: Faults | Sequence[Faults]) -> None:
        several = [faults] if isinstance(faults, Faults) else faults
        self._ask("PUT", "faults", json.dumps([asdict(each) for each in several]).encode())

    @property
    def requests(self) -> list[Served]:
        """Every request since the beginning, or since `clear`."""
        return [Served(**each) for each in json.loads(self._ask("GET", "requests"))]

    @property
    def counts(self) -> Any:
        """Sums over `requests`: `requests`, `sent`, and how often each of the `faults` was."""
        served = self.requests
        faults = dict(Counter(one.fault for one in served if one.fault))
        sent = sum(one.sent for one in served)
        return SimpleNamespace(requests=len(served), sent=sent, faults=faults)

    def clear(self) -> None:
        """Forget the requests so far."""
        self._ask("DELETE", "requests")

    def names(self, prefix: str = "") -> list[str]:
        """`<bucket>/<name>` of the objects that begin with `prefix`, in order."""
        found: list[str] = json.loads(self._ask("GET", f"names/{quote(prefix)}"))
        return found

    def read(self, name: str) -> bytes:
        """The content of `<bucket>/<name>`; raises LookupError if there is no such object."""
        return self._ask("GET", f"objects/{quote(name)}")

    def write(self, name: str, data: bytes) -> None:
        """Write `<bucket>/<name>`, or overwrite it with a new generation."""
        self._ask("PUT", f"objects/{quote(name)}", data)

    def delete(self, name: str) -> None:
        """Remove `<bucket>/<name>`, if it is there."""
        self._ask("DELETE", f"objects/{quote(name)}")

    def _ask(self, method: str, what: str, body: bytes = b"") -> bytes:
        connection = HTTPConnection(urlsplit(self.address).netloc)
        try:
            connection.request(method, CONTROL + what, body)
            response = connection.getresponse()
            said = response.read()
        finally:
            connection.close()
        if response.status == 404:
            raise LookupError(said.decode())
        return said


class _Server(ThreadingHTTPServer):
    """Serves objects, and what `BucketServer` asks, until it is closed."""

    request_queue_size = 1024
    daemon_threads = False

    def __init__(self, objects: Objects, service: Service) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.objects, self.service, self.lock = objects, service, RLock()
        self.served: list[Served] = []
        self.faults, self.asked = list[Faults](), Counter[bytes]()
        self.connections = set[socket.socket]()
        self.free_at = 0.0
        self.thread = Thread(target=self.serve_forever, args=(0.05,), name="buckets", daemon=True)
        self.thread.start()

    def handle_error(self, *_: object) -> None:
        """A client went away."""

    def end(self) -> None:
        """End it, and its connections."""
        self.shutdown()
        self.thread.join()
        for each in list(self.connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def control(self, request: Request) -> Response:
        """Answer a request about the server itself."""
        what, _, name = request.object.removeprefix(CONTROL[1:]).partition("/")
        said: Any = None
        match request.method, what:
            case "GET", "requests":
                said = [asdict(one) for one in self.served]
            case "DELETE", "requests":
                self.served = []
            case "GET", "faults":
                said = [asdict(each) for each in self.faults]
            case "PUT", "faults":
                self.faults = [Faults(**each) for each in json.loads(request.body)]
                self.asked.clear()
            case "GET", "names":
                said = self.objects.names(name)
            case "PUT", "objects":
                self.objects.write(name, request.body)
            case "DELETE", "objects":
                self.objects.delete(name)
            case "GET", "objects":
                entry = self.objects.stat(name)
                if entry is None:
                    return Response(404, f"there is no {what}/{name}".encode())
                return Response(200, self.objects.read(name, 0, entry.size))
        return Response(200, json.dumps(said).encode())


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

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
        request = Request(self.command, self.path, self.headers, self.rfile.read(length))  # type: ignore[arg-type]
        if request.target.startswith(CONTROL):
            with self.server.lock:
                said = self.server.control(request)
            self._send(said, len(said.body), 0)
        else:
            self._serve(request)

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
                said = self._answer(request, fault)
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
        rates = [each.bandwidth for each in faults if each.bandwidth]
        self._send(said._replace(body=body), length, min(rates, default=0))
        self.close_connection |= one.fault == "cut"

    def _answer(self, request: Request, fault: str) -> Response:
        if fault in STATUSES:
            return Response(STATUSES[fault], f"{fault}, for a test".encode())
        return self.server.service.answer(request)

    def _send(self, said: Response, length: int, bandwidth: float) -> None:
        """Send a response, all bodies together at most so many bytes a second."""
        self.send_response(said.status)
        for name, value in said.headers.items():
            self.send_header(name, value)
        if said.status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            step = _PIECE if bandwidth else max(len(said.body), 1)
            for start in range(0, len(said.body), step):
                piece = said.body[start : start + step]
                if bandwidth:
                    with self.server.lock:
                        begin = max(self.server.free_at, time.monotonic())
                        self.server.free_at = begin + len(piece) / bandwidth
                    time.sleep(max(self.server.free_at - time.monotonic(), 0))
                self.wfile.write(piece)


@contextmanager
def bucket_server(
    scheme: Scheme = "gs",
    *,
    folder: str | Path | None = None,
    buckets: Iterable[str] | None = None,
    faults: Faults | Sequence[Faults] = (),
) -> Iterator[BucketServer]:
    """A server of Google Cloud Storage or of S3 in threads of this process.

    Args:
        scheme: "gs" or "s3".
        folder: where objects are, as files `<bucket>/<name>`; None for memory.
        buckets: the only buckets that there are; None for every name.
        faults: what goes wrong at first.
    """
    objects = Objects(None if folder is None else Path(folder))
    served = _Server(objects, Service(objects, None if buckets is None else frozenset(buckets)))
    try:
        server = BucketServer(scheme, f"http://127.0.0.1:{served.server_port}")
        server.faults = faults
        yield server
    finally:
        served.end()


@contextmanager
def bucket_process(
    scheme: Scheme = "gs",
    *,
    folder: str | Path | None = None,
    faults: Faults | Sequence[Faults] = (),
) -> Iterator[BucketServer]:
    """As `bucket_server`, in a process of its own: it takes no time from what is measured."""
    child, parent = lifeline()
    command = [sys.executable, "-m", __package__, "--scheme", scheme, "--lifeline", str(child)]
    command += ["--folder", str(folder)] if folder else []
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[child],
        env=os.environ | {"PYTHONPATH": python_path},
    ) as process:
        os.close(child)
        with parent:  # closing it ends the process
            address = process.stdout.readline().removeprefix("#").strip() if process.stdout else ""
            if not address:
                raise RuntimeError("the server of buckets did not start: see what it printed")
            server = BucketServer(scheme, address)
            server.faults = faults
            yield server


def main() -> None:
    """Print the environment that leads programs to a server, and serve.

    Until Ctrl-C, a signal, or the end of the process that started it.
    """
    parser = argparse.ArgumentParser("python -m tests.storage.servers")
    parser.add_argument("--scheme", choices=("gs", "s3"), default="gs")
    parser.add_argument("--folder", help="where objects are, as files <bucket>/<name> (memory)")
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), bucket_server(given.scheme, folder=given.folder) as server:
        print(f"# {server.address}")
        print(*(f"export {name}={value}" for name, value in server.env.items()), sep="\n")
        sys.stdout.flush()
        if given.lifeline:
            hold_on(given.lifeline)
        while True:
            signal.pause()
