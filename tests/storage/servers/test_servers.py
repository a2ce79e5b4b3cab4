"""The servers of buckets themselves (`tests.storage.servers`): faults, and shares of them."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.storage.servers import BucketServer, Faults, bucket_process, bucket_server
from tests.storage.servers.server import KINDS
from tests.storage.servers.service import Request

CONTENT = bytes(range(200)) * 5


def plain(
    server: BucketServer, method: str = "GET", body: bytes = b"", timeout: float | None = None
) -> tuple[int, bytes]:
    """A request without any client's help."""
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=timeout)
    try:
        connection.request(method, "/bkt/a", body or None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


STATUSES = {"unavailable": 503, "forbidden": 403, "vanished": 404}
RAISED: dict[str, type[Exception]] = {
    **dict.fromkeys(("reset", "lost"), ConnectionResetError),
    "silent": TimeoutError,
    "cut": http.client.IncompleteRead,
}


@pytest.mark.parametrize("fault", KINDS)
def test_a_fault_is_delivered_and_noted(fault: str) -> None:
    with bucket_server("s3") as server:
        server.write("bkt/a", CONTENT)
        server.faults = Faults(**{fault: 1.0}, methods="PUT" if fault in ("reset", "lost") else "")  # type: ignore[arg-type]
        if fault in RAISED:
            with pytest.raises(RAISED[fault]) as raised:
                plain(server, "PUT" if fault in ("reset", "lost") else "GET", b"new", timeout=0.2)
            assert not isinstance(raised.value, http.client.RemoteDisconnected), "closed, not reset"
        elif fault == "short":
            assert plain(server) == (200, CONTENT[:500]), "its length says so, too"
        else:
            assert plain(server) == (STATUSES[fault], f"{fault}, for a test".encode())
        assert server.counts.faults == {fault: 1}
        assert [one.sent for one in server.requests] == [
            {"cut": 500, "short": 500}.get(fault, len(f"{fault}, for a test") * (fault in STATUSES))
        ]
        server.faults = ()
        assert plain(server) == (200, b"new" if fault == "lost" else CONTENT)


def test_latency_and_bandwidth_take_their_time() -> None:
    with bucket_server("gs") as server:
        server.write("bkt/a", CONTENT)
        server.faults = [Faults(latency=0.02), Faults(latency=0.02, bandwidth=50_000)]
        began = time.monotonic()
        assert plain(server) == (200, CONTENT)
        assert time.monotonic() - began >= 0.06


def test_shares_are_what_was_asked_for_and_the_same_in_any_order() -> None:
    faults = Faults(unavailable=0.1, reset=0.05, cut=0.01, silent=0.02, seed=7)
    requests = [Request("GET", "/bkt/a", {"Range": f"bytes={k}-"}) for k in range(5_000)]
    forwards, backwards = Counter[bytes](), Counter[bytes]()
    drawn = [faults.draw(request, forwards) for request in requests]
    assert drawn == [faults.draw(each, backwards) for each in reversed(requests)][::-1]
    shares = {kind: drawn.count(kind) / 5_000 for kind in KINDS}
    assert shares == pytest.approx({kind: getattr(faults, kind) for kind in KINDS}, abs=0.015)
    again = [faults.draw(request, forwards) for request in requests]
    assert sum(one == two == "unavailable" for one, two in zip(drawn, again, strict=True)) < 100


def test_a_server_in_a_process_of_its_own_has_objects_as_files(tmp_path: Path) -> None:
    with bucket_process("gs", folder=tmp_path, faults=Faults(forbidden=1.0)) as server:
        server.write("bkt/a", b"0123456789")
        assert (tmp_path / "bkt/a").read_bytes() == server.read("bkt/a") == b"0123456789"
        (tmp_path / "bkt/b").write_bytes(b"by hand")
        assert plain(server)[0] == 403
        server.delete("bkt/a")
        assert server.names() == ["bkt/b"]
        with pytest.raises(LookupError, match="there is no objects/bkt/c"):
            server.read("bkt/c")


def test_the_command_prints_the_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.storage.servers", "--folder", str(tmp_path)]
    with subprocess.Popen([*command, "--scheme", "s3"], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        address = run.stdout.readline().split()[1]
        assert run.stdout.readline() == f"export AWS_ENDPOINT_URL={address}\n"
        run.terminate()
    assert run.returncode == 0
