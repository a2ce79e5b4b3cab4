"""Pages of a host: published whole, evicted in the right order, shared by processes that die."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxdata.format.storage.pages.claims import Claims
from jaxdata.format.storage.pages.page_folder import PageFolder
from tests.conftest import ROOT

KILLS = int(os.environ.get("JAXDATA_TEST_KILLS", "12"))
SIZE = 1_000


def content(name: str) -> bytes:
    return (name * SIZE).encode()[:SIZE]


def add(folder: PageFolder, *names: str) -> None:
    for name in names:
        folder.add(name, content(name))


def here(folder: PageFolder, names: list[str]) -> list[str]:
    return [name for name in names if folder.has(name)]


def names(count: int) -> list[str]:
    return [f"shard/{number}" for number in range(count)]


def test_a_page_is_what_was_added(tmp_path: Path) -> None:
    folder, other = PageFolder(tmp_path, 10**6), PageFolder(tmp_path, 10**6)
    add(folder, "a/0")
    assert [bytes(data or b"") for data in other.get(["a/0", "a/1"])] == [content("a/0"), b""]
    folder.close()
    other.close()


def test_the_page_needed_longest_ago_goes_first(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, 10 * SIZE)
    add(folder, *names(9))
    folder.get(names(9)[:3])  # needed again, so the fourth is the oldest
    add(folder, "new/0", "new/1")
    left = here(folder, [*names(9), "new/0", "new/1"])
    assert len(left) <= 10
    assert {"new/0", "new/1", *names(9)[:3]} <= set(left)
    assert "shard/3" not in left
    folder.close()


def test_a_page_that_a_run_needs_goes_after_all_that_none_needs(tmp_path: Path) -> None:
    ended, under_way = PageFolder(tmp_path, 10 * SIZE), PageFolder(tmp_path, 10 * SIZE)
    add(under_way, *names(4))
    add(ended, "old/0", "old/1", "old/2")  # younger, but nobody's
    ended.close()
    add(under_way, *(f"new/{number}" for number in range(5)))
    assert here(under_way, names(4)) == names(4)
    assert len(here(under_way, ["old/0", "old/1", "old/2"])) < 3
    under_way.close()


def test_a_page_of_another_run_is_never_the_victim(tmp_path: Path) -> None:
    first, second = PageFolder(tmp_path, 10 * SIZE), PageFolder(tmp_path, 10 * SIZE)
    add(first, *names(6))
    add(second, *(f"new/{number}" for number in range(20)))
    assert here(first, names(6)) == names(6)
    assert len(list((tmp_path / "pages").rglob("*/*"))) <= 12
    first.close()
    second.close()


def test_a_map_outlives_its_page(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, 3 * SIZE)
    add(folder, "a/0")
    data = folder.get(["a/0"])[0]
    add(folder, *names(20))
    assert not folder.has("a/0")
    assert bytes(data or b"") == content("a/0")
    folder.close()


@pytest.mark.parametrize("count", [50])
def test_the_limit_holds(tmp_path: Path, count: int) -> None:
    folder = PageFolder(tmp_path, 10 * SIZE)
    for name in names(count):
        add(folder, name)
        kept = list((tmp_path / "pages").rglob("*/*"))
        assert sum(path.stat().st_size for path in kept) <= 10 * SIZE
    folder.close()


WORK = """
import random, sys
from pathlib import Path
from jaxdata.format.storage.pages.page_folder import PageFolder
from tests.format.pages.test_page_folder import add, content, names
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
    add(folder, *(f"new/{number}" for number in range(30)))
    kept = [path.stat().st_size for path in (tmp_path / "pages").rglob("*/*")]
    assert sum(kept) <= 20_000
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {folder._run.path.name, f"{folder._run.path.name}.lock"} == runs - temporary(runs)
    folder.close()


def temporary(runs: set[str]) -> set[str]:
    return {name for name in runs if name.startswith(".tmp-")}


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()


def test_a_claim_is_one_process_s_and_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from jaxdata.format.storage.pages.claims import "
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


def test_a_folder_that_is_closed_needs_no_page(tmp_path: Path) -> None:
    """A thread that fetches may end later: what it adds is a page like any other."""
    folder = PageFolder(tmp_path, 10**6)
    folder.close()
    page = tmp_path / "pages/a/0"
    page.parent.mkdir()
    page.write_bytes(b"page")
    assert folder.get(["a/0"]) == [None]
    assert page.stat().st_nlink == 1
    assert not list((tmp_path / "runs").iterdir())


def test_links_that_nobody_would_remove_are_removed(tmp_path: Path) -> None:
    page, orphan = tmp_path / "pages/a/0", tmp_path / "runs/17-abcd"
    for path in (page.parent, orphan):
        path.mkdir(parents=True)
    page.write_bytes(b"page")
    os.link(page, orphan / "a-0")
    PageFolder(tmp_path, 10**6).close()
    assert page.stat().st_nlink == 1
