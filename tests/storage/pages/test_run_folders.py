"""What processes of a host tell each other: claims, links in folders of their own, counts."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from jaxdata.storage.pages import page_folder, run_folder
from jaxdata.storage.pages.page_folder import Claims
from jaxdata.storage.pages.read_counts import ENTRIES, READS, Counter, ReadCounts
from jaxdata.storage.pages.run_folder import RunFolder, counts_of_family, sweep, under_way
from tests.leftovers import descriptors

LEFT = "17-0123abcd"
"""a run whose process is gone"""
COUNTS = ReadCounts(10, 20_000_000, 3_000_000, 4, 3, 1, 0, 7.25)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "runs"
    folder.mkdir()
    yield folder
    READS.move_to(None)


def test_a_name_is_claimed_once_until_it_is_released_or_its_file_is_closed(tmp_path: Path) -> None:
    first, second = Claims(tmp_path / "claims"), Claims(tmp_path / "claims")
    assert (tmp_path / "claims").stat().st_mode & 0o777 == 0o600
    names = [f"{number}/0-9" for number in range(40)]
    assert all(first.take(name) for name in names[::2])
    assert [second.take(name) for name in names] == [False, True] * 20
    assert first.take(names[0]), "who has it may ask again"
    first.release(names[0])
    assert [second.take(name) for name in names[:3]] == [True, True, False]
    first.close()
    assert second.take(names[2])
    second.close()


def test_without_locks_of_open_files_everybody_has_every_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_folder, "_SET_LOCK", None)
    both = [Claims(tmp_path / "claims") for _ in range(2)]
    assert [each.take("a") for each in both] == [True, True]
    for each in both:
        each.close()


def test_runs_are_under_way_until_they_close_and_a_link_is_made_once(runs: Path) -> None:
    before = descriptors()
    one, other = RunFolder(runs), RunFolder(runs)
    assert sorted(under_way(runs)) == sorted([one.path, other.path])
    (page := runs.parent / "page").write_text("page")
    assert one.pin(page, "a-0-9") == one.pin(page, "a-0-9") == one.path / "a-0-9"
    assert page.stat().st_nlink == 2
    assert one.pin(runs / "none", "b-0-9") is None
    one.unpin("a-0-9")
    one.unpin("a-0-9")
    assert page.stat().st_nlink == 1
    one.close()
    assert list(under_way(runs)) == [other.path]
    assert {each.name for each in runs.iterdir()} == {other.path.name, f"{other.path.name}.lock"}
    other.close()
    assert not [*under_way(runs), *under_way(runs / "none"), *runs.iterdir()]
    assert descriptors() <= before


def test_only_what_runs_that_are_gone_left_is_swept(runs: Path) -> None:
    (mine := runs.parent / "mine").write_text("mine")
    here = RunFolder(runs)
    for name in (LEFT, f"{LEFT[:-1]}e", "mine"):
        (runs / name).mkdir()
        (runs / name / "counts").write_bytes(b"")
    (runs / f"{LEFT}.lock").touch()
    (runs / f"{LEFT[:-1]}f.lock").touch()
    (runs / "18-0123abcd").mkdir()
    (runs / "18-0123abcd.lock").symlink_to(mine)
    before = descriptors()
    assert list(under_way(runs)) == [here.path]
    sweep(runs)
    assert descriptors() <= before
    kept = {here.path.name, f"{here.path.name}.lock", "mine", "18-0123abcd", "18-0123abcd.lock"}
    assert {each.name for each in runs.iterdir()} == kept
    sweep(runs / "none")
    here.close()


def test_a_lock_that_is_swept_before_it_is_held_is_made_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making the file of a lock and locking it, another process may remove it."""
    flock, left, before = fcntl.flock, [3], descriptors()

    def swept(lock: int, kind: int) -> None:
        left[0] -= 1
        (path,) = runs.glob("*.lock")
        if left[0] >= 0:
            path.unlink()
        if left[0] == 2:
            path.touch()  # by a third process, which drew the same name
        if left[0] == 1:
            raise BlockingIOError
        flock(lock, kind)
        if left[0] == 2:
            path.rename(path.with_suffix(".old"))
            path.touch()
            path.with_suffix(".old").unlink()

    monkeypatch.setattr(run_folder, "sweep", lambda _: [each.unlink() for each in runs.iterdir()])
    with monkeypatch.context() as patch:
        patch.setattr(run_folder.fcntl, "flock", swept)
        patch.setattr(run_folder.secrets, "token_hex", lambda size: "ab" * size)
        one = RunFolder(runs)
    assert left == [-1]
    assert one.path == runs / f"{os.getpid()}-abababab"
    assert list(under_way(runs)) == [one.path]
    one.close()
    assert descriptors() <= before


def test_a_forked_copy_of_a_run_leaves_its_folder(runs: Path) -> None:
    one = RunFolder(runs)
    run_folder._remove(one.path, -1, os.getpid() + 1)
    assert list(under_way(runs)) == [one.path]
    one.close()


def test_counts_are_those_of_this_process_and_of_its_children(runs: Path) -> None:
    one = RunFolder(runs)
    before = counts_of_family(runs)
    shared = np.fromfile(one.path / "counts")
    assert shared[ENTRIES:].tolist() == [os.getppid()]
    READS.add(gets=2, wait_seconds=0.5)
    now = np.fromfile(one.path / "counts")
    assert ReadCounts.of(now) == READS.read()
    assert (now - shared).tolist() == [2, 0, 0, 0, 0, 0, 0, 0.5, 0]
    values = [10, 20, 30, 4, 3, 1, 5, 7.25]
    for number, (parent, size) in enumerate([(os.getpid(), 9), (1, 9), (os.getpid(), 3)]):
        (runs / f"{number}-0123abcd").mkdir()
        found = np.array([*values, parent])[:size]
        found.tofile(runs / f"{number}-0123abcd/counts")
    assert asdict(counts_of_family(runs) - before) == {
        "gets": 12,
        "bytes": 20,
        "used_bytes": 30,
        "pages": 4,
        "hits": 3,
        "misses": 1,
        "damaged_pages": 5,
        "wait_seconds": 7.75,
    }
    counted = READS.read()
    one.close()
    assert READS.read() == counted


def test_counts_begin_at_nothing_are_added_and_taken_away_each_by_itself() -> None:
    assert set(asdict(ReadCounts()).values()) == {0}
    assert ReadCounts(20, 40_000_000, 6_000_000, 8, 6, 2, 0, 14.5) == COUNTS + COUNTS
    assert ReadCounts() == COUNTS - COUNTS
    assert COUNTS - ReadCounts() == ReadCounts() + COUNTS == COUNTS
    counter = Counter()
    assert counter.read() == ReadCounts()
    counter.add(**asdict(COUNTS))
    elsewhere = np.full(ENTRIES, 9.0)
    counter.move_to(elsewhere)
    counter.add(hits=1)
    assert elsewhere.tolist() == [*list(asdict(COUNTS).values())[:4], 4, 1, 0, 7.25]
    counter.move_to(None)
    counter.add(hits=1)
    assert elsewhere[4] == 4
    assert counter.read() == replace(COUNTS, hits=5)


def test_counts_are_said_in_words() -> None:
    said = "10 GETs, 20.0 MB for 3.0 MB of rows, 75.0 % of ranges in cached pages, 7.2 s waited"
    assert str(COUNTS) == said
    assert str(replace(COUNTS, damaged_pages=1_000)) == (
        f"{said}, 1,000 damaged pages of the cache fetched again"
    )
    assert ", 0.0 % of ranges in cached pages, 0.0 s" in str(ReadCounts())
    assert ", 100.0 % of ranges in cached pages, " in str(ReadCounts(hits=1))
