"""Every fault is delivered, as often as it is asked for, and to whom."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from jaxdata.format.storage.kvstores import open_kvstore
from jaxdata.testing.buckets import BucketServer, Faults, bucket_server, fault_proxy
from jaxdata.testing.buckets.faults import KINDS, Draws
from jaxdata.testing.buckets.http_messages import Request

CONTENT = bytes(range(200)) * 5


@pytest.fixture
def s3() -> Iterator[BucketServer]:
    with bucket_server("s3") as server:
        server.write("bkt/a", CONTENT)
        yield server


@pytest.fixture(params=["inside", "in front"])
def faulty(request: pytest.FixtureRequest, s3: BucketServer) -> Iterator[BucketServer]:
    """A server with faults of its own, and a proxy in front of one that has none."""
    if request.param == "inside":
        yield s3
        return
    with fault_proxy(s3.address) as proxy:
        yield proxy


def get(server: BucketServer, timeout: float | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=timeout)
    try:
        connection.request("GET", "/bkt/a")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("fault", "status"),
    [("unavailable", 503), ("throttled", 429), ("forbidden", 403), ("vanished", 404)],
)
def test_an_answer_that_refuses(faulty: BucketServer, fault: str, status: int) -> None:
    faulty.faults = Faults(**{fault: 1.0})  # type: ignore[arg-type]
    assert get(faulty) == (status, f"{fault}, for a test".encode())
    assert faulty.counts.faults == {fault: 1}
    faulty.faults = ()
    assert get(faulty) == (200, CONTENT)


def test_a_connection_is_reset(faulty: BucketServer) -> None:
    faulty.faults = Faults(reset=1.0)
    with pytest.raises(ConnectionResetError) as raised:
        get(faulty)
    assert not isinstance(raised.value, http.client.RemoteDisconnected), "it was closed, not reset"
    (one,) = faulty.requests
    assert (one.fault, one.status, one.sent) == ("reset", 0, 0)


def test_a_reset_write_was_not_done_and_a_lost_one_was(
    faulty: BucketServer, s3: BucketServer
) -> None:
    for fault, expected in (("reset", CONTENT), ("lost", b"new")):
        faulty.faults = Faults(**{fault: 1.0})  # type: ignore[arg-type]
        connection = http.client.HTTPConnection(urlsplit(faulty.address).netloc)
        connection.request("PUT", "/bkt/a", b"new")
        with pytest.raises(ConnectionResetError):
            connection.getresponse()
        connection.close()
        assert s3.read("bkt/a") == expected


def test_a_body_breaks_off(faulty: BucketServer) -> None:
    faulty.faults = Faults(cut=1.0)
    with pytest.raises(http.client.IncompleteRead) as raised:
        get(faulty)
    assert (raised.value.partial, raised.value.expected) == (CONTENT[:500], 500)
    assert [(one.fault, one.sent) for one in faulty.requests] == [("cut", 500)]


def test_a_body_is_short_and_its_length_says_so(faulty: BucketServer) -> None:
    faulty.faults = Faults(short=1.0)
    assert get(faulty) == (200, CONTENT[:500])
    assert [(one.fault, one.sent) for one in faulty.requests] == [("short", 500)]


def test_silence(faulty: BucketServer) -> None:
    faulty.faults = Faults(silent=1.0)
    with pytest.raises(TimeoutError):
        get(faulty, timeout=0.2)
    assert [(one.fault, one.status) for one in faulty.requests] == [("silent", 0)]


def test_requests_under_way_are_counted(faulty: BucketServer) -> None:
    faulty.faults = Faults(silent=1.0)
    place = urlsplit(faulty.address).netloc
    connections = [http.client.HTTPConnection(place) for _ in range(70)]
    for connection in connections:
        connection.request("GET", "/bkt/a")
    while faulty.counts.requests < 70:
        time.sleep(0.01)
    assert faulty.counts.most_at_once == 70
    for connection in connections:
        connection.close()
    while not all(one.seconds for one in faulty.requests):
        time.sleep(0.01)
    faulty.clear()
    assert faulty.counts.most_at_once == 0, "those that gave up are still under way"


def test_latency_and_bandwidth_take_their_time(faulty: BucketServer) -> None:
    faulty.faults = [Faults(latency=0.1), Faults(latency=0.1, bandwidth=10_000)]
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: get(faulty), range(4))) == [(200, CONTENT)] * 4
    assert time.monotonic() - began >= 0.2 + 4 * 0.1, "bytes go one after the other"
    most = faulty.counts.most_at_once
    get(faulty)
    assert faulty.counts.most_at_once == most > 1


def test_only_some_requests_go_wrong(faulty: BucketServer, s3: BucketServer) -> None:
    faulty.faults = [
        Faults(unavailable=1.0, path="bkt/b*"),
        Faults(unavailable=1.0, methods="HEAD PUT"),
        Faults(forbidden=1.0, after=2),
    ]
    assert [get(faulty)[0] for _ in range(4)] == [200, 200, 403, 403]
    s3.write("bkt/b1", b"")
    found = []
    for method, path in (("GET", "/bkt/b1"), ("PUT", "/bkt/a"), ("DELETE", "/bkt/a")):
        connection = http.client.HTTPConnection(urlsplit(faulty.address).netloc)
        connection.request(method, path)
        found.append(connection.getresponse().status)
        connection.close()
    assert found == [503, 503, 403]


def test_an_object_vanishes_or_is_overwritten_under_a_run(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.write("bkt/ds/a", b"0123456789")
    kvstore = open_kvstore(server.url("bkt/ds"))
    first = kvstore.read("a", byte_range=slice(0, 5)).result()
    server.write("bkt/ds/a", b"abcdefghij")
    second = kvstore.read("a", byte_range=slice(5, 10)).result()
    assert (first.value, second.value) == (b"01234", b"fghij")
    assert first.stamp.generation != second.stamp.generation
    server.delete("bkt/ds/a")
    assert kvstore.read("a").result().state == "missing"


@pytest.mark.parametrize("fault", ["unavailable", "throttled", "reset", "cut"])
def test_tensorstore_tries_again(
    server: BucketServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.write("bkt/ds/a", CONTENT)
    server.faults = Faults(**{fault: 0.5}, methods="GET")  # type: ignore[arg-type]
    kvstore = open_kvstore(server.url("bkt/ds"))
    asked = [kvstore.read("a", byte_range=slice(k, k + 100)) for k in range(40)]
    assert [one.result().value for one in asked] == [CONTENT[k : k + 100] for k in range(40)]
    counts = server.counts
    assert counts.requests == 40 + counts.faults[fault]
    assert counts.faults[fault] > 10


def test_shares_are_what_was_asked_for_and_the_same_in_any_order() -> None:
    faults = Faults(unavailable=0.1, reset=0.05, cut=0.01, silent=0.02, seed=7)
    requests = [Request("GET", "/bkt/a", {"range": f"bytes={k}-"}) for k in range(5_000)]
    draws, backwards = Draws(faults), Draws(faults)
    drawn = [draws.draw(request).fault for request in requests]
    assert drawn == [backwards.draw(each).fault for each in reversed(requests)][::-1]
    shares = {kind: drawn.count(kind) / 5_000 for kind in KINDS}
    assert shares == pytest.approx({kind: getattr(faults, kind) for kind in KINDS}, abs=0.015)
    again = [draws.draw(request).fault for request in requests]
    assert drawn != again, "a request that is asked again is drawn again"
    assert sum(one == two == "unavailable" for one, two in zip(drawn, again, strict=True)) < 100
    other = Draws(Faults(unavailable=0.1, seed=8))
    assert [other.draw(request).fault for request in requests] != drawn


@pytest.mark.parametrize("wrong", [{"cut": 1.5}, {"reset": -0.1}, {"cut": 0.6, "lost": 0.6}])
def test_shares_that_are_none_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"shares of requests lie in \[0, 1\], all together too"):
        Faults(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="latency and bandwidth are not negative"):
        Faults(latency=-1)
