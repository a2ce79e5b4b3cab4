"""Inputs in buckets and on web servers: the dataset is the same as of local files."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.converter.api import texts
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.errors import InputError
from jaxdata.format.storage import open_store
from jaxdata.format.storage.objects import RangedFile, is_url, place_of, ranged_file
from jaxdata.testing.buckets import BucketServer, Faults, bucket_server
from tests.format.buckets.conftest import use

pytest.importorskip("obstore", reason="needs jaxdata[buckets]")


@pytest.fixture(params=["gs", "s3"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server of each kind, to which URLs lead."""
    with bucket_server(request.param) as server:
        use(server, monkeypatch)
        yield server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with bucket_server("s3") as server:
        use(server, monkeypatch)
        yield server


def documents(count: int, name: str) -> list[dict[str, Any]]:
    return [{"text": f"document {name} {k} " * (9 + k % 40), "number": k} for k in range(count)]


def lines(count: int, name: str) -> bytes:
    return "\n".join(map(json.dumps, documents(count, name))).encode()


def write_corpus(folder: Path) -> None:
    """A file of every kind, several larger than a unit of 64 KiB; and some that are no inputs."""
    (folder / "sub/.hidden").mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(900, "a"))
    (folder / "sub/b.jsonl.gz").write_bytes(gzip.compress(lines(900, "b"), 1))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(lines(50, "c")))
    (folder / "d.txt").write_text("some text\n\nmore text" * 30_000)
    (folder / "e.json").write_text(json.dumps(documents(100, "e")))
    table = pa.Table.from_pylist(documents(900, "f"))
    pq.write_table(table, folder / "f.parquet", row_group_size=300)
    with pa.ipc.new_file(str(folder / "g.arrow"), table.schema) as writer:
        writer.write_table(table, 100)
    with pa.ipc.new_stream(str(folder / "h.arrow"), table.schema) as writer:
        writer.write_table(table.slice(0, 700))
        writer.write_table(table.slice(700), 50)
    with tarfile.open(folder / "i.tar", "w") as archive:
        for name in "xy":
            data = lines(50, name)
            member = tarfile.TarInfo(f"{name}.jsonl")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    (folder / "sub/.hidden/z.jsonl").write_bytes(lines(1, "z"))
    (folder / "notes.csv").write_text("1,2")


def upload(server: BucketServer, folder: Path, place: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            server.write(f"{place}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def convert(inputs: Any, output: Path, **more: Any) -> Any:
    options = {"source": "web", "tokenizer": "bytes", "workers": 1, "unit_bytes": 2**16}
    return jaxdata.convert(inputs, output=output, **options | {"piece_bytes": 2**14} | more)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_dataset_does_not_depend_on_where_its_inputs_are(
    bucket: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged_file, "BLOCK", 2**15)  # of the parent, which cuts
    write_corpus(tmp_path / "raw")
    upload(bucket, tmp_path / "raw", "bkt/deep/raw")
    convert(tmp_path / "raw", tmp_path / "local")
    convert(bucket.url("bkt/deep/raw/"), tmp_path / "remote")
    expected = content(tmp_path / "local")
    assert content(tmp_path / "remote") == expected
    assert sum(name.endswith(".array_record") for name in expected) > 12


@pytest.mark.parametrize(
    "given",
    ["raw", "raw/", "raw/**/*.jsonl*", ["raw/a.jsonl", "raw/sub/b.jsonl.gz", "raw/c.jsonl.z*"]],
)
def test_what_a_url_stands_for(bucket: BucketServer, tmp_path: Path, given: Any) -> None:
    write_corpus(tmp_path / "raw")
    upload(bucket, tmp_path / "raw", "bkt/raw")
    several = [given] if isinstance(given, str) else given
    local = find_inputs([str(tmp_path / one) for one in several])
    remote = find_inputs([bucket.url(f"bkt/{one}") for one in several])
    assert [file[1:5] for file in remote] == [file[1:5] for file in local]
    assert remote[0].where == bucket.url("bkt/raw/a.jsonl")


def test_a_list_of_inputs_in_a_bucket(bucket: BucketServer, tmp_path: Path) -> None:
    for name in ("raw/a", "raw/b", "other/c"):
        bucket.write(f"bkt/{name}.jsonl", lines(3, name))
    names = f"# a list\nb.jsonl\n../raw/a.jsonl\n{bucket.url('bkt/other/')}\n"
    bucket.write("bkt/raw/list", names.encode())
    (tmp_path / "list").write_text(bucket.url("bkt/raw/*.jsonl"))
    found = find_inputs([], [bucket.url("bkt/raw/list"), tmp_path / "list"])
    assert [file.name for file in found] == ["other/c.jsonl", "raw/a.jsonl", "raw/b.jsonl"]
    with pytest.raises(
        InputError, match=r"--files-from \w+://bkt/none cannot be read \(.*no such obj"
    ):
        find_inputs([], [bucket.url("bkt/none")])


def test_a_folder_that_save_to_disk_wrote(s3: BucketServer) -> None:
    sink = io.BytesIO()
    table = pa.table({"text": ["a", "b"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    s3.write("bkt/saved/data-0.arrow", sink.getvalue())
    s3.write("bkt/saved/cache-1.arrow", sink.getvalue())
    s3.write("bkt/saved/dataset_info.json", b"{}")
    s3.write("bkt/saved/state.json", b'{"_data_files": [{"filename": "data-0.arrow"}]}')
    assert [file.name for file in find_inputs("s3://bkt/saved")] == ["data-0.arrow"]
    assert list(texts("s3://bkt/saved")) == ["a", "b"]
    s3.write("bkt/saved/state.json", b"{}")
    with pytest.raises(InputError, match=r"state\.json was not written by save_to_disk"):
        find_inputs("s3://bkt/saved")


def test_what_cannot_be_found_is_said(s3: BucketServer, tmp_path: Path) -> None:
    s3.write("bkt/a.csv", b"1,2")
    s3.write("bkt/a.jsonl", lines(1, "a"))
    (tmp_path / "a.jsonl").write_bytes(lines(1, "a"))
    for url, said in {
        "s3://bkt/none": "there is no such object, and none below s3://bkt/none/",
        "s3://bkt/*.txt": "s3://bkt/*.txt: no object matches this glob",
        "s3://b*/a.jsonl": "s3://b*/a.jsonl: a glob begins after the name of a bucket",
        "s3://bkt/a.csv": "s3://bkt/a.csv: unsupported file type; expected .jsonl",
        "ftp://bkt/a.jsonl": "cannot read 'ftp://bkt/a.jsonl': expected a path on this machine",
    }.items():
        with pytest.raises(InputError, match=re.escape(said)):
            find_inputs(url)
    with pytest.raises(InputError, match="the inputs are on this machine and s3://: convert those"):
        find_inputs(["s3://bkt/a.jsonl", tmp_path / "a.jsonl"])
    assert [file.where for file in find_inputs("s3://bkt")] == ["s3://bkt/a.jsonl"]


def test_no_permission_is_said(bucket: BucketServer) -> None:
    bucket.write("bkt/a.jsonl", lines(1, "a"))
    bucket.faults = Faults(forbidden=1.0)
    said = r"\w+://bkt/a\.jsonl cannot be read: .*403.*these credentials may read it"
    with pytest.raises(InputError, match=said):
        find_inputs(bucket.url("bkt/a.jsonl"))


def test_errors_name_the_url_and_the_line(s3: BucketServer, tmp_path: Path) -> None:
    s3.write("bkt/a.jsonl", b'{"text": "a"}\n\nno json\n')
    with pytest.raises(InputError, match=r"^s3://bkt/a\.jsonl:3: not JSON"):
        convert("s3://bkt/a.jsonl", tmp_path / "out", on_error="fail")
    s3.write("bkt/b.jsonl.gz", gzip.compress(lines(9, "b"))[:-9])
    with pytest.raises(InputError, match=r"^s3://bkt/b\.jsonl\.gz cannot be read to its end"):
        convert("s3://bkt/b.jsonl.gz", tmp_path / "out")


def test_a_line_that_breaks_changes_nothing(bucket: BucketServer, tmp_path: Path) -> None:
    write_corpus(tmp_path / "raw")
    upload(bucket, tmp_path / "raw", "bkt/raw")
    convert(tmp_path / "raw", tmp_path / "local")
    bucket.faults = Faults(unavailable=0.1, reset=0.05, cut=0.05)
    convert(bucket.url("bkt/raw/"), tmp_path / "remote")
    assert content(tmp_path / "remote") == content(tmp_path / "local")


def test_an_object_that_changes_while_it_is_read_is_refused(s3: BucketServer) -> None:
    s3.write("bkt/a.jsonl", lines(9, "a"))
    (file,) = find_inputs("s3://bkt/a.jsonl")
    s3.write("bkt/a.jsonl", lines(9, "b"))
    with file.open() as opened, pytest.raises(InputError, match=r"^s3://bkt/a\.jsonl changed whil"):
        opened.read()
    s3.delete("bkt/a.jsonl")
    with file.open() as opened, pytest.raises(InputError, match=r"^s3://bkt/a\.jsonl changed whil"):
        opened.read()


def test_an_object_without_a_version_is_read(s3: BucketServer) -> None:
    s3.write("bkt/a", b"content")
    assert place_of("s3://bkt/a").read("s3://bkt/a", 1, 4, "") == b"ont"


def middle_changed(data: bytes) -> bytes:
    return data[:100_000] + data[100_000:].replace(b"document", b"DOCUMENT", 1)


def test_a_changed_object_is_noticed_afterwards(s3: BucketServer, tmp_path: Path) -> None:
    data = lines(900, "a")
    s3.write("bkt/a.jsonl", data)
    convert("s3://bkt/a.jsonl", tmp_path / "out")
    s3.write("bkt/a.jsonl", middle_changed(data))
    with pytest.raises(InputError, match=r"'a\.jsonl' changed since it was converted"):
        convert("s3://bkt/a.jsonl", tmp_path / "out")


KILLED = """
import os, sys, jaxdata
if __name__ == "__main__":
    jaxdata.convert(sys.argv[1], output=sys.argv[2], source="web", tokenizer="bytes", workers=1,
                    unit_bytes=2**16,
                    progress=lambda done, _: done > 150_000 and os.kill(os.getpid(), 9))
"""


def test_a_killed_conversion_resumes_and_sees_what_changed(
    s3: BucketServer, tmp_path: Path
) -> None:
    data = lines(900, "a")
    for name in ("one", "two"):
        s3.write(f"bkt/{name}.jsonl", data)
        killed = [sys.executable, "-c", KILLED, f"s3://bkt/{name}.jsonl", tmp_path / name]
        assert subprocess.run(killed, capture_output=True).returncode == -9
        assert [*(tmp_path / name).rglob("work/*")], "receipts of the first units"
    s3.write("bkt/two.jsonl", middle_changed(data))
    for name in ("one", "two"):
        convert(f"s3://bkt/{name}.jsonl", tmp_path / name, resume=True, piece_bytes=2**22)
        convert(f"s3://bkt/{name}.jsonl", tmp_path / f"{name} anew", piece_bytes=2**22)
        for records in (tmp_path / f"{name} anew").rglob("*.array_record"):
            again = tmp_path / name / records.relative_to(tmp_path / f"{name} anew")
            assert again.read_bytes() == records.read_bytes()


class Ranges(SimpleHTTPRequestHandler):
    """A web server that knows ranges, as http.server's own does not."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.directory) / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        first, last = map(int, re.findall(r"\d+", self.headers["Range"]))
        part = data[first : last + 1]
        self.send_response(206 if part else 416)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", str(hash(data)))
        self.end_headers()
        self.wfile.write(part)


class Whole(Ranges):
    """One that does not."""

    def do_GET(self) -> None:
        SimpleHTTPRequestHandler.do_GET(self)


def serve(handler: type[BaseHTTPRequestHandler], folder: Path) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_files_of_a_web_server(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl.gz").write_bytes(gzip.compress(lines(900, "a")))
    (tmp_path / "raw/b.jsonl").write_bytes(lines(900, "b"))
    server = serve(Ranges, tmp_path)
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        given = [f"{address}/raw/a.jsonl.gz", f"{address}/raw/b.jsonl"]
        convert(given, tmp_path / "remote")
        convert(tmp_path / "raw", tmp_path / "local")
        assert content(tmp_path / "remote") == content(tmp_path / "local")
        with pytest.raises(InputError, match="raw/: a web server lists no files; give the URL"):
            find_inputs(f"{address}/raw/*.jsonl")
        (file,) = find_inputs(given[1])
        (tmp_path / "raw/b.jsonl").write_bytes(lines(900, "c"))
        with file.open() as opened, pytest.raises(InputError, match=r"b\.jsonl changed while it"):
            opened.read()
        with pytest.raises(InputError, match=r"raw/c\.jsonl: the server has no such file"):
            find_inputs(f"{address}/raw/c.jsonl")
    finally:
        server.shutdown()


def test_a_web_server_without_ranges_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(9, "a"))
    server = serve(Whole, tmp_path)
    try:
        with pytest.raises(InputError, match="hands out whole files only, not ranges of bytes"):
            find_inputs(f"http://127.0.0.1:{server.server_port}/a.jsonl")
    finally:
        server.shutdown()


FORKED = """
import os
from jaxdata.format.storage.objects import place_of
url = "s3://bkt/a"
assert place_of(url).look(url).size == 7
if os.fork() == 0:
    try:
        place_of(url).look(url)
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_forked_process_is_refused(s3: BucketServer) -> None:
    s3.write("bkt/a", b"content")
    said = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True).stdout
    assert said.startswith("remote data cannot be read in a forked process: start workers with")


def test_inputs_in_memory_and_named_as_files(tmp_path: Path) -> None:
    store = open_store("memory://test_bucket_inputs")
    store.write("raw/a.jsonl", lines(2, "a"))
    (tmp_path / "a.jsonl").write_bytes(lines(2, "a"))
    for name in ("memory://test_bucket_inputs/raw/", f"file://{tmp_path}/a.jsonl"):
        assert len(list(texts(name))) == 2
    assert not is_url(f"file://{tmp_path}")


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(jaxdata.MissingExtra, match=r"pip install 'jaxdata\[buckets\]'"):
        find_inputs("gs://bucket/a.jsonl")


@given(
    st.binary(max_size=300),
    st.lists(st.tuples(st.integers(0, 320), st.integers(-1, 60)), max_size=12),
    st.integers(0, 320) | st.none(),
)
def test_a_ranged_file_reads_as_a_file(
    data: bytes, asked: list[tuple[int, int]], ahead_to: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranged_file, "BLOCK", 7)
        patch.setattr(ranged_file, "_KEPT", 2)
        patch.setattr(ranged_file, "_AHEAD", 3)
        patch.setattr(ranged_file, "_BUFFER", 5)
        opened = RangedFile(lambda a, b: data[a:b], len(data), ahead_to).buffered()
        expected = io.BytesIO(data)
        for position, count in asked:
            assert opened.seek(position) == expected.seek(position)
            assert opened.read(count) == expected.read(count)
            assert opened.readline() == expected.readline()
            assert opened.tell() == expected.tell()
        opened.close()


def test_reading_ahead_is_bounded() -> None:
    asked: list[int] = []
    block = ranged_file.BLOCK

    def read(start: int, stop: int) -> bytes:
        asked.append(start // block)
        return bytes(stop - start)

    size = 100 * block
    with RangedFile(read, size).buffered() as whole:
        held = []
        while whole.read(block // 2):
            held.append(len(whole.raw._blocks))  # type: ignore[attr-defined]
    assert sorted(asked) == list(range(100)), "each block once"
    assert 16 < max(held) <= 33
    asked.clear()
    with RangedFile(read, size, ahead_to=9 * block).buffered() as part:
        part.seek(5 * block)
        part.read(4 * block)
    assert sorted(asked) == [5, 6, 7, 8]
    asked.clear()
    with RangedFile(read, size).buffered() as jumping:
        for at in range(0, 100, 10):
            jumping.seek(at * block)
            jumping.read(9)
    assert asked == list(range(0, 100, 10)), "who jumps reads nothing ahead"
