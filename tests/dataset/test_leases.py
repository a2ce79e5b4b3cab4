"""Who may write below a folder: one process, and never one that lost the right to.

What is decided is asked with a clock of the test's own, unwaited, of a store in memory.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jaxdata.base.errors import DatasetError
from jaxdata.dataset import lease
from jaxdata.dataset.lease import Holder
from jaxdata.storage import Store, open_store
from tests.storage.memory_store import MemoryStore

WHO = "process 7 on far, since then (jaxdata convert a)"
THEIRS = Holder(
    token="theirs", machine="another", pid=7, started=3, last_renewed=1000.0, called=WHO
)


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
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(lease, "time", found)
    return found


def encoded(holder: Holder, **changes: object) -> bytes:
    return holder.model_copy(update=changes).model_dump_json().encode()


def renewed(now: float | None) -> bytes:
    """Their lease, renewed at this time by their clock; None for one of another version."""
    return b"{}" if now is None else encoded(THEIRS, last_renewed=now)


NOW = 1000.0


@pytest.mark.parametrize(
    ("first", "then", "wait", "slept", "taken"),
    [
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
    ],
)
def test_who_shows_signs_of_life_is_not_disturbed_and_the_others_are_followed(
    clock: Clock, caplog: pytest.LogCaptureFixture, first: float | None,
    then: dict[int, Any], wait: bool, slept: int, taken: bool,
) -> None:  # fmt: skip
    folder, name, where = ("a", "a/.lease", "memory:/a") if wait else ("", ".lease", "memory:")
    store = MemoryStore({name: renewed(first)})
    for after, now in then.items():
        clock.then[after] = (
            store.files.clear if now == "gone" else lambda now=now: store.write(name, renewed(now))
        )
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
        assert store.files == {name: renewed(then.get(slept, first))}
    assert clock.slept == [1.0] * slept
    who = "one of another version" if first is None else WHO
    assert [each.getMessage() for each in caplog.records] == [
        f"{where} is held by another process: {who}. Waiting; it is taken over if that shows no "
        "sign of life for 60 s"
    ] * bool(slept)


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine process 7 is gone."""

    def kill(pid: int, _: int) -> None:
        if pid == 7:
            raise ProcessLookupError

    monkeypatch.setattr(lease, "_machine", lambda: "another")
    monkeypatch.setattr(lease, "_started", lambda pid: 3)
    monkeypatch.setattr(lease.os, "kill", kill)


def test_a_dead_holder_is_followed_and_a_write_that_succeeded_unseen_is_ours(
    clock: Clock, dead: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore({"a/.lease": encoded(THEIRS)})
    with lease.leased(store, ["a"]) as mine:
        mine.check(store)
    monkeypatch.setattr(lease.secrets, "token_hex", lambda size: "theirs")
    store.files["a/.lease"] = encoded(THEIRS, pid=8)
    with lease.leased(store, ["a"]):
        assert Holder.decode(store.files["a/.lease"]).pid == os.getpid()  # type: ignore[union-attr]
    assert clock.slept == []


def test_what_dead_processes_left_is_removed_and_nothing_else(dead: None) -> None:
    files = {f"{name}.lease": encoded(THEIRS) for name in ("", "a/", "other/")}
    files |= {"lives/.lease": encoded(THEIRS, pid=8), "odd/.lease": b"?"}
    store = MemoryStore(dict(files))
    lease.clear(store, ["a", "lives", "odd", "none"])
    assert store.sweeps == 1
    assert {*store.files} == {"other/.lease", "lives/.lease", "odd/.lease"}
    for error in (OSError(), DatasetError()):
        store.failing = error
        lease.clear(store, [])


GONE = "one that has ended since, unless its file .lease was deleted"


@pytest.mark.parametrize(("content", "who"), [(encoded(THEIRS), WHO), (b"?", GONE)])
def test_who_lost_its_lease_changes_nothing_and_leaves_the_other_s(
    clock: Clock, content: bytes, who: str
) -> None:
    store = MemoryStore()
    with pytest.raises(DatasetError) as lost, lease.leased(store, ["a"]) as mine:  # noqa: PT012
        fenced = mine.fenced(store)
        fenced.write("x", b"ours")
        store.files["a/.lease"] = content
        with pytest.raises(DatasetError):
            fenced.write("x", b"late")
        raise OSError("a consequence")
    assert str(lost.value) == (
        f"memory:/a was taken over by another process: {who}. This one had not renewed its lease "
        "for 60 s: was it stopped, or its machine asleep? It has changed nothing since; when the "
        "other has ended, the same command does what is left"
    )
    assert isinstance(lost.value.__cause__, OSError)
    assert store.files == {"x": b"ours", "a/.lease": content}


def test_leases_are_given_back_after_an_error_and_where_another_is_refused(clock: Clock) -> None:
    limits, store = list[float](), MemoryStore()
    within = mock.Mock(side_effect=lambda seconds: limits.append(seconds) or nullcontext())
    patched = mock.patch.object(lease, "within", within)
    with patched, pytest.raises(KeyError), lease.leased(store, ["a", "b"]):
        raise KeyError
    assert limits == [2.0] * 3, "it takes little time"
    assert store.files == {}
    store.files["b/.lease"] = encoded(THEIRS)
    with pytest.raises(DatasetError, match="memory:/b is being written"):
        lease.leased(store, ["a", "b"]).__enter__()
    assert [*store.files] == ["b/.lease"], "so are those taken before one that is refused"


def test_only_its_own_machine_knows_that_a_process_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_holder_is_this_process_and_its_command_without_secrets(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
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


_numbers = count()


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    remote = f"memory://lease-{next(_numbers)}/dataset"
    return open_store(tmp_path / "dataset" if request.param == "local" else remote)


def test_a_lease_is_renewed_until_another_has_it_and_sent_to_workers(
    store: Store, monkeypatch: pytest.MonkeyPatch
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


def test_nothing_happens_between_the_fence_and_the_change_of_an_object(store: Store) -> None:
    """The lease is lost, and the object written by its new holder, right after the fence."""
    if store.local:
        return  # a file changes under the lock that a lease is taken with
    passed = []

    def fence() -> None:
        passed.append(len(passed))
        if passed != [0]:
            raise DatasetError("lost")
        store.write("x", b"theirs")

    for change in ("write", "delete", "update"):
        passed.clear()
        store.write("x", b"old")
        given = {"write": [b"stale"], "update": [lambda _: b"stale"]}.get(change, [])
        with pytest.raises(DatasetError, match="lost"):
            getattr(store.fenced(fence), change)("x", *given)
        assert store.read("x") == b"theirs"
