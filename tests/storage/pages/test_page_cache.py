"""Pages of a host: published whole and once, evicted by use, shared by processes that die."""

import errno
import hashlib
import io
import itertools
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from jaxdata.base.errors import InputError
from jaxdata.storage.pages import page_cache
from jaxdata.storage.pages.page_cache import PageCache, Wanted
from jaxdata.storage.pages.read_counts import ENTRIES, READS, Counter, ReadCounts
from tests.conftest import ROOT

Patch = pytest.MonkeyPatch
SIZE = 1_000
STORED = SIZE + 12
Open = Callable[..., PageCache]


def content(name: str) -> bytes:
    return (name * SIZE).encode()[:SIZE]


def at(text: str) -> str:
    """What the cache calls a page of a shard, given as `shard/3`."""
    shard, _, number = text.partition("/")
    key, start = hashlib.blake2b(shard.encode(), digest_size=16).hexdigest(), int(number) * SIZE
    return f"{key}/{start}-{start + SIZE}"


def names(count: int) -> list[str]:
    return [at(f"shard/{number}") for number in range(count)]


def unwanted(name: str) -> Wanted:
    return Wanted(name, SIZE, lambda: pytest.fail("it is fetched"))


def add(cache: PageCache, *names: str) -> None:
    for name in names:
        assert cache.fetch(Wanted(name, SIZE, lambda name=name: [content(name)]))


def here(cache: PageCache, names: list[str]) -> list[str]:
    return [name for name in names if (cache.folder / "pages" / name).exists()]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the cache as another process would, each closed in the end."""
    with ExitStack() as stack:

        def open_cache(most: int = 10**6) -> PageCache:
            cache = PageCache(tmp_path, most)
            stack.callback(lambda: cache._closed or cache.close())
            return cache

        yield open_cache


USES = st.tuples(st.sampled_from("ab"), st.sampled_from(["add", "get"]), st.integers(0, 9))


@settings(max_examples=30)
@given(st.lists(USES, max_size=40), st.integers(1, 8))
def test_what_was_used_longest_ago_goes_first_and_the_limit_holds(uses: Any, room: int) -> None:
    """By two processes; what each has mapped it still has."""
    every, used = names(10), list[str]()  # what is there, the last used last
    mapped: dict[str, set[str]] = {"a": set(), "b": set()}
    clock, utime = itertools.count(1), os.utime
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(page_cache, "_USED_SECONDS", -1.0)
        later = lambda path: utime(path, ns=(0, next(clock) * 10**9))  # noqa: E731
        patch.setattr(page_cache.os, "utime", later)
        most = room * STORED * 32 // 31 + 1
        caches = {who: PageCache(Path(folder), most) for who in mapped}
        for who, what, number in uses:
            name, mine = every[number], mapped[who]
            known = name in mine or name in used
            if what == "add":
                add(caches[who], name)
            else:
                (data,) = caches[who].get([name])
                assert (data and bytes(data)) == (content(name) if known else None)
            if (known and what == "get") or (not known and what == "add"):
                mine.add(name)
                if name in used or not known:
                    used = [*(one for one in used if one != name), name]
            if what == "add" and not known:
                used = used[-room:]
                mine &= {*used}
            assert here(caches[who], every) == [one for one in every if one in used]
            assert {*caches[who]._maps} == mine
        for cache in caches.values():
            cache.close()


def test_the_use_of_a_mapped_page_is_said_now_and_then(opened: Open, monkeypatch: Patch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(page_cache.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(page_cache, "_USED_SECONDS", 60.0)
    monkeypatch.setattr(page_cache, "_MOST_MAPS", 1)
    cache, (name, other) = opened(), names(2)
    add(cache, other, name)
    assert [*cache._maps] == [name], "it maps no more than it may"
    seen = [(cache.folder / "pages" / name).stat().st_mtime]
    for seconds in (30, 31, 1, 59.5):
        now[0] += seconds
        cache.get([name])
        seen.append((cache.folder / "pages" / name).stat().st_mtime)
    assert [later > before for before, later in itertools.pairwise(seen)] == [0, 1, 0, 1]


def test_a_page_is_fetched_by_one_process_until_that_ends(tmp_path: Path, opened: Open) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.storage.pages.test_page_cache import *\n"
        "def pieces():\n    print('begun', flush=True)\n    yield sys.stdin.read()\n"
        "PageCache(Path(sys.argv[1]), 10**6).fetch(Wanted(sys.argv[2], SIZE, pieces))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), at("a/0")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT) as other:
        assert other.stdout
        assert other.stdout.readline() == b"begun\n"
        cache = opened()
        assert not cache.fetch(unwanted(at("a/0")))
        add(cache, at("a/1"))
        other.kill()
        other.wait()
        add(cache, at("a/0"))
    assert here(cache, [at("a/0"), at("a/1")]) == [at("a/0"), at("a/1")]


@pytest.mark.parametrize(("name", "done"), [("open", True), ("flock", False)])
def test_a_page_that_another_process_has_just_published_is_left_as_it_is(
    opened: Open, tmp_path: Path, monkeypatch: Patch, name: str, done: bool
) -> None:
    """Before what is to be written is opened, and between opening and locking it."""
    whose: Any = Path if name == "open" else page_cache.fcntl
    cache, other, really = opened(), opened(), getattr(whose, name)

    def late(*given: Any) -> Any:
        monkeypatch.setattr(whose, name, really)
        add(other, at("a/0"))
        return really(*given)

    (tmp_path / "pages" / at("a/0")).parent.mkdir()
    monkeypatch.setattr(whose, name, late)
    assert cache.fetch(unwanted(at("a/0"))) == done
    assert bytes(cache.get([at("a/0")])[0] or b"") == content(at("a/0"))
    assert not list(tmp_path.rglob(".tmp-*"))


def test_folders_that_somebody_removed_are_made_again(opened: Open, tmp_path: Path) -> None:
    cache = opened()
    for number, gone in enumerate(("", "pages", "labels", "counts")):
        add(cache, at(f"{number}/0"))
        shutil.rmtree(tmp_path / gone)
        add(cache, at(f"new {number}/0"))
        assert here(cache, [at(f"new {number}/0")])
        assert not cache.refuses


def test_a_full_disk_is_said_once_and_tried_again_after_a_while(
    opened: Open, tmp_path: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    cache, now, name = opened(), [1_000.0], at("a/1")
    add(cache, at("a/0"))
    monkeypatch.setattr(page_cache.time, "monotonic", lambda: now[0])

    def full() -> Iterator[bytes]:
        yield b"some"
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(3):
        assert cache.fetch(Wanted(name, SIZE, full))
        assert cache.refuses
        assert cache.fetch(unwanted(name))
        now[0] += 3_600
    (said,) = caplog.messages
    assert said == (
        f"no pages can be kept in {tmp_path} (No space left on device): free space there, or let "
        "JAXDATA_CACHE name another folder that you may write. Until then exactly what rows need "
        "is fetched, with far more requests"
    )
    assert bytes(cache.get([at("a/0")])[0] or b"") == content(at("a/0"))
    assert not cache.refuses
    add(cache, name)
    assert here(cache, [name]) == [name]
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_damaged_page_is_not_used_and_goes(opened: Open, tmp_path: Path, caplog: Any) -> None:
    first, second, every = opened(), opened(), names(3)
    add(first, *every)
    before = READS.read().damaged_pages
    for name in every[:2]:
        path = tmp_path / "pages" / name
        path.write_bytes(path.read_bytes()[:700])
    assert [data and bytes(data) for data in second.get(every)] == [None, None, content(every[2])]
    assert READS.read().damaged_pages == before + 2
    assert here(second, every) == every[2:]
    add(second, *every[:2])
    assert [bytes(data or b"") for data in second.get(every)] == list(map(content, every))
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path / 'pages' / every[0]} is not what was written there: ")


def test_a_page_that_the_disk_does_not_read_goes(opened: Open, monkeypatch: Patch) -> None:
    class Failing(io.FileIO):
        def readinto(self, _buffer: object) -> int:  # type: ignore[override]
            raise OSError(errno.EIO, "Input/output error")

    first, second = opened(), opened()
    add(first, at("a/0"))
    monkeypatch.setattr(page_cache, "open_plain", Failing)
    assert second.get([at("a/0")]) == [None]
    assert not here(second, [at("a/0")])
    assert not second.refuses


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([1, 2**18 - 1, 2**18, 2**18 + 1, 2**19 + 5]), st.data())
def test_a_page_is_what_was_written_under_its_name(tmp_path: Path, size: int, data: Any) -> None:
    """With its end, whatever bit flips, however it is cut or goes on."""
    cache, name = PageCache(tmp_path, 2**30), f"{size:032}/0-{size}"
    written = random.Random(size).randbytes(size)
    cache.fetch(Wanted(name, size, lambda: [written[: size // 3], written[size // 3 :]]))
    cache.close()
    path, checksum = tmp_path / "pages" / name, zlib.crc32(written, zlib.crc32(name.encode()))
    whole = written + struct.pack("<QI", size, checksum)
    assert path.read_bytes() == whole
    assert page_cache.is_whole(path, name)
    assert not page_cache.is_whole(path, f"{name}0")
    at = data.draw(st.sampled_from([0, size - 1, size, size + 11]) | st.integers(0, size + 11))
    flipped = whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :]
    nothing = struct.pack("<QI", 0, zlib.crc32(name.encode()))
    for damaged in (flipped, whole[:at], whole + b"more", b"", nothing):
        path.write_bytes(damaged)
        assert not page_cache.is_whole(path, name)
    path.unlink()


def test_what_ends_in_the_middle_leaves_nothing_and_what_is_closed_takes_nothing(
    opened: Open, tmp_path: Path
) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"abc"
        raise ValueError("no more")

    cache = opened()
    with pytest.raises(ValueError, match="no more"):
        cache.fetch(Wanted(at("a/0"), SIZE, breaks))
    assert not [path for path in tmp_path.rglob("*") if "0-1000" in path.name]
    cache.close()
    assert cache.fetch(unwanted(at("a/0")))
    assert [*tmp_path.rglob("counts/*")] == []


def settled(cache: PageCache) -> None:
    """Wait until nothing is wanted."""
    while cache._wanted:
        time.sleep(0.001)


def test_pages_come_once_in_the_order_they_are_wanted_in(opened: Open, monkeypatch: Patch) -> None:
    monkeypatch.setattr(page_cache, "_THREADS", 1)
    monkeypatch.setattr(page_cache, "_BEHIND", 4)
    cache, first, begun, got = opened(), threading.Event(), threading.Event(), list[str]()
    every = names(6)

    def page(number: int) -> Wanted:
        def pieces() -> list[bytes]:
            got.append(every[number])
            begun.set()
            assert first.wait(60)
            if number == 2:
                raise ValueError("damaged")
            return [content(every[number])]

        return Wanted(every[number], SIZE, pieces)

    cache.want([page(0)])
    assert begun.wait(60)
    cache.want(map(page, [0, 3, 1, 2, 3]))
    assert (len(cache._wanted), cache.is_behind) == (4, False)
    cache.want([page(4)])
    assert (len(cache._wanted), cache.is_behind) == (5, True)
    assert cache.wait_for(every, 0.01), "the first is on its way"
    assert not cache.wait_for(every[1:], 1e9)
    first.set()
    settled(cache)
    assert got == [every[number] for number in (0, 3, 1, 2, 4)]
    assert here(cache, every) == [every[number] for number in (0, 1, 3, 4)]
    cache.want([page(1), page(5)])
    settled(cache)
    assert got[5:] == [every[5]], "what is here is not fetched"


def test_a_page_that_another_process_fetches_is_awaited(opened: Open, monkeypatch: Patch) -> None:
    mine, other, tried, (name,) = opened(), opened(), threading.Semaphore(0), names(1)
    fetch = mine.fetch

    def counted(page: Wanted) -> bool:
        tried.release()
        return fetch(page)

    def pieces() -> list[bytes]:
        monkeypatch.setattr(mine, "fetch", counted)
        mine.want([unwanted(name)])
        assert all(tried.acquire(timeout=60) for _ in range(3))
        assert len(mine._wanted) == 1
        return [content(name)]

    assert other.fetch(Wanted(name, SIZE, pieces))
    settled(mine)
    assert bytes(mine.get([name])[0] or b"") == content(name)


def test_counts_are_those_of_this_process_and_of_its_children(tmp_path: Path) -> None:
    counter = Counter()
    path = counter.share(tmp_path)
    counter.add(gets=2, wait_seconds=0.5)
    assert np.fromfile(path).tolist() == [2, 0, 0, 0, 0, 0, 0, 0.5, os.getppid()]
    values = [10, 20, 30, 4, 3, 1, 5, 7.25]
    for number, (parent, size) in enumerate([(os.getpid(), 9), (1, 9), (os.getpid(), 3)]):
        np.array([*values, parent])[:size].tofile(tmp_path / str(number))
    expected = ReadCounts(12, 20, 30, 4, 3, 1, 5, 7.75)
    assert counter.of_family(tmp_path) == expected
    counter.move_to(np.zeros(ENTRIES))
    counter.add(gets=1)
    assert np.fromfile(path)[0] == 2
    assert expected - counter.read() + counter.read() == expected
    assert str(ReadCounts(10, 20_000_000, 3_000_000, 4, 3, 1, 1_000, 7.25)) == (
        "10 GETs, 20.0 MB for 3.0 MB of rows, 75.0 % of ranges in cached pages, 7.2 s waited, "
        "1,000 damaged pages of the cache fetched again"
    )
    assert ReadCounts() == ReadCounts(0, 0, 0, 0, 0, 0, 0, 0.0)
    assert str(ReadCounts()).endswith(", 0.0 % of ranges in cached pages, 0.0 s waited")


def test_the_cache_is_where_and_as_large_as_the_environment_says(
    tmp_path: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "a/b"))
    (tmp_path / "a").mkdir()
    usage = {tmp_path / "a": SimpleNamespace(free=1_234)}
    monkeypatch.setattr(page_cache.shutil, "disk_usage", usage.__getitem__)
    cache = page_cache.page_cache()
    assert cache
    assert (cache.most, *map(page_cache.most_ahead, (1, 4))) == (123, 15, 3)
    assert page_cache.page_cache() is cache
    assert page_cache.PAGE_BYTES == 2**20, "indexes have a checksum of each page"
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "c"))
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(2**40))
    second = page_cache.page_cache()
    assert second
    assert (second.most, page_cache.most_ahead()) == (2**40, 2**28)
    page_cache._open[-1, "of the process that forked this one"] = cache
    page_cache.close_caches()
    assert page_cache._open.pop((-1, "of the process that forked this one")) is cache
    assert (cache._closed, second._closed, page_cache._open) == (True, True, {})
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", "all")
    with pytest.raises(InputError, match="JAXDATA_CACHE_BYTES='all': expected a whole number"):
        page_cache.limit_bytes(tmp_path)
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", "1000")
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert [page_cache.page_cache() for _ in range(2)] == [None, None]
    assert page_cache.most_ahead() == 2**28
    assert page_cache.read_counts() == READS.read()
    assert caplog.text.count(f"no pages are cached in {tmp_path}/file (") == 1
