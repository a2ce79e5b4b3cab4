"""Pages of a host: published whole, evicted in the right order, shared by processes that die."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jaxdata.storage.pages import page_folder
from jaxdata.storage.pages.page_folder import Claims, PageFolder
from jaxdata.storage.pages.read_counts import READS
from tests.conftest import ROOT

KILLS = int(os.environ.get("JAXDATA_TEST_KILLS", "12"))
SIZE = 1_000
Open = Callable[..., PageFolder]
Patch = pytest.MonkeyPatch


def content(name: str) -> bytes:
    return (name * SIZE).encode()[:SIZE]


def at(text: str) -> str:
    """What the cache calls a page of a shard, given as `shard/3`."""
    shard, _, number = text.partition("/")
    key, start = hashlib.blake2b(shard.encode(), digest_size=16).hexdigest(), int(number) * SIZE
    return f"{key}/{start}-{start + SIZE}"


def add(folder: PageFolder, *names: str) -> None:
    for name in names:
        assert folder.add(name, SIZE, lambda name=name: [content(name)])  # type: ignore[misc]


def here(folder: PageFolder, names: list[str]) -> list[str]:
    return [name for name in names if folder.has(name)]


def names(count: int) -> list[str]:
    return [at(f"shard/{number}") for number in range(count)]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., PageFolder]]:
    """Opens the folder as another process would, each closed in the end."""
    with ExitStack() as stack:

        def open_folder(most: int = 10**6) -> PageFolder:
            folder = PageFolder(tmp_path, most)
            stack.callback(lambda: folder._closed or folder.close())
            return folder

        yield open_folder


def test_the_page_needed_longest_ago_goes_first_and_the_limit_holds(
    opened: Open, tmp_path: Path
) -> None:
    folder, other = opened(10 * SIZE), opened(10 * SIZE)
    add(folder, *names(9))
    assert [data and bytes(data) for data in other.get([names(1)[0], at("a/1")])] == [
        content(names(1)[0]),
        None,
    ]
    other.close()
    oldest = folder.get(names(9)[:3])[0]  # needed again, so the fourth is the oldest
    add(folder, at("new/0"), at("new/1"))
    left = here(folder, [*names(9), at("new/0"), at("new/1")])
    assert len(left) <= 10
    assert {at("new/0"), at("new/1"), *names(9)[:3]} <= set(left)
    assert at("shard/3") not in left
    for number in range(30):
        add(folder, at(f"more/{number}"))
        kept = list((tmp_path / "pages").rglob("*/*"))
        assert sum(path.stat().st_size for path in kept) <= 10 * SIZE
    assert not folder.has(names(1)[0])
    assert bytes(oldest or b"") == content(names(1)[0]), "a map outlives its page"


def test_a_page_that_a_run_needs_goes_after_all_that_none_needs(opened: Open) -> None:
    ended, under_way, other = (opened(10 * SIZE) for _ in range(3))
    add(under_way, *names(4))
    add(ended, at("old/0"), at("old/1"), at("old/2"))  # younger, but nobody's
    ended.close()
    add(under_way, *(at(f"new/{number}") for number in range(5)))
    assert here(under_way, names(4)) == names(4)
    assert len(here(under_way, [at("old/0"), at("old/1"), at("old/2")])) < 3
    add(other, *(at(f"newer/{number}") for number in range(20)))
    assert here(under_way, names(4)) == names(4), "a page of another run is never the victim"
    assert len(list(under_way._pages.rglob("*/*"))) <= 16


WORK = """
import random, sys
from pathlib import Path
from jaxdata.storage.pages.page_folder import PageFolder
from tests.storage.pages.test_page_folder import add, content, names
folder = PageFolder(Path(sys.argv[1]), 20_000)
chance = random.Random(int(sys.argv[2]))
print("ready", flush=True)
while True:
    name = chance.choice(names(60))
    data = folder.get([name])[0]
    if data is None and folder.claims.take(name):
        add(folder, name)
        folder.claims.release(name)
    assert data is None or bytes(data) == content(name), name
"""


@pytest.mark.exhaustive
def test_killed_processes_leave_a_cache_that_works(tmp_path: Path) -> None:
    chance, running = random.Random(1), []
    for seed in range(KILLS):
        command = [sys.executable, "-c", WORK, str(tmp_path), str(seed)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running.append(subprocess.Popen(command, cwd=ROOT, **pipes))
        assert running[-1].stdout
        if running[-1].stdout.readline() != b"ready\n":
            pytest.fail(running[-1].communicate()[1].decode())
        time.sleep(chance.random() / 10)
        if len(running) > 2:
            kill(running.pop(0))
    for each in running:
        kill(each)
    folder = PageFolder(tmp_path, 20_000)
    for name in names(60):
        assert folder.claims.take(name)  # nothing is locked
        if (data := folder.get([name])[0]) is not None:
            assert bytes(data) == content(name)
    add(folder, *(at(f"new/{number}") for number in range(30)))
    kept = [path.stat().st_size for path in (tmp_path / "pages").rglob("*/*")]
    assert sum(kept) <= 20_000
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {folder._run.path.name, f"{folder._run.path.name}.lock"} == runs
    folder.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()


def test_a_claim_is_one_process_s_and_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from jaxdata.storage.pages.page_folder import "
        "Claims; print(Claims(Path(sys.argv[1])).take('a'), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "claims")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"True\n"
        mine = Claims(tmp_path / "claims")
        assert not mine.take("a")
        assert mine.take("b")
        other.kill()
        other.wait()
        assert mine.take("a")
        mine.close()


def test_a_folder_that_is_closed_needs_no_page(opened: Open, tmp_path: Path) -> None:
    """A thread that fetches may end later: what it adds is a page like any other."""
    folder = opened()
    add(folder, at("b/0"))
    folder.close()
    page = tmp_path / "pages" / at("a/0")
    page.parent.mkdir()
    page.write_bytes(b"page")
    assert folder.get([at("a/0")]) == [None]
    assert page.stat().st_nlink == 1
    assert not list((tmp_path / "runs").iterdir())
    orphan = tmp_path / "runs/17-0123abcd"  # of a process that was killed
    orphan.mkdir()
    os.link(page, orphan / at("a/0").replace("/", "-"))
    opened()
    assert not orphan.exists()
    assert page.stat().st_nlink == 1


@pytest.mark.parametrize("gone", ["", "pages", "runs"])
def test_folders_that_somebody_removed_are_made_again(
    opened: Open, tmp_path: Path, gone: str
) -> None:
    folder = opened()
    add(folder, *names(2))
    if gone == "runs":
        add(opened(), at("a/0"))
    shutil.rmtree(tmp_path / gone)
    if gone == "runs":
        assert bytes(folder.get([at("a/0")])[0] or b"") == content(at("a/0"))
        assert (tmp_path / "pages" / at("a/0")).stat().st_nlink > 1
    add(folder, *names(4)[2:])
    assert here(folder, names(4)[2:]) == names(4)[2:]
    assert all((tmp_path / "pages" / name).exists() for name in names(4)[2:])
    assert not folder.refusal
    folder.close()
    left = {path.name for path in (tmp_path / "runs").iterdir()}
    assert not left, "links of this process"


def test_a_full_disk_is_said_once_and_nothing_is_fetched_for_it(
    opened: Open, tmp_path: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, now, room = opened(), [1_000.0], os.posix_fallocate
    add(folder, at("a/0"))

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(page_folder.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "posix_fallocate", full)
    for _ in range(3):
        assert not folder.add(at("a/1"), SIZE, lambda: pytest.fail("it is fetched"))
        assert folder.refuses
        now[0] += 3_600
    (said,) = caplog.messages
    assert said == (
        f"no pages can be kept in {tmp_path} (No space left on device): free space there, or let "
        "JAXDATA_CACHE name another folder that you may write. Until then exactly what rows need "
        "is fetched, with far more requests"
    )
    assert bytes(folder.get([at("a/0")])[0] or b"") == content(at("a/0"))
    monkeypatch.setattr(os, "posix_fallocate", room)
    assert not folder.refuses, "tried again after a while"
    add(folder, at("a/1"))
    assert not folder.refusal
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_disk_without_hard_links_refuses(
    opened: Open, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    folder = opened()
    monkeypatch.setattr(os, "link", none)
    add(folder, at("a/0"))
    assert folder.get([at("a/0")]) == [None]
    assert folder.refuses
    assert len(caplog.messages) == 1


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda data: data[:400] + bytes([data[400] ^ 1]) + data[401:],
    "cut": lambda data: data[:700],
    "empty": lambda _: b"",
    "longer": lambda data: data + b"more",
    "its end": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_page_is_not_used_and_goes(
    opened: Open, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = opened(), opened()
    add(first, *names(3))
    before = READS.read().damaged_pages
    for name in names(2):
        path = tmp_path / "pages" / name
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    found = second.get(names(3))
    assert [data and bytes(data) for data in found] == [None, None, content(names(3)[2])]
    assert READS.read().damaged_pages == before + 2
    assert not any(second.has(name) for name in names(2))
    add(second, *names(2))
    assert [bytes(data or b"") for data in second.get(names(2))] == list(map(content, names(2)))
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path / 'pages' / names(1)[0]} is not what was written there: ")
    assert "`jaxdata cache verify` checks all pages" in said


def test_a_disk_that_fails_to_read_a_page_has_none(opened: Open, monkeypatch: Patch) -> None:
    class Failing(io.FileIO):
        def readinto(self, _buffer: object) -> int:  # type: ignore[override]
            raise OSError(errno.EIO, "Input/output error")

    first, second = opened(), opened()
    add(first, at("a/0"))
    monkeypatch.setattr(page_folder, "open_plain", Failing)
    assert second.get([at("a/0")]) == [None]
    assert not second.has(at("a/0"))
    assert not second.refuses

    class Refusing(io.FileIO):
        def readinto(self, _buffer: object) -> int:  # type: ignore[override]
            raise OSError(errno.EACCES, "Permission denied")

    add(first, at("a/1"))
    monkeypatch.setattr(page_folder, "open_plain", Refusing)
    assert second.get([at("a/1")]) == [None]
    assert second.has(at("a/1")), "it may be whole"
    assert second.refuses


def test_a_page_is_what_was_written_under_its_name_however_long(tmp_path: Path) -> None:
    for size in (1, 2**18 - 1, 2**18, 2**18 + 1, 2**19 + 5):
        folder, name = PageFolder(tmp_path, 2**30), f"{size:032}/0-{size}"
        data = random.Random(size).randbytes(size)
        folder.add(name, size, lambda data=data: [data[: len(data) // 3], data[len(data) // 3 :]])  # type: ignore[misc]
        path = tmp_path / "pages" / name
        stored = path.read_bytes()
        checksum = zlib.crc32(data, zlib.crc32(name.encode()))
        assert stored == data + struct.pack("<QI", size, checksum)
        assert page_folder.is_whole(path, name)
        assert not page_folder.is_whole(path, f"{name}0")
        for place in {0, size // 2, size - 1, size, size + 11}:
            path.write_bytes(stored[:place] + bytes([stored[place] ^ 64]) + stored[place + 1 :])
            assert not page_folder.is_whole(path, name)
        folder.close()
    path.write_bytes(struct.pack("<QI", 0, zlib.crc32(name.encode())))
    assert not page_folder.is_whole(path, name), "no page is empty"


def test_a_run_needs_no_more_pages_than_it_may_map(opened: Open, monkeypatch: Patch) -> None:
    monkeypatch.setattr(page_folder, "_MOST_MAPS", 3)
    folder = opened()
    add(folder, *names(3))
    folder.get(names(1))
    add(folder, at("new/0"))
    links = [path.name for path in folder._run.path.iterdir() if path.name != "counts"]
    assert {*folder._maps} == {names(3)[0], names(3)[2], at("new/0")}
    assert {*links} == {name.replace("/", "-") for name in folder._maps}
    assert here(folder, names(3)) == names(3), "they stay, as there is room"
    folder.remove(names(2))
    assert {path.name for path in folder._run.path.glob("*-*")} == {
        name.replace("/", "-") for name in (names(3)[2], at("new/0"))
    }
    assert here(folder, names(3)) == names(3)[2:]


def test_maps_that_are_allowed_are_many() -> None:
    """Of the 65,530 of a process, shards and others take a part: a quarter of 16,384 and these."""
    assert 2**12 < page_folder._MOST_MAPS < 2**14


def used(folder: PageFolder) -> int:
    return sum(path.stat().st_size for path in folder._pages.rglob("*/*"))


def test_room_is_made_to_just_below_the_limit_in_the_order_of_use(opened: Open) -> None:
    """Of 32 pages of 1,012 bytes, with room for 20 less a 32nd, the 13 used longest ago go."""
    first = opened(10**6)
    add(first, *names(32))
    for number, name in enumerate(names(32)):
        os.utime(first._pages / name, (0, 10 * (number * 7 % 32)))
    by_use = sorted(range(32), key=lambda number: number * 7 % 32)
    second = opened(20 * 1_012)
    first.close()
    second.make_room()
    assert here(second, names(32)) == [names(32)[number] for number in sorted(by_use[13:])]
    assert used(second) <= 20 * 1_012 * 31 / 32
    second.make_room()
    assert len(here(second, names(32))) == 19, "there is room"


def test_a_run_lets_go_of_its_own_pages_where_none_is_free(opened: Open) -> None:
    """A quarter of them, those that it needed longest ago."""
    folder = opened(10**6)
    add(folder, *names(16))
    folder.get(names(2))
    folder.most = 15 * 1_012
    folder.make_room()
    assert here(folder, names(16)) == names(2) + names(16)[4:]
    assert {*folder._maps} == {*names(2), *names(16)[6:]}
    assert folder.claims.take("room")


@pytest.mark.parametrize(("most", "every"), [(64 * SIZE, 3), (64 * SIZE - 16, 2)])
def test_all_pages_are_looked_at_again_when_a_thirty_second_was_added(
    opened: Open, monkeypatch: Patch, most: int, every: int
) -> None:
    folder, made = opened(most), list[int]()
    monkeypatch.setattr(
        PageFolder, "_evict", lambda self: made.append(len(list(self._pages.rglob("*/*"))))
    )
    add(folder, *names(9))
    expected = [*range(1, 10, every)]
    assert made == expected, "at first, as nothing is known, and then after 2,000 bytes"
    other = opened(most)
    assert other.claims.take("room")
    add(folder, *(at(f"b/{number}") for number in range(4)))
    assert made == expected, "another process does"
    other.claims.release("room")
    add(folder, at("c/0"))
    assert made == [*expected, 14]


def test_what_is_needed_stays_where_just_enough_is_not(opened: Open) -> None:
    needing, ended = opened(), opened()
    add(needing, *names(4))
    add(ended, at("free/0"), at("free/1"))
    ended.close()
    needing.most = 4 * 1_012 * 32 // 31 + 1
    needing.make_room()
    assert used(needing) == 4 * 1_012
    assert [*needing._maps] == here(needing, names(4)) == names(4)


def test_a_page_that_is_used_is_young_and_what_columns_take_is_known(opened: Open) -> None:
    folder, column = opened(), f"{'ab' * 16}/column"
    add(folder, at("a/0"))
    assert folder.add(column, 7, lambda: [b"columns"])
    assert folder.column_bytes() == 7
    other = opened()
    assert other.column_bytes() == 0
    page = folder._pages / at("a/0")
    os.utime(page, (0, 0))
    other.get([at("a/0")])
    assert page.stat().st_mtime > 0
    for folder.refusal in ("it was full",):
        add(folder, at("a/1"))
    assert folder.refusal == ""
    folder.label("ab" * 32, "gs://bkt\nc")
    assert (folder._labels / ("ab" * 16)).read_text() == "gs://bkt\nc"
    (folder._labels / ("ab" * 16)).unlink()
    folder.label("ab" * 32, "gs://bkt\nc")
    assert not list(folder._labels.iterdir()), "it is said once"


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_cannot_reserve_room_has_pages(
    opened: Open, monkeypatch: Patch, code: int
) -> None:
    asked: list[tuple[int, int]] = []

    def reserve(_file: int, start: int, size: int) -> None:
        asked.append((start, size))
        raise OSError(code, "not here")

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    add(opened(), at("a/0"))
    assert asked == [(0, SIZE + 12)]
    monkeypatch.delattr(os, "posix_fallocate")
    add(opened(), at("a/1"))


def test_what_is_fetched_in_part_leaves_nothing(opened: Open, tmp_path: Path) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"abc"
        raise ValueError("no more")

    folder = opened()
    with pytest.raises(ValueError, match="no more"):
        folder.add(at("a/0"), SIZE, breaks)
    assert not [
        path for path in tmp_path.rglob("*") if at("a/0") in str(path) or "tmp-" in path.name
    ]
    folder.close()
    assert not folder.add(at("a/0"), SIZE, lambda: pytest.fail("it is fetched"))
