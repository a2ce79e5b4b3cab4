"""A server of buckets, seen from outside: where it is, what it has counted, what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from http.client import HTTPConnection
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from jaxdata.testing.buckets.control import PREFIX
from jaxdata.testing.buckets.faults import Faults
from jaxdata.testing.buckets.gcs_server import GcsServer
from jaxdata.testing.buckets.request_log import Counts, Served
from jaxdata.testing.buckets.s3_server import S3Server

Scheme = Literal["gs", "s3"]
PROTOCOLS: dict[str, type[GcsServer] | type[S3Server]] = {"gs": GcsServer, "s3": S3Server}


class BucketServer:
    """A running server, in this process or in any other of this machine.

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
        return PROTOCOLS[self.scheme].environment(self.address)

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
            connection.request(method, PREFIX + what, body)
            response = connection.getresponse()
            said = response.read()
        finally:
            connection.close()
        if response.status == 404:
            raise LookupError(said.decode())
        if response.status != 200:
            raise ValueError(said.decode())
        return said
