"""Servers of buckets for these tests, and clients that try again at once."""

from collections.abc import Iterator

import pytest

from jaxdata.storage import client
from tests.storage.servers import BucketServer, bucket_server

Patch = pytest.MonkeyPatch


def use(server: BucketServer, monkeypatch: Patch) -> None:
    """Lead this process to a server, as if it had just begun."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "_stores", {})
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(client, "_MOST_PAUSE", 0.01)
    for state in ("_reached", "_allowed"):
        monkeypatch.setattr(client, state, type(getattr(client, state))())
    monkeypatch.setattr(client, "_SHORT_LIMIT", 0.2)


def served(kind: str, monkeypatch: Patch) -> Iterator[BucketServer]:
    with bucket_server(kind) as server:  # type: ignore[arg-type]
        use(server, monkeypatch)
        yield server


@pytest.fixture(params=["gs", pytest.param("s3", marks=pytest.mark.exhaustive)])
def server(request: pytest.FixtureRequest, monkeypatch: Patch) -> Iterator[BucketServer]:
    """A server of either kind, with objects in memory; gs:// or s3:// leads to it."""
    yield from served(request.param, monkeypatch)


@pytest.fixture(params=["gs", "s3"])
def each_server(request: pytest.FixtureRequest, monkeypatch: Patch) -> Iterator[BucketServer]:
    """A server of each kind, in the first tier too."""
    yield from served(request.param, monkeypatch)
