"""What of a killed job is resumed, and which file that was kept is trusted."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.lease import UnfinishedJob, unfinished_conversions
from jaxdata.storage import LocalStore
from jaxdata.storage import cached_files as cache
from tests.storage.memory_store import MemoryStore


@pytest.mark.parametrize(("folder", "before"), [("", ""), ("train/web", "train/web/")])
def test_a_job_is_its_record_and_the_receipts_below_its_folder(folder: str, before: str) -> None:
    store = MemoryStore({"other/work/u.receipt": b"", "work.txt": b""})
    others, job = dict(store.files), UnfinishedJob(store, folder, "a job")
    assert (job.begun(), job.done(), job.files(), job.noted("n")) == (None, set(), [], None)
    store.files[f"{before}work/old.receipt"] = b"old"
    job.begin(b"settings")
    assert store.files == others | {f"{before}work/parameters.json": b"settings"}
    assert unfinished_conversions([*store.files]) == ({folder} if folder else set())
    job.commit("u1", b"one")
    job.commit("u.receipt", b"two")
    job.note("noted", b"three")
    assert {*job.files()} - {"parameters.json"} == {"u1.receipt", "u.receipt.receipt", "noted"}
    assert job.done() == {"u1", "u.receipt"}
    assert job.noted("noted") == store.files[f"{before}work/noted"] == b"three"
    assert job.receipt("u.receipt", bytes.decode) == "two"
    job.end()
    assert store.files == others
    # What a process that is killed in between leaves is nothing that anybody resumes from.
    assert store.deleted[-2:] == [f"{before}work/parameters.json", f"{before}work/"]


@pytest.mark.parametrize("folder", ["", "a"])
def test_what_of_a_job_cannot_be_resumed_says_what_to_do(folder: str) -> None:
    job = UnfinishedJob(MemoryStore(), folder, "a job")
    where = f"memory:/{folder}" if folder else "memory:"

    def fail(_: bytes) -> list[str]:
        raise ValueError

    assert not job.resumes(fail), "nothing is begun"
    job.begin(b"settings")
    assert not job.resumes(fail), "no unit is done"
    job.commit("u", b"\xff")
    assert job.resumes(lambda record: [] if record == b"settings" else ["another record"])
    other = f"{where} contains a job with different settings: a was 1; b was 3. Use the same set"
    with pytest.raises(InputError, match=f"^{other}"):
        job.resumes(lambda _: ["a was 1", "b was 3"])
    with pytest.raises(InputError, match="settings: it was begun by another version of jax"):
        job.resumes(fail)
    for unit, decode in (
        ("u", bytes.decode), ("u", lambda data: {}[data]), ("u", lambda data: data.none),
        ("none", bytes.decode),
    ):  # fmt: skip
        said = rf"work/{unit}\.receipt is damaged, or of another version"
        with pytest.raises(DatasetError, match=said):
            job.receipt(unit, decode)
    said = r"^memory: cannot be written: full \(/a\)\. Finished work is kept"
    with pytest.raises(DatasetError, match=said), job.writing():
        raise OSError(28, "full", "/a")


def _status(uid: int, gid: int, mode: int, kind: int = stat.S_IFREG) -> os.stat_result:
    return os.stat_result((kind | mode, 0, 0, 0, uid, gid, 0, 0, 0, 0))


_who = st.tuples(st.sampled_from([0, 5, 6, 9]), st.sampled_from([1, 2]), st.integers(0, 0o777))


@given(found=_who, data=st.none() | _who)
def test_a_kept_file_is_trusted_where_nobody_else_could_write_it(
    found: tuple[int, int, int], data: tuple[int, int, int] | None
) -> None:
    """Of the people of some groups: the user 5, root, and whoever may write the data."""
    uid, gid, mode = found
    trusted = uid in (0, 5) or (data is not None and uid == data[0])
    of_all = data is not None and bool(data[2] & 0o002)
    of_group = data is not None and data[1] == gid and bool(data[2] & 0o020)
    trusted &= of_group or not mode & 0o020
    trusted &= of_all or not mode & 0o002
    statuses = {"d/dataset.json": data and _status(*data), "d/kept": _status(*found)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "_stat", statuses.get)
        patch.setattr(cache.os, "getuid", lambda: 5)
        assert cache._can_be_trusted("d/kept", MemoryStore(url="d")) is trusted
        apart = uid in (0, 5) and not mode & 0o022
        assert cache._can_be_trusted("d/kept", None) is apart
        statuses["d/kept"] = _status(*found, kind=stat.S_IFDIR)
        assert not cache._can_be_trusted("d/kept", None)


PLAN = f"plans/x-{'a' * 32}.npy"
OWN = f"plans/{os.getuid()}/x-{'a' * 32}.npy"


def _writes(content: bytes) -> Callable[[Any, str], None]:
    return lambda store, name: store.write(name, content)


def test_what_is_kept_goes_beside_the_data_else_to_the_user_and_in_no_stranger_s_place(
    tmp_path: Path,
) -> None:
    beside = LocalStore(tmp_path / "d")
    user = LocalStore(cache.cache_root())
    assert user.url == os.environ["JAXDATA_CACHE"]
    store, name = cache.keep(PLAN, beside, _writes(b"1"))
    assert (store, name, beside.read(PLAN)) == (beside, PLAN, b"1")
    assert (tmp_path / "d" / PLAN).stat().st_mode & 0o777 == 0o644
    for error in (OSError(), DatasetError()):

        def write(store: Any, name: str, error: Exception = error) -> None:
            if store.url == beside.url:
                raise error
            store.write(name, b"2")

        store, name = cache.keep(PLAN, beside, write)
        assert (store.url, name) == (user.url, PLAN)
    found = [(s.url, n) for s, n in cache.find_kept(PLAN, beside)]
    assert found == [(beside.url, PLAN), (user.url, PLAN)]
    beside.write(PLAN, b"a stranger's")
    (tmp_path / "d" / PLAN).chmod(0o666)
    assert cache.keep(PLAN, beside, _writes(b"ours")) == (beside, OWN)
    assert (beside.read(PLAN), beside.read(OWN)) == (b"a stranger's", b"ours")
    assert [n for s, n in cache.find_kept(PLAN, beside) if s is beside] == [OWN]
