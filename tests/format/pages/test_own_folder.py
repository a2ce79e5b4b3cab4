"""The folder of a host's pages: what is not ours stays, whatever it is called and wherever."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxdata.format.storage import cache_root, close_caches, page_cache
from jaxdata.format.storage.pages import own_folder
from jaxdata.format.storage.pages.page_folder import PageFolder
from tests.commands import run
from tests.format.pages.test_page_folder import add, at, here, names

Patch = pytest.MonkeyPatch


def start(monkeypatch: Patch, machine: str, boot: str) -> None:
    """Be a process of this machine, since it was started for the n-th time."""
    close_caches()
    monkeypatch.setattr(own_folder, "_machine", lambda: f"{machine:0>16}")
    monkeypatch.setattr(own_folder, "_boot", lambda: f"{boot:0>16}")


def opened() -> PageFolder:
    cache = page_cache()
    assert cache
    return cache.folder


def everything(folder: Path) -> set[str]:
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {name for name, path in found.items() if path.is_file() or path.is_symlink()}


def plant(folder: Path, mine: Path) -> set[str]:
    """A user's own things in a folder, some with names like ours; the names of these."""
    before = everything(folder) if folder.exists() else set()
    (folder / "crawl").mkdir(parents=True)
    (folder / "crawl/a").write_text("a")
    (folder / "0-1000 copy").write_text("b")
    (folder / "link").symlink_to(mine)
    (folder / ("ab" * 16)).symlink_to(mine)
    return everything(folder) - before


def test_what_jaxdata_did_not_make_stays(tmp_path: Path, monkeypatch: Patch) -> None:
    mine, root = tmp_path / "mine", cache_root()
    mine.mkdir()
    (mine / "0-1000").write_text("a page of a book")
    start(monkeypatch, "a", "1")
    folder = opened()
    add(folder, *names(3))
    own = own_folder.place_of(root)
    places = [root, root / "pages", root / "plans", root / "runs-of-train"]
    places += [own, own / "pages", own / "runs"]
    places.append((own / "pages" / names(1)[0]).parent)
    planted = {place: plant(place, mine) for place in places}
    for boot in ("1", "2"):
        start(monkeypatch, "a", boot)
        shown = everything(root)
        said = run("cache", "ls").stdout
        run("cache", "verify")
        assert everything(root) == shown
    assert "others   1 folder of pages, of other hosts" in said
    # The folder before goes, but for what is not ours.
    add(opened(), at("a/0"))
    assert not [name for name in everything(own) if name.startswith(own_folder._MARKER)]
    close_caches()
    assert "1 page (0.0 MB) removed" in run("cache", "clear", "--all").stdout
    for place, expected in planted.items():
        assert expected <= everything(place), place
    assert (mine / "0-1000").read_text() == "a page of a book"
    assert everything(own) == {
        str(place.relative_to(own) / name)
        for place in places
        if place.is_relative_to(own)
        for name in planted[place]
    }


def test_two_machines_keep_their_pages_in_one_folder(monkeypatch: Patch) -> None:
    for _ in range(2):
        for machine in ("a", "b"):
            start(monkeypatch, machine, machine)
            add(opened(), *(name for name in names(4) if not opened().has(name)))
            assert here(opened(), names(4)) == names(4)
    place = own_folder.place_of(cache_root())
    assert len(own_folder.other_folders(place)) == 1
    close_caches()
    (place / f"{own_folder._MARKER}{'b':0>16}").unlink()  # somebody purged it: it is ours again
    assert here(opened(), names(4)) == names(4)
    assert own_folder.is_made(place)


def test_pages_from_before_a_restart_go_unless_a_process_needs_them(monkeypatch: Patch) -> None:
    """Two machines of one image may have one name: then a lock tells that the other is there."""
    start(monkeypatch, "a", "1")
    other = PageFolder(own_folder.place_of(cache_root()), 10**6)
    add(other, *names(2))
    start(monkeypatch, "a", "2")
    add(opened(), *names(2))
    assert all((other._folder / "pages" / name).exists() for name in names(2))
    other.close()
    close_caches()
    add(opened(), at("a/0"))
    assert not other._folder.exists()
    assert here(opened(), names(2)) == names(2)


def test_a_folder_without_our_marker_is_left_and_said(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    start(monkeypatch, "a", "1")
    place = own_folder.place_of(cache_root())
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
    assert f"{place} is a link, or belongs to somebody else" in caplog.text
    assert not everything(tmp_path / "elsewhere")


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "ext4"])
def test_a_cache_on_a_network_file_system_is_said_once(
    tmp_path: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    home = tmp_path / "my home"
    monkeypatch.setenv("JAXDATA_CACHE", str(home / "cache"))
    mounts = ["1 0 8:1 / / rw - ext4 /dev/sda rw"]
    escaped = str(home).replace(" ", r"\040")
    mounts.append(f"2 1 0:50 /export {escaped} rw shared:2 - {kind} server:/export rw")
    (tmp_path / "mountinfo").write_text("\n".join(mounts))
    monkeypatch.setattr(own_folder, "_MOUNTS", tmp_path / "mountinfo")
    for _ in range(3):
        opened()
    far = kind != "ext4"
    said = f"cache {home}/cache is on a network file system ({kind}): "
    assert caplog.text.count(said) == far
    assert caplog.text.count("Let JAXDATA_CACHE name a folder on a local disk") == far
    assert (said in run("cache", "ls").stdout.replace("\n", "")) == far
