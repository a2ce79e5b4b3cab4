"""The servers of buckets themselves (`tests.storage.servers`): answers, faults, counts."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.storage.servers import BucketServer, Faults, bucket_process, bucket_server
from tests.storage.servers.faults import KINDS, Draws
from tests.storage.servers.http_messages import Request

CONTENT = bytes(range(200)) * 5
PLACE = "/bkt/a"


@pytest.fixture
def s3() -> Iterator[BucketServer]:
    with bucket_server("s3") as server:
        server.write("bkt/a", CONTENT)
        yield server


def connect(server: BucketServer, timeout: float | None = None) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=timeout)


def plain(
    server: BucketServer,
    method: str = "GET",
    path: str = "/bkt/a",
    body: bytes = b"",
    timeout: float | None = None,
    **headers: str,
) -> tuple[int, bytes, dict[str, str]]:
    """A request without any client's help."""
    connection = connect(server, timeout)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body or None, named)
        answer = connection.getresponse()
        return answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()}
    finally:
        connection.close()


def test_answers_depend_on_what_was_seen() -> None:
    same, other = "If-Match", "If-None-Match"

    def found(condition: str = "", body: bytes = b"") -> int:
        given = {condition: seen} if condition else {}
        return plain(server, "PUT" if body else "GET", PLACE, body, **given)[0]

    with bucket_server("s3", buckets=["bkt"]) as server:
        server.write("bkt/a", b"1")
        seen = plain(server, path=PLACE)[2]["etag"]
        assert (found(same), found(other)) == (200, 304)
        server.write("bkt/a", b"1")  # the same content has the same etag
        assert found(same) == 200
        server.write("bkt/a", b"2")
        assert (found(same), found(other), found()) == (412, 200, 200)
        assert [found(same, b"3"), found(other, b"3")] == [412, 200]
        seen = "*"
        assert found(other, b"4") == 412
        assert b"bucket does not exist" in plain(server, path="/none/a")[1]


def test_google_writes_only_over_the_generation_that_was_seen() -> None:
    """The same content is another generation; 0 is that of an object that is not there."""

    def written(generation: str, name: str = PLACE) -> int:
        seen = {"x-goog-if-generation-match": generation}
        return plain(server, "PUT", name, b"1", **seen)[0]

    with bucket_server("gs", buckets=["bkt"]) as server:
        server.write("bkt/a", b"1")
        seen = plain(server, path=PLACE)[2]["x-goog-generation"]
        assert [written(seen), written(seen), written("0")] == [200, 412, 412]
        assert [written("0", "/bkt/new"), written("0", "/bkt/new")] == [200, 412]


def test_a_server_in_a_process_of_its_own_has_objects_as_files_and_nothing_outside(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_bytes(b"1")
    with bucket_process("gs", folder=tmp_path / "all", faults=Faults(latency=0.001)) as server:
        assert server.faults == (Faults(latency=0.001),)
        server.faults = Faults(forbidden=1.0, path="bkt/none", methods="GET")
        server.write("bkt/a", b"0123456789")
        (tmp_path / "all/bkt/b").write_bytes(b"by hand")
        expected = {"a": 200, "b": 200, "none": 403, "..%2F..%2Fsecret": 404}
        for name, status in expected.items():
            assert plain(server, path=PLACE.replace("/a", f"/{name}"))[0] == status
        assert plain(server, path=PLACE, Range="bytes=3-4")[1] == b"34"
        counts = server.counts
        assert (counts.requests, counts.faults) == (5, {"forbidden": 1})
        assert server.names() == ["bkt/a", "bkt/b"]
        with pytest.raises(LookupError, match="there is no objects/bkt/c"):
            server.read("bkt/c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "secret"]


def test_the_command_prints_the_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.storage.servers", "--folder", str(tmp_path)]
    with subprocess.Popen([*command, "--scheme", "s3"], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        address = run.stdout.readline().split()[1]
        assert run.stdout.readline() == f"export AWS_ENDPOINT_URL={address}\n"
        BucketServer("s3", address).write("bkt/a", b"1")
        run.terminate()
    assert run.returncode == 0
    assert (tmp_path / "bkt/a").read_bytes() == b"1"


STATUSES = {"unavailable": 503, "throttled": 429, "forbidden": 403, "vanished": 404}
RAISED: dict[str, type[Exception]] = {
    **dict.fromkeys(("reset", "lost"), ConnectionResetError),
    "silent": TimeoutError,
    "cut": http.client.IncompleteRead,
}


@pytest.mark.parametrize("fault", [*STATUSES, *RAISED, "short"])
def test_a_fault_is_delivered_and_noted(s3: BucketServer, fault: str) -> None:
    if fault in ("reset", "lost"):  # of a write, which was not done, and which was
        s3.faults = Faults(**{fault: 1.0}, methods="PUT")  # type: ignore[arg-type]
        with pytest.raises(ConnectionResetError):
            plain(s3, "PUT", body=b"new")
        assert s3.read("bkt/a") == (CONTENT if fault == "reset" else b"new")
        s3.write("bkt/a", CONTENT)
        s3.clear()
    s3.faults = Faults(**{fault: 1.0})  # type: ignore[arg-type]
    sent = 0
    if fault in STATUSES:
        said = f"{fault}, for a test".encode()
        assert plain(s3)[:2] == (STATUSES[fault], said)
        sent = len(said)
    elif fault == "short":
        assert plain(s3)[:2] == (200, CONTENT[:500]), "its length says so, too"
        sent = 500
    else:
        with pytest.raises(RAISED[fault]) as raised:
            plain(s3, timeout=0.2 if fault == "silent" else None)
        assert not isinstance(raised.value, http.client.RemoteDisconnected), "closed, not reset"
        if isinstance(raised.value, http.client.IncompleteRead):
            assert (raised.value.partial, raised.value.expected) == (CONTENT[:500], 500)
            sent = 500
    assert [(one.fault, one.sent) for one in s3.requests] == [(fault, sent)]
    assert s3.counts.faults == {fault: 1}
    s3.faults = ()
    assert plain(s3)[:2] == (200, CONTENT)


def test_latency_and_bandwidth_take_their_time(s3: BucketServer) -> None:
    s3.faults = [Faults(latency=0.02), Faults(latency=0.02, bandwidth=50_000)]
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: plain(s3), range(4)):
            assert found[:2] == (200, CONTENT)
    assert time.monotonic() - began >= 0.04 + 4 * 0.02, "bytes go one after the other"
    counts = s3.counts
    assert (counts.requests, counts.statuses, counts.sent) == (4, {200: 4}, 4_000)


def test_only_some_requests_go_wrong(s3: BucketServer) -> None:
    s3.faults = [
        Faults(unavailable=1.0, path="bkt/b*"),
        Faults(unavailable=1.0, methods="HEAD PUT"),
        Faults(forbidden=1.0, after=2),
    ]
    s3.write("bkt/b1", b"")
    assert [plain(s3)[0] for _ in range(4)] == [200, 200, 403, 403]
    asked = (("GET", "/bkt/b1"), ("PUT", "/bkt/a"), ("DELETE", "/bkt/a"))
    assert [plain(s3, *each)[0] for each in asked] == [503, 503, 403]


def test_shares_are_what_was_asked_for_and_the_same_in_any_order() -> None:
    faults = Faults(unavailable=0.1, reset=0.05, cut=0.01, silent=0.02, seed=7)
    requests = [Request("GET", "/bkt/a", {"range": f"bytes={k}-"}) for k in range(5_000)]
    draws, backwards = Draws(faults), Draws(faults)
    drawn = [draws.draw(request).fault for request in requests]
    assert drawn == [backwards.draw(each).fault for each in reversed(requests)][::-1]
    shares = {kind: drawn.count(kind) / 5_000 for kind in KINDS}
    assert shares == pytest.approx({kind: getattr(faults, kind) for kind in KINDS}, abs=0.015)
    again = [draws.draw(request).fault for request in requests]
    assert sum(one == two == "unavailable" for one, two in zip(drawn, again, strict=True)) < 100
    other = Draws(Faults(unavailable=0.1, seed=8))
    assert [other.draw(request).fault for request in requests] != drawn
    for wrong in ({"cut": 1.5}, {"reset": -0.1}, {"cut": 0.6, "lost": 0.6}):
        with pytest.raises(ValueError, match=r"shares of requests lie in \[0, 1\], all together"):
            Faults(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="latency and bandwidth are not negative"):
        Faults(latency=-1)
