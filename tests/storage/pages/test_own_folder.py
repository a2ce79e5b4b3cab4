"""The folder of a host's pages: what is not ours stays, whatever it is called and wherever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jaxdata.storage.pages.page_folder import PageFolder

from jaxdata.storage import cache_root
from jaxdata.storage.pages import own_folder
from jaxdata.storage.pages.page_cache import close_caches, page_cache
from tests.commands import run
from tests.storage.pages.test_page_folder import add, at, here, names

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
    (folder / "7-8").symlink_to(mine / "0-1000")
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


@pytest.mark.parametrize(("mode", "kept"), [(0o755, 0o755), (0o775, 0o700), (0o757, 0o700)])
def test_a_folder_is_our_own_whatever_was_purged_of_it(
    tmp_path: Path, mode: int, kept: int
) -> None:
    folder = tmp_path / "a/b"
    own_folder.make_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {each.name for each in folder.iterdir()} == {
        *("pages", "runs", "labels"),
        f".jaxdata-{own_folder._machine()}",
    }
    assert own_folder.is_made(folder)
    folder.chmod(mode)
    (marker := folder / f".jaxdata-{own_folder._machine()}").unlink()
    assert not own_folder.is_made(folder)
    (folder / "claims").touch()
    own_folder.make_folder(folder)
    assert folder.stat().st_mode & 0o777 == kept
    assert "jaxdata keeps pages of datasets here" in marker.read_text()
    (folder / "mine").touch()
    own_folder.make_folder(folder)
    (folder / "runs").rmdir()
    (folder / "runs").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match=f"{folder}/runs is a link: remove it"):
        own_folder.make_folder(folder)
    marker.unlink()
    with pytest.raises(PermissionError, match=f"{folder} has files that are not jaxdata's"):
        own_folder.make_folder(folder)


def test_a_folder_of_somebody_else_is_not_ours(tmp_path: Path, monkeypatch: Patch) -> None:
    own_folder.make_folder(tmp_path / "a")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert [own_folder.is_made(tmp_path / name) for name in "abc"] == [True, False, False]
    assert not own_folder.is_made(tmp_path / "a", ".jaxdata-" + "0" * 16)
    monkeypatch.setattr(own_folder.os, "getuid", lambda: 4_711)
    assert not own_folder.is_made(tmp_path / "a")
    with pytest.raises(PermissionError, match="is a link, or belongs to somebody else: move it"):
        own_folder.make_folder(tmp_path / "a")


def test_of_the_folders_beside_those_of_this_user_are_found(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    start(monkeypatch, "a", "1")
    place, uid = own_folder.place_of(tmp_path), os.getuid()
    assert place == tmp_path / f"pages-{uid}-{1:0>16}"
    assert own_folder.other_folders(tmp_path / "none/here") == []
    names = [f"pages-{uid}-{2:0>16}", f"pages-{uid}-{3:0>16}"]
    for name in [
        place.name,
        *reversed(names),
        f"pages-{uid}-{4:0>17}",
        f"pages-{uid + 1}-{5:0>16}",
    ]:
        own_folder.make_folder(tmp_path / name)
    (tmp_path / f"pages-{uid}-{6:0>16}").mkdir()
    assert own_folder.other_folders(place) == [tmp_path / name for name in names]
    assert own_folder.earlier_folders(place) == [tmp_path / name for name in names]
    monkeypatch.setattr(own_folder, "_machine", lambda: f"{'b':0>16}")
    own_folder.make_folder(tmp_path / names[1])
    assert own_folder.earlier_folders(place) == [tmp_path / names[1]]


def test_only_pages_are_pages_and_what_goes_is_counted(tmp_path: Path) -> None:
    folder, key = tmp_path / "own", "ab" * 16
    own_folder.make_folder(folder)
    for name in (key, "cd" * 16, f"{key}0"):
        (folder / "pages" / name).mkdir()
    (folder / "pages" / ("ef" * 16)).symlink_to(folder / "pages" / key)
    for name in (f"{key}/0-10", f"{key}/column", f"{'cd' * 16}/10-20", f"{key}0/0-1", f"{key}/x"):
        (folder / "pages" / name).write_bytes(b"12345")
    (folder / "pages" / key / "20-30").symlink_to(folder / "pages" / key / "0-10")
    (folder / "pages" / key / "30-40").mkdir()
    found = {page.path: page for page in own_folder.made_pages(folder / "pages")}
    ours = [f"{key}/0-10", f"{key}/column", f"{'cd' * 16}/10-20"]
    assert sorted(found) == [str(folder / "pages" / name) for name in ours]
    for name in ours:
        page = found[str(folder / "pages" / name)]
        assert (f"{page.key}/{page.name}", page.found.st_size) == (name, 5)
    assert not [*own_folder.made_pages(folder / "none")]
    (folder / "labels" / key).write_text("of none")
    assert own_folder.remove_made(folder) == (3, 15)
    assert everything(folder) == {
        f"pages/{key}0/0-1",
        f"pages/{key}/x",
        f"pages/{key}/20-30",
        f"pages/{'ef' * 16}",
    }
    assert (folder / "pages" / key / "30-40").is_dir()
    assert not (folder / "runs").exists()
    assert own_folder.remove_made(folder / "none") == (0, 0)
    (mine := tmp_path / "mine").mkdir()
    (mine / "claims").touch()
    (tmp_path / "link").symlink_to(mine)
    own_folder.remove_made(tmp_path / "link")
    assert everything(mine) == {"claims"}


def test_the_innermost_mount_that_was_made_last_is_that_of_a_folder(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    def kind(folder: str, *mounts: tuple[str, str]) -> str | None:
        lines = [f"1 0 8:1 / {at} rw,shared - {kind} server:/x rw" for at, kind in mounts]
        (tmp_path / "mountinfo").write_text("\n".join(lines))
        return own_folder.network_file_system(Path(folder))

    monkeypatch.setattr(own_folder, "_MOUNTS", tmp_path / "mountinfo")
    assert kind("/data/x", ("/", "nfs"), ("/data", "ext4")) is None
    assert kind("/data", ("/data", "ceph"), ("/", "ext4")) == "ceph"
    assert kind("/database", ("/", "ext4"), ("/data", "nfs4")) is None
    assert kind("/data/x", ("/data", "ext4"), ("/data", "lustre")) == "lustre"
    assert kind("/data/x", ("/data", "lustre"), ("/data", "ext4")) is None
    assert kind("/data/x", ("/", "cifs")) == "cifs"
    assert kind("/data/x", ("/other", "cifs")) is None
    assert kind("/data/x", ("/", "nfsd")) is None
    assert kind("/a b\\c/x", ("/", "ext4"), (r"/a\040b\134c", "nfs")) == "nfs"
    (tmp_path / "mountinfo").unlink()
    assert own_folder.network_file_system(Path("/data")) is None


def test_a_machine_has_a_name_and_each_of_its_boots(tmp_path: Path, monkeypatch: Patch) -> None:
    machine = own_folder._machine.__wrapped__
    monkeypatch.setattr(own_folder, "_MACHINE", tmp_path / "machine")
    monkeypatch.setattr(own_folder, "_BOOT", tmp_path / "boot")
    monkeypatch.setattr(own_folder.socket, "gethostname", lambda: "a")
    assert own_folder._boot() == own_folder._machine()
    named = {machine()}
    (tmp_path / "machine").write_text("0123")
    named.add(machine())
    monkeypatch.setattr(own_folder.socket, "gethostname", lambda: "b")
    named.add(machine())
    assert [len(named), *{len(name) for name in named}] == [3, 16]
    (tmp_path / "boot").write_text("01234567-89ab-cdef-0123-456789abcdef\n")
    assert own_folder._boot() == "0123456789abcdef"
