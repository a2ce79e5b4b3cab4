"""The contract of `Store`: a folder, a bucket in this process, and one behind a real server."""

import errno
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.storage import Store, local, open_store, zarr
from jaxdata.storage.zarr import scan_array
from tests.storage.buckets.conftest import served

Patch = pytest.MonkeyPatch


@pytest.fixture(params=["local", "local, no room for maps", "gs", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Patch) -> Iterator[Store]:
    if request.param in ("gs", "s3"):
        for server in served(request.param, monkeypatch):
            yield open_store(server.url("bkt/dataset"))
    else:
        if request.param != "local":
            monkeypatch.setattr(local, "MOST_MAPS", 0)
        yield open_store(tmp_path / "dataset")


def gather(store: Store, *ranges: tuple[str, int, int]) -> list[list[int]]:
    names = [name for name, _, _ in ranges]
    _, start, stop = (np.array(column) for column in zip(*ranges, strict=True))
    return [list(piece) for piece in store.gather(names, np.arange(len(names)), start, stop).each()]


def test_bytes_come_back_whole_and_in_ranges(store: Store) -> None:
    assert store.read("a/one") is None
    store.write("a/one", b"before")
    store.write("a/one", bytes(range(100)))
    store.write("two", bytes(range(50, 71)))
    store.write("empty", b"")
    assert store.read("a/one") == bytes(range(100))
    assert (store.exists("two"), store.exists("three")) == (True, False)
    found = gather(store, ("a/one", 10, 13), ("two", 0, 0), ("two", 20, 21))
    assert found == [[10, 11, 12], [], [70]]
    assert gather(store, ("a/one", 0, 100)) == [list(range(100))]
    for asked, said in (
        ([("three", 0, 1)], "three is missing: the dataset is incomplete"),
        ([("two", 9, 10), ("a/one", 0, 101)], "one ends before byte 101: the file is truncated"),
        ([("empty", 2, 4)], "empty ends before byte 4: the file is truncated"),
    ):
        with pytest.raises(DatasetError, match=said):
            gather(store, *asked)


def test_a_created_file_appears_whole_or_not_at_all(store: Store) -> None:
    with store.create("x/good") as path:
        path.write_bytes(b"data")
        assert store.read("x/good") is None
    with pytest.raises(ZeroDivisionError), store.create("x/bad") as path:
        path.write_bytes(b"half" * (1 // 0))
    assert (store.read("x/good"), store.list()) == (b"data", ["x/good"])


def test_list_and_delete_by_prefix(store: Store) -> None:
    for name in ("a/1", "a/2", "ab", "b/c/3"):
        store.write(name, b"")
    assert store.list("a/") == ["a/1", "a/2"]
    assert store.list() == ["a/1", "a/2", "ab", "b/c/3"]
    for prefix in ("a/", "missing", "b/c/3"):
        store.delete(prefix)
    assert store.list() == ["ab"]


def test_an_update_that_meets_another_starts_again(store: Store) -> None:
    seen: list[bytes | None] = []

    def change(data: bytes | None) -> bytes | None:
        if len(seen) < 2:
            store.write("n", b"faster" * (1 + len(seen)))
        seen.append(data)
        return (data or b"") + b"+"

    store.update("n", change)
    assert seen == [None, b"faster", b"fasterfaster"]
    assert store.read("n") == b"fasterfaster+"
    store.update("n", lambda _: None)
    assert store.read("n") is None
    with pytest.raises(ZeroDivisionError):
        store.update("n", lambda _: bytes(1 // 0))


def test_arrays_come_back_whatever_their_chunks(store: Store, monkeypatch: Patch) -> None:
    monkeypatch.setattr(zarr, "_CHUNK_BYTES", 256)
    monkeypatch.setattr(local, "_SCAN_BYTES", 16)
    with pytest.raises(DatasetError, match="index/length is missing"):
        store.read_array("index/length")
    for size in (1000, 65, 64, 0):
        array = np.arange(size, dtype=np.uint32)
        for each in (array[::-1], np.zeros_like(array), array):
            checksum = zarr.write(store, "index/length", each)
            read = store.read_array("index/length")
            assert (read.dtype, read.tolist()) == (np.uint32, each.tolist())
        buffers = scan_array(store, "index/length", (np.uint32, size))
        assert b"".join(map(bytes, buffers)) == array.tobytes()
        found = zarr.describe(store, "index/length")
        assert (found.size, found.dtype, len(found.chunks)) == (size, "<u4", ceil(size / 64))
        assert checksum == hashlib.sha256(array.tobytes()).hexdigest()
    zarr.write(store, "a", np.arange(150, dtype=np.uint32))
    for size in (0, 255, 257, 512):
        store.write("a/c/1", bytes(size))
        said = f"{size} bytes, not 256" if size < 256 else "more than 256"
        with pytest.raises(DatasetError, match=f"a/c/1 has {said} bytes: restore it"):
            list(scan_array(store, "a"))


def test_any_zarr_library_can_open_an_array_and_a_local_reader_needs_none(tmp_path: Path) -> None:
    import tensorstore

    zarr.write(open_store(tmp_path), "column", np.arange(5, dtype=np.uint64))
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/column/"}
    assert tensorstore.open(spec).result().read().result().tolist() == list(range(5))
    code = (
        "import sys; from jaxdata.storage import open_store\n"
        "assert open_store(sys.argv[1]).read_array('column').tolist() == [0, 1, 2, 3, 4]\n"
        "assert 'tensorstore' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: Patch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    store = open_store(tmp_path)
    says = r"is on a file system that does not lock \(No locks available\).* local disk .* -o flock"
    with pytest.raises(DatasetError, match=says):
        store.update("a", lambda _: b"")
    store.write("b", b"needs no lock")
    (tmp_path / ".tmp-jaxdata-of-whom").touch()
    store.sweep()
    assert {path.name for path in tmp_path.iterdir()} == {"b", ".tmp-jaxdata-of-whom"}


def test_updates_of_many_processes_all_count(tmp_path: Path) -> None:
    code = (
        "import json, sys; from jaxdata.storage import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "for _ in range(20):\n"
        "    store.update('n.json', lambda data: json.dumps(json.loads(data or b'0') + 1).encode())"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert json.loads((tmp_path / "n.json").read_bytes()) == 40


@pytest.mark.filterwarnings("ignore:os.fork")
def test_remote_reads_after_a_fork_are_refused_and_local_ones_work(tmp_path: Path) -> None:
    remote, near = open_store("memory://fork/dataset"), open_store(tmp_path)
    for each in (remote, near):
        each.write("a", b"1")
    zarr.write(near, "b", np.arange(3))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            works = bytes(gather(near, ("a", 0, 1))[0]) + near.read_array("b").tobytes()[:1]
            remote.read("a")
        except DatasetError as error:
            os.write(writing, works + str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    assert answer.startswith(b"1\0")
    assert b"start workers with 'spawn'" in answer


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(InputError, match="expected a local path, gs://, s3://, az:// or memory://"):
        open_store("ftp://host/dataset")
