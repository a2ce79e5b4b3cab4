"""The folder of a host's pages: what is not ours stays, whatever it is called and wherever."""

import os
from pathlib import Path

import pytest

from jaxdata.storage import cache_root, cached_files
from jaxdata.storage.pages import page_cache as pages
from jaxdata.storage.pages.page_cache import PageCache, Wanted, close_caches, page_cache
from tests.commands import run
from tests.storage.pages.test_page_cache import STORED, add, at, content, here, names

Patch = pytest.MonkeyPatch


def start(monkeypatch: Patch, machine: str, boot: str) -> PageCache:
    """Be a process of this machine, since it was started for the n-th time."""
    close_caches()
    monkeypatch.setattr(pages, "_machine", lambda: f"{machine:0>16}")
    monkeypatch.setattr(pages, "_boot", lambda: f"{boot:0>16}")
    cache = page_cache()
    assert cache
    return cache


def everything(folder: Path) -> set[str]:
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {name for name, path in found.items() if path.is_file() or path.is_symlink()}


def plant(folder: Path, mine: Path) -> set[str]:
    """A user's own things in a folder, some with names like ours; the names of these."""
    before = everything(folder) if folder.exists() else set()
    (folder / "crawl").mkdir(parents=True)
    (folder / "crawl/a").write_text("a")
    (folder / "0-1000 copy").write_text("b")
    for name in ("link", "ab" * 16):
        (folder / name).symlink_to(mine)
    (folder / "7-8").symlink_to(mine / "0-1000")
    return everything(folder) - before


def test_what_jaxdata_did_not_make_stays(tmp_path: Path, monkeypatch: Patch) -> None:
    mine, root = tmp_path / "mine", cache_root()
    mine.mkdir()
    (mine / "0-1000").write_text("a page of a book")
    cache = start(monkeypatch, "a", "1")
    add(cache, *names(3))
    cache.label("ab" * 32, "of none")
    own = cache.folder
    (own / "counts/17-0123abcd").write_text("of a process that was killed")
    places = [root, root / "pages", root / "plans", own, own / "pages", own / "counts"]
    places.append((own / "pages" / names(1)[0]).parent)
    planted = {place: plant(place, mine) for place in places}
    for boot in ("1", "2"):
        start(monkeypatch, "a", boot)
        shown = everything(root)
        said = run("cache", "ls").stdout
        run("cache", "verify")
        assert everything(root) == shown
    assert "others   1 folder of pages, of other hosts" in said
    monkeypatch.setattr(pages, "_LEFT_SECONDS", -1.0)
    now = start(monkeypatch, "a", "2")  # what was before a restart goes, but for what is not ours
    add(now, at("a/0"))
    close_caches()
    assert "1 page (0.0 MB) removed" in run("cache", "clear", "--all").stdout
    for place, expected in planted.items():
        assert expected <= everything(place), place
    assert (mine / "0-1000").read_text() == "a page of a book"
    inside = [place for place in places if place.is_relative_to(own)]
    left = {str(place.relative_to(own) / name) for place in inside for name in planted[place]}
    assert everything(own) == left


def test_machines_and_boots_have_a_folder_each_and_one_left_goes(monkeypatch: Patch) -> None:
    """Two machines of one image may have one name: what was used lately is not left."""
    for machine, boot in ("ab", "bc", "ab", "bc"):
        cache = start(monkeypatch, machine, boot)
        add(cache, *names(2))
    assert len(pages.other_folders(cache.folder)) == 1
    again = start(monkeypatch, "b", "d")
    add(again, *names(2))
    others = pages.other_folders(again.folder)
    assert [each.name[-1] for each in others] == ["b", "c"]
    for each in others:
        (marker,) = pages.markers(each)
        os.utime(marker, (0, 0))
    again.make_room()
    assert [each.name[-1] for each in pages.other_folders(again.folder)] == ["b"]
    assert not others[1].exists()
    assert pages.remove_earlier(again.folder) == []
    assert here(again, names(2)) == names(2)


def test_a_folder_that_is_not_ours_is_left_and_said(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    place = pages.place_of(cache_root())
    place.mkdir(parents=True)
    (place / "thesis").write_text("mine")
    assert page_cache() is None
    assert f"{place} has files that are not jaxdata's: move it away" in caplog.text
    (place / "thesis").unlink()
    place.rmdir()
    close_caches()
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    assert page_cache() is None
    assert f"{place} is a link, or belongs to somebody else: move it away" in caplog.text
    assert not everything(tmp_path / "elsewhere")


@pytest.mark.parametrize(("mode", "kept"), [(0o755, 0o755), (0o775, 0o700), (0o757, 0o700)])
def test_a_folder_is_our_own_whatever_was_purged(tmp_path: Path, mode: int, kept: int) -> None:
    folder = tmp_path / "a/b"
    pages.make_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    (marker,) = pages.markers(folder)
    folder.chmod(mode)
    marker.unlink()
    pages.make_folder(folder)
    assert folder.stat().st_mode & 0o777 == kept
    assert "jaxdata keeps pages of datasets here" in marker.read_text()
    (folder / "counts").rmdir()
    (folder / "counts").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match=f"{folder}/counts is a link: remove it"):
        pages.make_folder(folder)


def test_what_is_listed_compared_and_cleared_are_pages(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", "1000000")
    assert cached_files.inventory().files == []
    cache = page_cache()
    assert cache
    first, second = names(1)[0][:32], "cd" * 16
    add(cache, *names(2))
    cache.fetch(Wanted(f"{second}/column", 7, lambda: [b"columns"]))
    cache.label(first * 2, "gs://bkt/ds\ntrain/web/a")
    (pages := cache.folder / "pages").joinpath(first, "30-40").mkdir()
    (pages / first / "20-30").symlink_to(pages / names(1)[0])
    (pages / first / ".tmp-50-60").write_bytes(b"it is written")
    plan = cache_root() / f"plans/{first}.npy"
    plan.parent.mkdir()
    plan.write_bytes(b"12345")
    a = cached_files.CachedFile(first, "gs://bkt/ds", "train/web/a", False, 2, 2 * STORED)
    b = cached_files.CachedFile(second, "", "", True, 1, 19)
    files = sorted([a, b], key=lambda file: file.key)
    assert cached_files.inventory() == cached_files.Inventory(cache_root(), 10**6, files, 1, 5, 0)
    damaged = [pages / names(2)[1], pages / second / "column"]
    for path in damaged:
        path.write_bytes(b"x" + path.read_bytes()[1:])
    done = list[tuple[int, int]]()
    found = cached_files.verify(lambda *size: done.append(size))
    page = f"gs://bkt/ds/train/web/a, bytes 1,000 to 2,000 ({damaged[0]})"
    assert (found.pages, found.bytes) == (3, 2 * STORED + 19)
    assert sorted(found.damaged) == sorted([page, f"a file {second} ({damaged[1]})"])
    assert done[-1] == (2 * STORED + 19,) * 2
    assert here(cache, names(2)) == names(1)
    assert cached_files.clear() == ((1, STORED), (0, 0))
    assert cached_files.clear(kept=True) == ((0, 0), (1, 5))
    assert not plan.exists()
    assert bytes(cache.get(names(1))[0] or b"") == content(names(1)[0]), "what is mapped stays"
