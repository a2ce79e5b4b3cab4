"""Inputs in buckets and of web servers: the dataset is that of local files; secrets stay secret."""

import base64
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.storage import ranges
from jaxdata.storage.ranges import RangedFile
from jaxdata.testing import write_dataset
from tests.converter.here import copy_tree, manifest, run_here, tree
from tests.converter.inputs.made import FORMATS
from tests.storage.buckets.conftest import served
from tests.storage.servers import BucketServer, Faults


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    yield from served("s3", monkeypatch)


def lines(count: int, name: str) -> bytes:
    texts = (f"document {name} {k} " * (9 + k % 40) for k in range(count))
    return "\n".join(json.dumps({"text": text}) for text in texts).encode()


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(lines(2, name))


def convert(inputs: Any, output: Path, **more: Any) -> Any:
    return run_here(inputs, output, **{"unit_bytes": 2**15, "piece_bytes": 2**12} | more)


def test_a_dataset_does_not_depend_on_where_its_inputs_are_nor_on_connections_that_break(
    bucket: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "BLOCK", 2**14)
    raw, words = tmp_path / "raw", lines(200, "w").decode().splitlines()
    write(raw, "sub/.hidden/z.jsonl", "notes.pdf")
    for name, write_format in FORMATS.items():
        write_format(raw / "sub" / name, words[:20] if name == "texts" else words)
    (raw / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(300, "a"))
    (raw / "d.txt").write_text("some text\n\nmore text" * 10_000)
    copy_tree(raw, "s3://bkt/raw")
    convert(raw, tmp_path / "local")
    bucket.faults = Faults(unavailable=0.05, reset=0.03, cut=0.03)
    convert("s3://bkt/raw/", tmp_path / "remote")
    expected = tree(tmp_path / "local")
    assert tree(tmp_path / "remote") == expected
    assert sum(name.endswith(".array_record") for name in expected) > 20


def test_what_a_url_or_a_list_in_a_bucket_stands_for(bucket: BucketServer, tmp_path: Path) -> None:
    write(tmp_path / "raw", "a.jsonl", "sub/b.jsonl.gz", "c.jsonl.zst", "d.txt")
    write(tmp_path / "raw", ".x/e.txt", "sub/f.pdf")
    copy_tree(tmp_path / "raw", "s3://bkt/raw")
    for folder in ("raw", "raw/sub", "raw/empty", "raw/table.parquet", "raw/table.parquet/.x"):
        bucket.write(f"bkt/{folder}/", b"")  # as consoles and Spark mark folders
    three = ["raw/a.jsonl", "raw/sub/b.jsonl.gz", "raw/c.jsonl.z*"]
    for names in (["raw"], ["raw/"], ["raw/**/*.jsonl*"], ["raw/*.*"], ["raw/[a-e]*"], three):
        local = find_inputs([str(tmp_path / one) for one in names])
        remote = find_inputs([f"s3://bkt/{one}" for one in names])
        assert [file[1:5] for file in remote] == [file[1:5] for file in local]
        assert remote[0].where == "s3://bkt/raw/a.jsonl"
    bucket.write("bkt/lists/one", b"# a list\n../raw/a.jsonl\ns3://bkt/raw/sub/\n")
    (tmp_path / "list").write_text("s3://bkt/raw/c*.zst")
    found = find_inputs([], ["s3://bkt/lists/one", tmp_path / "list"])
    assert [file.name for file in found] == ["a.jsonl", "c.jsonl.zst", "sub/b.jsonl.gz"]
    several = find_inputs(["s3://bkt/raw/sub", f"file://{tmp_path}/raw/d.txt"])
    assert [file.name for file in several] == ["bkt/raw/sub/b.jsonl.gz", "d.txt"]
    write(tmp_path / "here", "bkt/raw/a.jsonl", "b.jsonl")
    (tmp_path / "here/bkt/raw/a.jsonl").write_bytes(b"{}")
    with pytest.raises(InputError, match=r"here/bkt/raw/a\.jsonl and s3://bkt/raw/a\.jsonl would"):
        find_inputs(["s3://bkt/raw/a.jsonl", tmp_path / "here"])


def test_what_cannot_be_found_is_said(bucket: BucketServer) -> None:
    for name in ("a.pdf", "a.jsonl", "folder/"):
        bucket.write(f"bkt/{name}", b"{}" * (name[-1] != "/"))
    write_dataset("s3://bkt/ds", {"train/web": [[1, 0]]})
    for url, said in {
        "s3://bkt/none": "there is no such object, and none below s3://bkt/none/",
        "s3://bkt/*.txt": "s3://bkt/*.txt: no object matches this glob",
        "s3://b*/a.jsonl": "s3://b*/a.jsonl: a glob begins after the name of a bucket",
        "s3://bkt/a.pdf": "s3://bkt/a.pdf: unsupported file type; expected .csv",
        "s3://bkt/ds/": "s3://bkt/ds is a dataset of jaxdata, not text",
        "ftp://bkt/a.jsonl": "cannot read 'ftp://bkt/a.jsonl': expected a path on this machine",
    }.items():
        with pytest.raises(InputError, match=re.escape(said)):
            find_inputs(url)
    assert [file.where for file in find_inputs("s3://bkt")] == ["s3://bkt/a.jsonl"]
    with pytest.raises(InputError, match=r"files_from \w+://bkt/none cannot be read \(.*no such"):
        find_inputs([], ["s3://bkt/none"])
    bucket.faults = Faults(forbidden=1.0)
    said = r"\w+://bkt/a\.jsonl cannot be read: .*403.* may not read it: use others, or let these"
    with pytest.raises(InputError, match=said):
        find_inputs("s3://bkt/a.jsonl")


def test_an_object_that_changes_is_noticed_while_it_is_read(bucket: BucketServer) -> None:
    data = lines(900, "a")
    bucket.write("bkt/a.jsonl", data)
    (file,) = find_inputs("s3://bkt/a.jsonl")
    bucket.write("bkt/a.jsonl", data[:100_000] + data[100_000:].replace(b"d", b"D", 1))
    with file.open() as opened, pytest.raises(InputError, match=r"^s3://bkt/a\.jsonl changed whil"):
        opened.read()


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


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler], folder: Path) -> Iterator[str]:
    """The address of a web server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


class Asked(Ranges):
    """One that hands out files to who asks with a password, or a signature."""

    def do_GET(self) -> None:
        known = "Basic " + base64.b64encode(b"me:pa ss").decode()
        if "Signature=5ecret" in self.path or self.headers["Authorization"] == known:
            super().do_GET()
        else:
            self.send_error(403)


def test_secrets_of_urls_stay_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"raw/{name}.jsonl").write_bytes(lines(5, name) + b"\nbad\n")
    with serve(Asked, tmp_path / "raw") as host:
        given = [f"http://me:pa%20ss@{host}/a.jsonl", f"http://{host}/b.jsonl?Signature=5ecret&v=1"]
        assert convert(given, tmp_path / "out").documents == 10
        inputs = manifest(tmp_path / "out")["sources"]["train/web"]["inputs"]
        assert inputs == ["a.jsonl", "b.jsonl"]
        resigned = [given[0], given[1].replace("v=1", "v=2")]
        assert convert(resigned, tmp_path / "out").already_complete
        said = ""
        for urls, lists in (
            ([f"http://me:pass@{host}/a.jsonl"], ()),
            ([f"http://{host}/c.jsonl?Signature=5ecret"], ()),
            ([f"http://{host}/a.pdf?Signature=5ecret"], ()),
            ([f"http://{host}/a*.jsonl?Signature=5ecret"], ()),
            ([f"ftp://me:pa%20ss@{host}/a.jsonl"], ()),
            ([], [f"http://{host}/list?Signature=5ecret"]),
        ):
            with pytest.raises(InputError) as refused:
                find_inputs(urls, lists)
            said += str(refused.value)
        with pytest.raises(InputError, match="not JSON") as refused:
            convert(given, tmp_path / "out2", on_error="fail")
    said += str(refused.value) + caplog.text + "".join(capfd.readouterr())
    assert f"http://{host}/c.jsonl?…: the server has no such file" in said
    assert "a web server lists no files; give the URL" in said
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("out*/**/*") if path.is_file())
    for secret in ("5ecret", "me:", "pa%20ss", "pa ss", "pass"):
        assert secret not in said
        assert secret.encode() not in written


def test_who_asks_is_told_to_no_other_server(tmp_path: Path) -> None:
    told: list[str | None] = []

    class Other(Ranges):
        def do_GET(self) -> None:
            told.append(self.headers["Authorization"])
            super().do_GET()

    class First(Ranges):
        def do_GET(self) -> None:
            assert self.headers["Authorization"]
            self.send_response(302)
            self.send_header("Location", f"http://{other}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    write(tmp_path, "a.jsonl")
    with serve(Other, tmp_path) as other, serve(First, tmp_path) as first:
        (file,) = find_inputs(f"http://me:pa%20ss@{first}/a.jsonl")
        assert file.open().read() == lines(2, "a.jsonl")
    assert set(told) == {None}
    whole = "hands out whole files only, not ranges of bytes"
    with serve(SimpleHTTPRequestHandler, tmp_path) as host, pytest.raises(InputError, match=whole):
        find_inputs(f"http://{host}/a.jsonl")


def answered(data: bytes) -> Any:
    """What was asked for."""
    return SimpleNamespace(data=data, cancel=lambda: None)


ASKED = st.lists(st.tuples(st.integers(0, 320), st.integers(-1, 60)), max_size=12)


@given(st.binary(max_size=300), ASKED, st.integers(0, 320) | st.none())
def test_a_ranged_file_reads_as_a_file(data: bytes, asked: Any, ahead_to: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("BLOCK", 7), ("_KEPT", 2), ("_AHEAD", 3), ("_BUFFER", 5)):
            patch.setattr(ranges, name, size)
        opened = RangedFile(lambda a, b: answered(data[a:b]), len(data), ahead_to).buffered()
        expected = io.BytesIO(data)
        for position, count in asked:
            assert opened.seek(position) == expected.seek(position)
            assert opened.read(count) == expected.read(count)
            assert opened.readline() == expected.readline()
            assert opened.tell() == expected.tell()
        opened.close()


def test_reading_ahead_is_bounded() -> None:
    asked: list[int] = []
    block = ranges.BLOCK

    def read(start: int, stop: int) -> Any:
        asked.append(start // block)
        return answered(bytes(stop - start))

    with RangedFile(read, 100 * block).buffered() as whole:
        held = []
        while whole.read(block // 2):
            held.append(len(whole.raw._waiting) + len(whole.raw._read))  # type: ignore[attr-defined]
    assert sorted(asked) == list(range(100)), "each block once"
    assert 16 < max(held) <= 33
    asked.clear()
    with RangedFile(read, 100 * block, ahead_to=9 * block).buffered() as part:
        part.seek(5 * block)
        part.read(4 * block)
        assert sorted(asked) == [5, 6, 7, 8]
        for at in range(10, 100, 10):
            part.seek(at * block)
            part.read(9)
    assert asked[4:] == list(range(10, 100, 10)), "who jumps reads nothing ahead"
