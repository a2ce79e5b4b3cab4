"""Who may write below a folder, what of a killed job is resumed, and which kept file is trusted.

What is decided is asked with a clock of the test's own, unwaited, of a bucket in memory.
"""

import os
import re
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, strategies as st

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset import lease
from jaxdata.dataset.lease import Holder, UnfinishedJob, unfinished_conversions
from jaxdata.storage import LocalStore, Store, cached_files as cache, open_store

Patch = pytest.MonkeyPatch
WHO = "process 7 on far, since then (jaxdata convert a)"
NOW = 1000.0
THEIRS = Holder(token="theirs", machine="another", pid=7, started=3, last_renewed=NOW, called=WHO)


class Clock:
    """Time that passes only where somebody sleeps; `then` happens after so many sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()
        self.then: dict[int, Callable[[], object]] = {}

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        assert len(self.slept) < 400, "this never ends"
        self.then.get(len(self.slept), lambda: None)()


@pytest.fixture
def clock(monkeypatch: Patch) -> Clock:
    found = Clock()
    monkeypatch.setattr(lease, "time", found)
    return found


_numbers = count()


def bucket(files: Mapping[str, bytes] = MappingProxyType({})) -> Store:
    """A bucket of its own with these files."""
    store = open_store(f"memory://lease-{next(_numbers)}")
    for name, data in files.items():
        store.write(name, data)
    return store


def files(store: Store) -> dict[str, bytes | None]:
    return {name: store.read(name) for name in store.list()}


def encoded(holder: Holder, **changes: object) -> bytes:
    return holder.model_copy(update=changes).model_dump_json().encode()


def renewed(now: float | None) -> bytes:
    """Their lease, renewed at this time by their clock; None for one of another version."""
    return b"{}" if now is None else encoded(THEIRS, last_renewed=now)


SIGNS: list[Any] = [
    (NOW - 60, {}, False, 0, False),
    # What stays the same for a lease long by our clock is taken over, whatever theirs says.
    (NOW - 60.5, {}, False, 60, True),
    (NOW + 1000, {}, False, 60, True),
    (None, {}, False, 60, True),
    # A clock that is a little ahead is alive as soon as ours has come up with it.
    (NOW + 0.5, {}, False, 1, False),
    # Who renews while we watch lives.
    (5, {10: 6}, False, 10, False),
    # Who waits takes what is given back at once.
    (5, {10: 6, 69: 7, 100: "gone"}, True, 100, True),
]


@pytest.mark.parametrize(("first", "then", "wait", "slept", "taken"), SIGNS)
def test_who_shows_signs_of_life_is_not_disturbed_and_the_others_are_followed(
    clock: Clock, caplog: pytest.LogCaptureFixture, first: float | None,
    then: dict[int, Any], wait: bool, slept: int, taken: bool,
) -> None:  # fmt: skip
    folder, name = ("a", "a/.lease") if wait else ("", ".lease")
    store = bucket({name: renewed(first)})
    where = f"{store.url}/{folder}".rstrip("/")
    for after, now in then.items():
        if now == "gone":
            clock.then[after] = partial(store.delete, name)
        else:
            clock.then[after] = partial(store.write, name, renewed(now))
    if taken:
        with lease.leased(store, [folder], wait=wait) as mine:
            mine.check(store)
    else:
        with pytest.raises(DatasetError) as refused, lease.leased(store, [folder], wait=wait):
            pass
        assert str(refused.value) == (
            f"{where} is being written by another process: {WHO}. Wait until it ends or stop it, "
            "then run the same command again. If it is gone with its machine, its lease ends "
            "within 120 s"
        )
        assert files(store) == {name: renewed(then.get(slept, first))}
    assert clock.slept == [1.0] * slept
    who = "one of another version" if first is None else WHO
    assert [each.getMessage() for each in caplog.records] == [
        f"{where} is held by another process: {who}. Waiting; it is taken over if that shows no "
        "sign of life for 60 s"
    ] * bool(slept)


@pytest.fixture
def dead(monkeypatch: Patch) -> None:
    """On this machine process 7 is gone."""

    def kill(pid: int, _: int) -> None:
        if pid == 7:
            raise ProcessLookupError

    monkeypatch.setattr(lease, "_machine", lambda: "another")
    monkeypatch.setattr(lease, "_started", lambda pid: 3)
    monkeypatch.setattr(lease.os, "kill", kill)


def test_a_dead_holder_is_followed_at_once(clock: Clock, dead: None) -> None:
    store = bucket({"a/.lease": encoded(THEIRS)})
    with lease.leased(store, ["a"]) as mine:
        mine.check(store)
    store.write("a/.lease", encoded(THEIRS, pid=8))
    unseen = mock.patch.object(lease.secrets, "token_hex", return_value="theirs")
    with unseen, lease.leased(store, ["a"]):  # it was written, and the answer was lost
        assert Holder.decode(store.read("a/.lease")).pid == os.getpid()  # type: ignore[union-attr]
    assert clock.slept == []


def test_what_dead_processes_left_is_removed_and_nothing_else(dead: None) -> None:
    held = {f"{name}.lease": encoded(THEIRS) for name in ("", "a/", "other/")}
    held |= {"lives/.lease": encoded(THEIRS, pid=8), "odd/.lease": b"?"}
    store = bucket(held)
    for outcome in (None, OSError(), DatasetError()):
        with mock.patch.object(store, "sweep", side_effect=outcome) as swept:
            lease.clear(store, ["a", "lives", "odd", "none"])
        swept.assert_called_once_with()
        assert store.list() == ["lives/.lease", "odd/.lease", "other/.lease"]


GONE = "one that has ended since, unless its file .lease was deleted"


@pytest.mark.parametrize(("content", "who"), [(encoded(THEIRS), WHO), (b"?", GONE)])
def test_who_lost_its_lease_changes_nothing_and_leaves_the_other_s(
    clock: Clock, content: bytes, who: str
) -> None:
    store = bucket()
    with pytest.raises(DatasetError) as lost, lease.leased(store, ["a"]) as mine:  # noqa: PT012
        fenced = mine.fenced(store)
        fenced.write("x", b"ours")
        store.write("a/.lease", content)
        with pytest.raises(DatasetError):
            fenced.write("x", b"late")
        raise OSError("a consequence")
    assert str(lost.value) == (
        f"{store.url}/a was taken over by another process: {who}. This one had not renewed its "
        "lease for 60 s: was it stopped, or its machine asleep? It has changed nothing since; when "
        "the other has ended, the same command does what is left"
    )
    assert isinstance(lost.value.__cause__, OSError)
    assert files(store) == {"x": b"ours", "a/.lease": content}


def test_leases_are_given_back_after_an_error_and_where_another_is_refused(clock: Clock) -> None:
    limits, store = list[float](), bucket()
    within = mock.Mock(side_effect=lambda seconds: limits.append(seconds) or nullcontext())
    patched = mock.patch.object(lease, "within", within)
    with patched, pytest.raises(KeyError), lease.leased(store, ["a", "b"]):
        raise KeyError
    assert limits == [2.0] * 3, "it takes little time"
    assert store.list() == []
    store.write("b/.lease", encoded(THEIRS))
    with pytest.raises(DatasetError, match="/b is being written"):
        lease.leased(store, ["a", "b"]).__enter__()
    assert store.list() == ["b/.lease"], "so are those taken before one that is refused"


def test_only_its_own_machine_knows_that_a_process_is_dead(monkeypatch: Patch) -> None:
    """One started at another time is another one; -1 is a zombie."""
    monkeypatch.setattr(lease, "_machine", lambda: "here")
    for machine, kill, started, dead in (
        ("here", None, 3, False), ("here", None, 4, True), ("here", None, -1, True),
        ("here", None, None, False), ("here", ProcessLookupError, 3, True),
        ("here", PermissionError, 3, False), ("elsewhere", ProcessLookupError, 4, False),
    ):  # fmt: skip
        monkeypatch.setattr(lease, "_started", lambda _pid, started=started: started)
        monkeypatch.setattr(lease.os, "kill", mock.Mock(side_effect=kill))
        assert THEIRS.model_copy(update={"machine": machine}).is_dead() is dead
    monkeypatch.undo()
    for state, started in (("S", 22), ("Z", -1)):
        text = f"7 (a) Z) {state} {' '.join(map(str, range(4, 53)))}"
        with mock.patch.object(lease, "Path") as path:
            path.return_value.read_text.return_value = text
            assert lease._started(7) == started
            path.return_value.read_text.side_effect = OSError  # where there is no /proc
            assert (lease._started(7), lease._machine.__wrapped__()) == (None, socket.gethostname())


def test_a_holder_is_this_process_without_its_secrets(clock: Clock, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "argv", ["jaxdata", "a b", "s3://me:pass@host/a", "x" * 400])
    mine = Holder.this_process()
    assert (mine.pid, mine.last_renewed, mine.machine) == (os.getpid(), 1000.0, lease._machine())
    assert mine.started == lease._started(os.getpid()) is not None
    begin = rf"process {mine.pid} on {socket.gethostname()}, since .* UTC \(jaxdata 'a b' s3://…@h"
    assert re.match(begin, mine.called)
    assert len(mine.called) == 400
    clock.now += 4
    assert Holder.decode(mine.renewed()) == mine.model_copy(update={"last_renewed": 1004.0})
    for change in ({"pid": 0}, {"pid": 2**31}, {"token": "a" * 401}):
        assert Holder.decode(encoded(mine, **change)) is None, "no version writes it"
    edge = {"pid": 2**31 - 1, "token": "a" * 400, "started": None}
    assert Holder.decode(encoded(mine, **edge)) is not None


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(tmp_path) if request.param == "local" else bucket()


def test_a_lease_is_renewed_until_another_has_it_and_sent_to_workers(
    store: Store, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 0.06)
    with lease.leased(store, ["a", "b"]) as mine:
        fenced = lease.Lease(mine.folders, mine.token).fenced(store)
        fenced.write("a/shard", b"data")
        first = store.read("a/.lease")
        while store.read("a/.lease") == first:
            time.sleep(0.001)
        mine.check(store)
        store.write("a/.lease", theirs := encoded(THEIRS))
        for late in (lambda: mine.check(store), lambda: fenced.write("a/shard", b"late")):
            with pytest.raises(DatasetError, match="a was taken over by another process"):
                late()
    assert (store.read("a/.lease"), store.read("b/.lease")) == (theirs, None)
    assert store.read("a/shard") == b"data"


def test_nothing_happens_between_the_fence_and_the_change_of_an_object() -> None:
    """The lease is lost, and the object written by its new holder, right after the fence."""
    store = bucket()  # a file changes under the lock that a lease is taken with

    def fence() -> None:
        if store.read("x") == b"theirs":
            raise DatasetError("lost")
        store.write("x", b"theirs")

    fenced = store.fenced(fence)
    for change in (
        lambda: fenced.write("x", b"stale"),
        lambda: fenced.delete("x"),
        lambda: fenced.update("x", lambda _: b"stale"),
    ):
        store.write("x", b"old")
        with pytest.raises(DatasetError, match="lost"):
            change()
        assert store.read("x") == b"theirs"


@pytest.mark.parametrize(("folder", "before"), [("", ""), ("train/web", "train/web/")])
def test_a_job_is_its_record_and_the_receipts_below_its_folder(folder: str, before: str) -> None:
    store = bucket(others := {"other/work/u.receipt": b"", "work.txt": b""})
    job = UnfinishedJob(store, folder, "a job")
    assert (job.begun(), job.done(), job.files(), job.noted("n")) == (None, set(), [], None)
    store.write(f"{before}work/old.receipt", b"old")
    job.begin(b"settings")
    assert files(store) == others | {f"{before}work/parameters.json": b"settings"}
    assert unfinished_conversions(store.list()) == ({folder} if folder else set())
    job.commit("u1", b"one")
    job.commit("u.receipt", b"two")
    job.note("noted", b"three")
    assert {*job.files()} - {"parameters.json"} == {"u1.receipt", "u.receipt.receipt", "noted"}
    assert job.done() == {"u1", "u.receipt"}
    assert job.noted("noted") == store.read(f"{before}work/noted") == b"three"
    assert job.receipt("u.receipt", bytes.decode) == "two"
    with mock.patch.object(store, "delete", wraps=store.delete) as deleted:
        job.end()
    assert files(store) == others
    # What a process that is killed in between leaves is nothing that anybody resumes from.
    calls = [mock.call(f"{before}work/{name}") for name in ("parameters.json", "")]
    assert deleted.mock_calls == calls


@pytest.mark.parametrize("folder", ["", "a"])
def test_what_of_a_job_cannot_be_resumed_says_what_to_do(folder: str) -> None:
    job = UnfinishedJob(bucket(), folder, "a job")
    where = f"{job.store.url}/{folder}".rstrip("/")

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
    said = rf"^{job.store.url} cannot be written: full \(/a\)\. Finished work is kept"
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
        assert cache._can_be_trusted("d/kept", LocalStore("d")) is trusted
        apart = uid in (0, 5) and not mode & 0o022
        assert cache._can_be_trusted("d/kept", None) is apart
        statuses["d/kept"] = _status(*found, kind=stat.S_IFDIR)
        assert not cache._can_be_trusted("d/kept", None)


PLAN = f"plans/x-{'a' * 32}.npy"
OWN = f"plans/{os.getuid()}/x-{'a' * 32}.npy"


def _writes(content: bytes) -> Callable[[Any, str], None]:
    return lambda store, name: store.write(name, content)


def test_what_is_kept_goes_beside_the_data_else_to_the_user_and_no_stranger(tmp_path: Path) -> None:
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
