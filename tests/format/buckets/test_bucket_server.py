"""The servers of buckets against the client that reads and writes datasets: tensorstore."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.errors import DatasetError, JaxdataError
from jaxdata.format.manifest import read_manifest
from jaxdata.format.storage import open_store
from jaxdata.format.storage.kvstores import open_kvstore
from jaxdata.format.storage.small_files import read_small
from jaxdata.testing.buckets import (
    BucketServer,
    Faults,
    bucket_process,
    bucket_server,
    fault_proxy,
)
from jaxdata.testing.buckets.server import Scheme
from tests.format.buckets.conftest import use

NAME = "deep/a b+ü%20&<.bin"


def asked(server: BucketServer) -> list[tuple[str, str, str, int, int]]:
    found = [(r.method, r.object, r.range, r.status, r.sent) for r in server.requests]
    server.clear()
    return found


def plain(
    server: BucketServer, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """A request without any client's help."""
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, named)
    answer = connection.getresponse()
    found = answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()}
    connection.close()
    return found


def test_objects_come_back_whole_and_in_ranges(server: BucketServer) -> None:
    kvstore = open_kvstore(server.url("bkt/ds"))
    assert kvstore.read(NAME).result().state == "missing"
    kvstore.write(NAME, b"0123456789").result()
    assert server.read(f"bkt/ds/{NAME}") == b"0123456789"
    server.clear()
    assert kvstore.read(NAME).result().value == b"0123456789"
    assert kvstore.read(NAME, byte_range=slice(2, 5)).result().value == b"234"
    assert kvstore.read(NAME, byte_range=slice(7, None)).result().value == b"789"
    assert kvstore.read(NAME, byte_range=slice(-2, None)).result().value == b"89"
    where = f"bkt/ds/{NAME}"
    assert asked(server) == [
        ("GET", where, "", 200, 10),
        ("GET", where, "bytes=2-4", 206, 3),
        ("GET", where, "bytes=7-", 206, 3),
        ("GET", where, "bytes=-2", 206, 2),
    ]
    assert kvstore.write(NAME, None).result().generation
    assert kvstore.read(NAME).result().state == "missing"
    assert server.names() == []


@pytest.mark.parametrize("behind", [slice(8, 12), slice(10, 11)])
def test_a_range_behind_the_end_is_refused(server: BucketServer, behind: slice) -> None:
    server.write("bkt/ds/a", b"0123456789")
    with pytest.raises(ValueError, match="OUT_OF_RANGE"):
        open_kvstore(server.url("bkt/ds")).read("a", byte_range=behind).result()


def test_a_write_may_depend_on_what_was_read(server: BucketServer) -> None:
    kvstore = open_kvstore(server.url("bkt/ds"))
    missing = kvstore.read("a").result().stamp.generation
    assert kvstore.write("a", b"one", if_equal=missing).result().generation
    assert not kvstore.write("a", b"none", if_equal=missing).result().generation, "it exists"
    seen = kvstore.read("a").result().stamp.generation
    server.write("bkt/ds/a", b"another's")
    assert not kvstore.write("a", b"mine", if_equal=seen).result().generation
    assert not kvstore.write("a", None, if_equal=seen).result().generation
    assert server.read("bkt/ds/a") == b"another's"
    seen = kvstore.read("a", byte_range=slice(0, 0)).result().stamp.generation
    assert kvstore.write("a", None, if_equal=seen).result().generation
    assert server.names() == []


def test_a_read_may_depend_on_what_was_read_before(server: BucketServer) -> None:
    kvstore = open_kvstore(server.url("bkt/ds"))
    server.write("bkt/ds/a", b"0123")
    seen = kvstore.read("a").result().stamp.generation
    assert kvstore.read("a", if_not_equal=seen).result().state == "unspecified"
    server.write("bkt/ds/a", b"4567")
    assert kvstore.read("a", if_not_equal=seen).result().value == b"4567"
    assert [one.status for one in server.requests] == [200, 304, 200]


def test_a_read_may_ask_for_one_generation() -> None:
    with bucket_server("gs") as server:
        path = "/storage/v1/b/bkt/o/a?alt=media"
        server.write("bkt/a", b"0123")
        first = plain(server, "GET", path)[2]["x-goog-generation"]
        assert plain(server, "GET", f"{path}&ifGenerationMatch={first}")[:2] == (200, b"0123")
        server.write("bkt/a", b"4567")
        assert plain(server, "GET", f"{path}&ifGenerationMatch={first}")[0] == 412
        assert plain(server, "GET", f"{path}&generation={first}")[0] == 404
    with bucket_server("s3") as server:
        server.write("bkt/a", b"0123")
        etag = plain(server, "HEAD", "/bkt/a")[2]["etag"]
        assert plain(server, "GET", "/bkt/a", If_Match=etag)[:2] == (200, b"0123")
        server.write("bkt/a", b"4567")
        assert plain(server, "GET", "/bkt/a", If_Match=etag)[0] == 412


def test_the_same_content_again_is_a_new_generation_but_not_a_new_etag(
    server: BucketServer,
) -> None:
    kvstore, seen = open_kvstore(server.url("bkt/ds")), []
    for _ in range(2):
        server.write("bkt/ds/a", b"0123")
        seen.append(kvstore.read("a").result().stamp.generation)
    assert (seen[0] == seen[1]) == (server.scheme == "s3")


def test_lists_of_several_pages(server: BucketServer) -> None:
    names = [f"many/{number:04}" for number in range(2_100)] + [NAME, "z"]
    for name in names:
        server.write(f"bkt/ds/{name}", b"")
    server.write("bkt/dsx", b"not below it")
    server.write("other/ds/a", b"of another bucket")
    kvstore = open_kvstore(server.url("bkt/ds"))
    assert [key.decode() for key in sorted(kvstore.list().result())] == sorted(names)
    assert [status for _, where, _, status, _ in asked(server)] == [200] * 3
    below = kvstore.list(kvstore.KeyRange("many/1000", "many/1003")).result()
    assert sorted(below) == [b"many/1000", b"many/1001", b"many/1002"]


def test_only_buckets_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme, path in (("gs", "/storage/v1/b/%s/o/a?alt=media"), ("s3", "/%s/a")):
        with bucket_server(scheme, buckets=["bkt"]) as server:  # type: ignore[arg-type]
            server.write("bkt/a", b"1")
            assert plain(server, "GET", path % "bkt")[:2] == (200, b"1")
            status, body, _ = plain(server, "GET", path % "none")
            assert status == 404
            assert b"bucket does not exist" in body


def test_a_folder_holds_the_objects_as_files(tmp_path: Path) -> None:
    path, seen = "/storage/v1/b/bkt/o/deep%2Fa?alt=media", set()
    for content in (b"0123456789", b"abcdefghij"):
        with bucket_server("gs", folder=tmp_path) as server:
            server.write("bkt/deep/a", content)
            assert (tmp_path / "bkt/deep/a").read_bytes() == content
            _, body, told = plain(server, "GET", path, Range="bytes=3-4")
            assert body == content[3:5]
            seen.add(told["x-goog-generation"])
    with bucket_server("gs", folder=tmp_path) as server:
        (tmp_path / "bkt/deep/a").write_bytes(b"by hand")
        _, body, told = plain(server, "GET", path)
        assert body == b"by hand"
        assert len(seen | {told["x-goog-generation"]}) == 3
        assert server.names("bkt/de") == ["bkt/deep/a"]
        server.delete("bkt/deep/a")
        assert not (tmp_path / "bkt/deep/a").exists()


def test_nothing_outside_the_folder_is_served(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"1")
    with bucket_server("gs", folder=tmp_path / "buckets") as server:
        (tmp_path / "buckets/bkt").mkdir()
        assert plain(server, "GET", "/storage/v1/b/../o/secret?alt=media")[0] == 404
        assert plain(server, "GET", "/storage/v1/b/bkt/o/..%2F..%2Fsecret?alt=media")[0] == 404
        with pytest.raises(ValueError, match=r"no file can be called 'bkt/\.\./\.\./a'"):
            server.write("bkt/../../a", b"outside")
        assert sorted(file.name for file in tmp_path.iterdir()) == ["buckets", "secret"]


def test_s3_puts_an_object_together_from_parts() -> None:
    with bucket_server("s3") as server:
        _, said, _ = plain(server, "POST", "/bkt/a?uploads")
        upload = said.split(b"<UploadId>")[1].split(b"<")[0].decode()
        for number, part in ((2, b"world"), (1, b"hello "), (3, b"!")):
            plain(server, "PUT", f"/bkt/a?partNumber={number}&uploadId={upload}", part)
        assert server.names() == []
        parts = "".join(f"<Part><PartNumber>{number}</PartNumber></Part>" for number in (1, 2))
        done = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        short = done.replace(b"2", b"7")
        assert plain(server, "POST", f"/bkt/a?uploadId={upload}", short)[0] == 400
        assert plain(server, "POST", f"/bkt/a?uploadId={upload}", done)[0] == 200
        assert server.read("bkt/a") == b"hello world"
        assert plain(server, "DELETE", f"/bkt/a?uploadId={upload}")[0] == 404, "it is complete"


def test_s3_takes_conditional_puts() -> None:
    with bucket_server("s3") as server:
        new = {"If_None_Match": "*"}
        status, _, told = plain(server, "PUT", "/bkt/a", b"1", **new)
        assert status == 200
        assert plain(server, "PUT", "/bkt/a", b"2", **new)[0] == 412
        assert plain(server, "PUT", "/bkt/a", b"2", If_Match='"other"')[0] == 412
        assert plain(server, "PUT", "/bkt/b", b"2", If_Match=told["etag"])[0] == 404
        assert plain(server, "PUT", "/bkt/a", b"2", If_Match=told["etag"])[0] == 200
        assert server.read("bkt/a") == b"2"


def test_boto3_is_served(tmp_path: Path) -> None:
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    from boto3.s3.transfer import TransferConfig

    with bucket_server("s3") as server:
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
        client = boto3.client("s3", endpoint_url=server.address, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="bkt")
        content = bytes(range(256)) * 50_000
        (tmp_path / "a").write_bytes(content)
        in_parts = TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=5 << 20)
        client.upload_file(str(tmp_path / "a"), "bkt", "big", Config=in_parts)
        client.put_object(Bucket="bkt", Key=NAME, Body=b"small")
        assert client.get_object(Bucket="bkt", Key="big")["Body"].read() == content
        assert client.head_object(Bucket="bkt", Key=NAME)["ContentLength"] == 5
        listed = client.list_objects_v2(Bucket="bkt")["Contents"]
        assert [(each["Key"], each["Size"]) for each in listed] == [
            ("big", len(content)),
            (NAME, 5),
        ]
        client.delete_object(Bucket="bkt", Key="big")
        with pytest.raises(client.exceptions.NoSuchKey):
            client.get_object(Bucket="bkt", Key="big")
        client.close()


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_bucket_that_is_not_there_is_called_that(
    scheme: Scheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket_server(scheme, buckets=["bkt"]) as server:
        use(server, monkeypatch)
        there, wrong = server.url("bkt/ds"), server.url("nobkt/ds")
        with pytest.raises(DatasetError, match=f"{there} is not a dataset: it has no dataset.json"):
            read_manifest(open_store(there))
        assert open_store(there).list() == []
        store = open_store(wrong)
        for ask in (
            lambda: read_manifest(store),
            store.list,
            lambda: store.write("a", b""),
            lambda: store.update("a", lambda _: b""),
            lambda: store.fenced(lambda: None).write("a", b""),
            lambda: read_small(f"{wrong}/run.yaml"),
            lambda: find_inputs([f"{wrong}/a.jsonl"]),
        ):
            with pytest.raises(
                JaxdataError, match=f"There is no bucket {scheme}://nobkt, or .*: che"
            ):
                ask()
        assert server.counts.requests < 40, "nobody asked again and again"


def test_another_process_reads_counts_and_switches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with bucket_process("gs", folder=tmp_path, faults=Faults(latency=0.001)) as server:
        use(server, monkeypatch)
        assert server.faults == (Faults(latency=0.001),)
        open_store(server.url("bkt/ds")).write("a", b"0123456789")
        server.faults = Faults(forbidden=1.0, path="*/ds/a", methods="GET")
        with pytest.raises(DatasetError, match="ds/a cannot be read: PERMISSION_DENIED"):
            open_store(server.url("bkt/ds")).read("a")
        counts = server.counts
        assert (counts.requests, counts.received, counts.most_at_once) == (2, 10, 1)
        assert (counts.methods, counts.faults) == ({"POST": 1, "GET": 1}, {"forbidden": 1})
        assert (tmp_path / "bkt/ds/a").read_bytes() == b"0123456789"
        with bucket_process("gs", upstream=server.address) as proxy:
            assert plain(proxy, "GET", "/storage/v1/b/bkt/o/ds%2Fa?alt=media")[0] == 403
        with pytest.raises(LookupError, match="there is no objects/bkt/b"):
            server.read("bkt/b")


def test_the_command_prints_the_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jaxdata.testing.buckets", "--folder", str(tmp_path)]
    with subprocess.Popen([*command, "--scheme", "s3"], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        address = run.stdout.readline().split()[1]
        assert run.stdout.readline() == f"export AWS_ENDPOINT_URL={address}\n"
        BucketServer("s3", address).write("bkt/a", b"1")
        run.terminate()
    assert run.returncode == 0
    assert (tmp_path / "bkt/a").read_bytes() == b"1"
    wrong = subprocess.run([*command, "--cut", "2"], capture_output=True, text=True)
    assert "error: shares of requests lie in [0, 1]" in wrong.stderr


def test_a_proxy_in_front_of_another_server(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fault_proxy(server.address, server.scheme) as proxy:
        use(proxy, monkeypatch)
        kvstore = open_kvstore(proxy.url("bkt/ds"))
        kvstore.write(NAME, bytes(100_000)).result()
        missing = kvstore.read("a").result().stamp.generation
        assert not kvstore.write(NAME, b"", if_equal=missing).result().generation
        assert kvstore.read(NAME, byte_range=slice(1, 5)).result().value == bytes(4)
        assert kvstore.list().result() == [NAME.encode()]
        assert proxy.counts.sent == server.counts.sent
        assert asked(proxy) == asked(server)
        with pytest.raises(ValueError, match="belong to the server behind this proxy"):
            proxy.names()


def test_a_proxy_says_that_nothing_is_behind_it() -> None:
    with bucket_server("s3") as ended:
        address = ended.address
    with fault_proxy(address) as proxy:
        status, body, _ = plain(proxy, "GET", "/bkt/a")
        assert status == 502
        assert b"the server behind the proxy" in body
    with pytest.raises(ValueError, match="'s3://bkt' is no server: http://<host>:<port> was"):
        fault_proxy("s3://bkt").__enter__()


def test_a_body_in_chunks_is_understood() -> None:
    with bucket_server("s3") as server:
        connection = http.client.HTTPConnection(urlsplit(server.address).netloc)
        connection.request("PUT", "/bkt/a", iter([b"01234", b"56789"]), encode_chunked=True)
        assert connection.getresponse().read() == b""
        signed = b"5;chunk-signature=ab\r\nabcde\r\n0;chunk-signature=cd\r\n\r\n"
        headers = {"x-amz-decoded-content-length": "5"}
        connection.request("PUT", "/bkt/b", signed, headers)
        assert connection.getresponse().status == 200
        connection.close()
        assert (server.read("bkt/a"), server.read("bkt/b")) == (b"0123456789", b"abcde")


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    for scheme, path in (("gs", "/upload/storage/v1/b/bkt/o?name=a/../b"), ("s3", "/bkt/a//b")):
        with bucket_server(scheme, folder=tmp_path) as server:  # type: ignore[arg-type]
            method = "POST" if scheme == "gs" else "PUT"
            assert plain(server, method, path, b"1")[0] == 400
            assert plain(server, "PATCH", path)[0] == 405
            connection = http.client.HTTPConnection(urlsplit(server.address).netloc)
            connection.connect()
            connection.sock.sendall(b"no HTTP at all\r\n\r\n")
            assert connection.sock.recv(1) == b"", "the connection is closed"
            connection.close()


def test_a_client_may_wait_for_leave_to_send_a_body() -> None:
    with bucket_server("s3") as server:
        connection = http.client.HTTPConnection(urlsplit(server.address).netloc)
        connection.putrequest("PUT", "/bkt/a")
        connection.putheader("Expect", "100-continue")
        connection.putheader("Content-Length", "3")
        connection.endheaders()
        assert connection.sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.send(b"123")
        assert connection.getresponse().status == 200
        connection.close()
        assert server.read("bkt/a") == b"123"


def test_64_connections_at_once_are_counted_exactly(server: BucketServer) -> None:
    server.write("bkt/a", bytes(1000))
    server.faults = Faults(latency=0.03)
    path = "/bkt/a" if server.scheme == "s3" else "/storage/v1/b/bkt/o/a?alt=media"
    together = threading.Barrier(64)

    def read_ten() -> None:
        connection = http.client.HTTPConnection(urlsplit(server.address).netloc)
        together.wait()
        for number in range(10):
            connection.request("GET", path, headers={"Range": f"bytes={number}-"})
            assert len(connection.getresponse().read()) == 1000 - number
        connection.close()

    threads = [threading.Thread(target=read_ten) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = server.counts
    assert (counts.requests, counts.statuses) == (640, {206: 640})
    assert counts.sent == 64 * sum(range(991, 1001))
    assert 1 < counts.most_at_once <= 64
    assert min(one.seconds for one in server.requests) >= 0.03
