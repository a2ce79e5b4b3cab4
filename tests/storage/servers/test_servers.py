"""The servers of buckets themselves (`tests.storage.servers`): faults, and shares of them."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.storage.servers import BucketServer, Faults, bucket_process, bucket_server
from tests.storage.servers.server import KINDS

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
