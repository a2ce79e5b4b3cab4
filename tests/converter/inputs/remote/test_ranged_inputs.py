"""Files read by ranges of bytes: of web servers, and of any reader, as if they were here."""

from __future__ import annotations

import base64
import gzip
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.storage import objects as ranged_file
from jaxdata.storage.objects import RangedFile
from tests.converter.here import manifest
from tests.converter.inputs.remote.conftest import convert, lines
from tests.dataset.trees import tree


class Ranges(SimpleHTTPRequestHandler):
    """A web server that knows ranges, as http.server's own does not."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        asked, _, query = self.path.partition("?")
        name = query.removeprefix("as=") if query.startswith("as=") else asked.lstrip("/")
        path = Path(self.directory) / name
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


def test_files_of_a_web_server(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl.gz").write_bytes(gzip.compress(lines(900, "a")))
    (tmp_path / "raw/b.jsonl").write_bytes(lines(900, "b"))
    with serve(Ranges, tmp_path) as host:
        address = f"http://{host}"
        given = [f"{address}/raw/a.jsonl.gz", f"{address}/raw/b.jsonl"]
        convert(given, tmp_path / "remote")
        convert(tmp_path / "raw", tmp_path / "local")
        assert tree(tmp_path / "remote") == tree(tmp_path / "local")
        with pytest.raises(InputError, match="raw/: a web server lists no files; give the URL"):
            find_inputs(f"{address}/raw/*.jsonl")
        (file,) = find_inputs(given[1])
        both = [given[1], f"{given[1]}?as=raw/a.jsonl.gz"]
        assert len(find_inputs([given[1], f"{given[1]}?as=raw/b.jsonl"])) == 1
        with pytest.raises(InputError, match=r"b\.jsonl would have the same name: convert one"):
            find_inputs(both)
        (tmp_path / "raw/b.jsonl").write_bytes(lines(900, "c"))
        with file.open() as opened, pytest.raises(InputError, match=r"b\.jsonl changed while it"):
            opened.read()
        with pytest.raises(InputError, match=r"raw/c\.jsonl: the server has no such file"):
            find_inputs(f"{address}/raw/c.jsonl")
    with (
        serve(SimpleHTTPRequestHandler, tmp_path) as host,
        pytest.raises(InputError, match="hands out whole files only, not ranges of bytes"),
    ):
        find_inputs(f"http://{host}/raw/b.jsonl")


class Answered(NamedTuple):
    """What was asked for."""

    data: bytes

    def result(self) -> bytes:
        return self.data

    def cancel(self) -> None:
        pass


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
        opened = RangedFile(lambda a, b: Answered(data[a:b]), len(data), ahead_to).buffered()
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

    def read(start: int, stop: int) -> Answered:
        asked.append(start // block)
        return Answered(bytes(stop - start))

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

    (tmp_path / "a.jsonl").write_bytes(lines(1, "a"))
    with serve(Other, tmp_path) as other, serve(First, tmp_path) as first:
        (file,) = find_inputs(f"http://me:pa%20ss@{first}/a.jsonl")
        assert file.open().read() == lines(1, "a")
    assert set(told) == {None}
