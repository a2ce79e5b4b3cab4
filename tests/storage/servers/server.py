"""A server of buckets for a `with` block, in a thread of this process or in a process of its own.

Any process of this machine can look at it and switch its faults, over HTTP, by `BucketServer`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from jaxdata.base.processes import hold_on, lifeline
from tests.storage.servers.faults import CONTROL, Counts, Draws, FaultProxy, Faults, Served
from tests.storage.servers.http_messages import Request, Response
from tests.storage.servers.services import FolderObjects, GcsServer, Objects, S3Server

ROOT = Path(__file__).parents[3]
Scheme = Literal["gs", "s3"]
SERVICES: dict[str, type[GcsServer] | type[S3Server]] = {"gs": GcsServer, "s3": S3Server}


class BucketServer:
    """A running server, seen from this process or from any other of this machine.

    What it is asked here is neither counted nor subject to faults.

    Args:
        scheme: "gs" or "s3".
        address: as `http://127.0.0.1:8000`.
    """

    def __init__(self, scheme: Scheme, address: str) -> None:
        self.scheme = scheme
        self.address = address

    @property
    def env(self) -> dict[str, str]:
        """The variables with which clients use it: `os.environ | server.env`."""
        return SERVICES[self.scheme].environment(self.address)

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
    def counts(self) -> Counts:
        """Sums over `requests`."""
        said: dict[str, Any] = json.loads(self._ask("GET", "counts"))
        said["statuses"] = {int(status): number for status, number in said["statuses"].items()}
        return Counts(**said)

    def clear(self) -> None:
        """Forget the requests so far."""
        self._ask("DELETE", "requests")

    def names(self, prefix: str = "") -> list[str]:
        """`<bucket>/<name>` of the objects that begin with `prefix`, in order."""
        found: list[str] = json.loads(self._ask("GET", f"names/{quote(prefix)}"))
        return found

    def read(self, name: str) -> bytes:
        """The content of `<bucket>/<name>`.

        Raises:
            LookupError: there is no such object.
        """
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
        if response.status != 200:
            raise ValueError(said.decode())
        return said


@contextmanager
def bucket_server(
    scheme: Scheme = "gs",
    *,
    folder: str | Path | None = None,
    buckets: Iterable[str] | None = None,
    faults: Faults | Sequence[Faults] = (),
) -> Iterator[BucketServer]:
    """A server of Google Cloud Storage or of S3 in a thread of this process.

    Args:
        scheme: "gs" or "s3".
        folder: where objects are, as files `<bucket>/<name>`; None for memory.
        buckets: the only buckets that there are; None for every name.
        faults: what goes wrong at first.
    """
    objects = Objects() if folder is None else FolderObjects(folder)
    service = SERVICES[scheme](objects, None if buckets is None else frozenset(buckets))
    thread = _ServerThread(objects, service)
    try:
        server = BucketServer(scheme, thread.address)
        server.faults = faults
        yield server
    finally:
        thread.close()


@contextmanager
def bucket_process(
    scheme: Scheme = "gs",
    *,
    folder: str | Path | None = None,
    faults: Faults | Sequence[Faults] = (),
) -> Iterator[BucketServer]:
    """As `bucket_server`, in a process of its own: it takes no time from what is measured.

    Args:
        scheme: "gs" or "s3".
        folder: where objects are, as files `<bucket>/<name>`; None for memory.
        faults: what goes wrong at first.

    Raises:
        RuntimeError: it did not start; it has said why.
    """
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
    parser.add_argument("--scheme", choices=tuple(SERVICES), default="gs")
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


class _ServerThread:
    """An event loop that serves objects, and what `BucketServer` asks, until it is closed."""

    def __init__(self, objects: Objects, service: GcsServer | S3Server) -> None:
        self.address = ""
        self._objects = objects
        self._proxy = FaultProxy(service.answer, self._control)
        self._ready = Event()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="buckets", daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """End it, and its connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            server = self._loop.run_until_complete(self._proxy.serve())
            self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._loop.call_soon(self._ready.set)
            self._loop.run_forever()
            server.close()
            self._loop.run_until_complete(_cancelled(asyncio.all_tasks(self._loop)))
        finally:
            self._loop.close()

    def _control(self, request: Request) -> Response:
        what, _, name = unquote(request.path.removeprefix(CONTROL)).partition("/")
        try:
            said = self._said(request.method, what, name, request.body)
        except LookupError:
            return Response(404, f"there is no {what}/{name}".encode())
        except (TypeError, ValueError) as error:
            return Response(400, str(error).encode())
        return Response(200, said if isinstance(said, memoryview) else json.dumps(said).encode())

    def _said(self, method: str, what: str, name: str, body: bytes) -> object:
        objects, proxy = self._objects, self._proxy
        match method, what:
            case "GET", "requests":
                return [asdict(one) for one in proxy.log.served]
            case "GET", "counts":
                return asdict(proxy.log.counts())
            case "DELETE", "requests":
                return proxy.log.clear()
            case "GET", "faults":
                return [asdict(each) for each in proxy.draws.faults]
            case "PUT", "faults":
                proxy.draws = Draws([Faults(**each) for each in json.loads(body)])
                return None
            case "GET", "names":
                return objects.names(name)
            case "PUT", "objects":
                return objects.write(name, body).generation
            case "DELETE", "objects":
                return objects.delete(name)
        if entry := objects.stat(name):
            return objects.read(name, 0, entry.size)
        raise LookupError(name)


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
