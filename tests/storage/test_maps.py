"""Maps of local files: without descriptors, a bounded number, and right ranges in any case."""

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from jaxdata.base.ragged import ByteRanges
from jaxdata.storage import LocalStore, local
from jaxdata.storage.local import map_file
from tests.leftovers import descriptors

FILES, SIZE, ROOM = 40, 5_000, 6
NAMES = [f"{number:02}" for number in range(FILES)]
CONTENT = [np.random.default_rng(number).bytes(SIZE) for number in range(FILES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("maps")
    for name, content in zip(NAMES, CONTENT, strict=True):
        (path / name).write_bytes(content)
    return path


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for `ROOM` maps more than this process has already."""
    gc.collect()
    monkeypatch.setattr(local, "MOST_MAPS", len(local._addresses) + ROOM)


def mapped(folder: Path) -> list[str]:
    """The files of a folder that this process has mapped, as the kernel says."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({Path(line.split()[-1]).name for line in lines if str(folder) in line})


def gather(store: LocalStore, *ranges: tuple[int, int, int]) -> ByteRanges:
    file, start, stop = np.array(ranges, np.int64).reshape(-1, 3).T
    return store.gather(NAMES, file, start, stop)


def test_maps_keep_no_descriptor_and_end_with_what_refers_to_them(folder: Path) -> None:
    store, before = LocalStore(folder), descriptors()
    views = gather(store, (0, 0, SIZE), (1, 0, SIZE)).each()
    assert descriptors() <= before
    with pytest.raises(TypeError, match="cannot modify read-only memory"):
        views[0][0] = 1
    del store
    assert mapped(folder) == ["00", "01"]
    array = np.frombuffer(views[1], np.uint8)[3:]
    del views
    assert mapped(folder) == ["01"]
    assert array.tobytes() == CONTENT[1][3:]
    del array
    assert mapped(folder) == []


RANGES = st.tuples(st.integers(0, FILES - 1), st.integers(0, SIZE), st.integers(0, SIZE)).map(
    lambda drawn: (drawn[0], *sorted(drawn[1:]))
)


@pytest.mark.usefixtures("few")
@settings(max_examples=30)
@given(st.lists(st.lists(RANGES, max_size=60), max_size=12))
def test_ranges_are_right_and_maps_few(folder: Path, gathers: Any) -> None:
    store = LocalStore(folder)
    for ranges in gathers:
        assert gather(store, *ranges).each() == [CONTENT[file][a:b] for file, a, b in ranges]
        assert len(mapped(folder)) <= ROOM


@pytest.mark.parametrize(("size", "room"), [(0, 1), (2**16 - 1, 1), (2**16, 1), (2**20 + 1, 0)])
def test_whole_files(tmp_path: Path, size: int, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, and those for which there is no room, are read; all outlive their files."""
    gc.collect()
    monkeypatch.setattr(local, "MOST_MAPS", len(local._addresses) + room)
    content = np.random.default_rng(0).bytes(size)
    (tmp_path / "file").write_bytes(content)
    data = map_file(tmp_path / "file")
    assert len(mapped(tmp_path)) == (room if size >= 2**16 else 0)
    (tmp_path / "file").unlink()
    assert data == content


def test_a_file_that_is_not_mapped_is_read_by_ranges(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(local, "_libc", SimpleNamespace(mmap=lambda *_: local._FAILED))
    end = 2**33  # more than is read whole
    with (tmp_path / "large").open("wb") as file:
        file.seek(end - 4)
        file.write(b"last")
    start, stop = np.array([end - 4, 0]), np.array([end, 2])
    found = LocalStore(tmp_path).gather(["large"], np.array([0, 0]), start, stop)
    assert [bytes(each) for each in found.each()] == [b"last", bytes(2)]
    assert mapped(tmp_path) == []
