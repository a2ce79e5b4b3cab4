"""Buckets to which URLs lead, a file of every format to put there, and conversions of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.converter.here import run_here
from tests.converter.inputs.made import FORMATS
from tests.storage.buckets.conftest import use
from tests.storage.servers import BucketServer, bucket_server


@pytest.fixture(params=["gs", pytest.param("s3", marks=pytest.mark.exhaustive)])
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


def lines(count: int, name: str) -> bytes:
    texts = (f"document {name} {k} " * (9 + k % 40) for k in range(count))
    return "\n".join(json.dumps({"text": text}) for text in texts).encode()


def write_corpus(folder: Path) -> None:
    """A file of every format, most larger than a unit; a huge text; some that are no inputs."""
    words = lines(200, "w").decode().splitlines()
    (folder / "sub/.hidden").mkdir(parents=True)
    for name, write in FORMATS.items():
        write(folder / "sub" / name, words[:20] if name == "texts" else words)
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(300, "a"))
    (folder / "d.txt").write_text("some text\n\nmore text" * 10_000)
    (folder / "sub/.hidden/z.jsonl").write_bytes(lines(1, "z"))
    (folder / "notes.pdf").write_text("1,2")


def upload(server: BucketServer, folder: Path, place: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            server.write(f"{place}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def convert(inputs: Any, output: Path, **more: Any) -> Any:
    return run_here(inputs, output, **{"unit_bytes": 2**15, "piece_bytes": 2**12} | more)
