"""Files read by ranges of bytes: of web servers, and of any reader, as if they were here."""

from __future__ import annotations

import gzip
import io
import re
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.errors import InputError
from jaxdata.format.storage.objects import RangedFile, ranged_file
from tests.converter.inputs.remote.conftest import convert, lines
from tests.format.trees import tree

pytest.importorskip("obstore", reason="needs jaxdata[buckets]")


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
        assert tree(tmp_path / "remote") == tree(tmp_path / "local")
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
