"""Servers of buckets for a `with` block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jaxdata.testing.buckets.control import Control
from jaxdata.testing.buckets.faults import Faults
from jaxdata.testing.buckets.http_messages import Request, Response
from jaxdata.testing.buckets.objects import FolderObjects, Objects
from jaxdata.testing.buckets.proxy import Answer, Upstream
from jaxdata.testing.buckets.server import PROTOCOLS, BucketServer, Scheme
from jaxdata.testing.buckets.server_thread import ServerThread


@contextmanager
def bucket_server(
    scheme: Scheme = "gs",
    *,
    folder: str | Path | None = None,
    buckets: Iterable[str] | None = None,
    faults: Faults | Sequence[Faults] = (),
    port: int = 0,
) -> Iterator[BucketServer]:
    """A server of Google Cloud Storage or of S3 on this machine, as much of it as tensorstore uses.

    Args:
        scheme: "gs" or "s3".
        folder: where objects are, as files `<bucket>/<name>`; None for memory.
        buckets: the only buckets that there are; None for every name.
        faults: what goes wrong at first.
        port: of 127.0.0.1; 0 for a free one.

    >>> with bucket_server("gs") as server:
    ...     server.write("bucket/a", b"content")
    ...     server.url("bucket/a"), server.names(), server.counts.requests
    ('gs://bucket/a', ['bucket/a'], 0)
    """
    objects = Objects() if folder is None else FolderObjects(folder)
    protocol = PROTOCOLS[scheme](objects, None if buckets is None else frozenset(buckets))

    async def answer(request: Request) -> Response:
        return protocol.answer(request)

    yield from _served(answer, objects, scheme, faults, port)


@contextmanager
def fault_proxy(
    address: str,
    scheme: Scheme = "s3",
    *,
    faults: Faults | Sequence[Faults] = (),
    port: int = 0,
) -> Iterator[BucketServer]:
    """A proxy in front of another server of buckets: of moto, MinIO, fake-gcs-server.

    Args:
        address: of the other server, as `http://127.0.0.1:5000`.
        scheme: what it speaks.
        faults: what goes wrong at first.
        port: of 127.0.0.1; 0 for a free one.
    """
    yield from _served(Upstream(address).answer, None, scheme, faults, port)


def _served(
    answer: Answer,
    objects: Objects | None,
    scheme: Scheme,
    faults: Faults | Sequence[Faults],
    port: int,
) -> Iterator[BucketServer]:
    thread = ServerThread(answer, Control(objects), port)
    try:
        server = BucketServer(scheme, thread.address)
        server.faults = faults
        yield server
    finally:
        thread.close()
