"""Who may write below a folder: one process, and never one that lost the right to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from jaxdata.errors import DatasetError
from jaxdata.format import lease
from jaxdata.format.lease import Lease, leased
from jaxdata.format.lease_holder import Holder
from jaxdata.format.storage import Store, open_store

_numbers = count()
_HOLD = """
import sys, time
from jaxdata.format import lease, lease_holder
from jaxdata.format.storage import open_store
lease.SECONDS = float(sys.argv[3])
{before}
with lease.leased(open_store(sys.argv[1]), [sys.argv[2]]) as mine:
    print("held", flush=True)
    sys.stdin.readline()
    {after}
"""


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(tmp_path / "dataset")
    return open_store(f"memory://lease-{next(_numbers)}/dataset")


@contextmanager
def holder(
    folder: Path, seconds: float = 60, before: str = "", after: str = "pass"
) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease of `a` until it gets a line."""
    code = _HOLD.format(before=before, after=after)
    words = [sys.executable, "-c", code, str(folder), "a", str(seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "held\n", process.communicate()[1]
        try:
            yield process
        finally:
            process.kill()


def forbid_waiting(patch: pytest.MonkeyPatch) -> None:
    def never(_seconds: float) -> None:
        raise AssertionError("nothing is to be waited for")

    patch.setattr(time, "sleep", never)


def write_holder(store: Store, **changes: object) -> bytes:
    """A lease of `a`, as somebody else left it."""
    content = Holder.this_process("theirs").model_copy(update=changes).model_dump_json().encode()
    store.write("a/.lease", content)
    return content


def test_a_lease_is_gone_when_the_work_is_done(store: Store) -> None:
    store.write("a/data", b"")
    with leased(store, ["a", "b/c", "a"]) as mine:
        assert mine.folders == ("a", "b/c")
        assert store.list() == ["a/.lease", "a/data", "b/c/.lease"]
        mine.check(store)
    assert store.list() == ["a/data"]


def test_the_second_is_told_who_is_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["jaxdata", "convert", "a b.jsonl"])
    forbid_waiting(monkeypatch)
    says = (
        rf"dataset/a is being written by another process: process {os.getpid()} on \S+, "
        r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(jaxdata convert 'a b.jsonl'\). Wait until it"
    )
    with leased(store, ["a"]), pytest.raises(DatasetError, match=says), leased(store, ["0", "a"]):
        pass
    assert store.list() == []
    with leased(store, ["0"]), leased(store, ["a"]):
        pass


@pytest.mark.parametrize("waited_for", [True, False])
def test_a_killed_process_is_followed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited_for: bool
) -> None:
    with holder(tmp_path) as other:
        other.kill()
        if waited_for:
            other.wait()
        else:  # a zombie, that its parent has not waited for
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        forbid_waiting(monkeypatch)
        with leased(open_store(tmp_path), ["a"]) as mine:
            mine.check(open_store(tmp_path))


def test_a_process_id_that_is_used_again_is_not_the_holder(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_waiting(monkeypatch)
    started = Holder.this_process("").started
    assert started is not None
    write_holder(store, started=started - 1)
    with leased(store, ["a"]) as mine:
        mine.check(store)


def test_a_dead_process_of_another_machine_is_not_known_to_be_dead(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_waiting(monkeypatch)
    write_holder(store, machine="another boot", pid=2**31 - 1)
    with pytest.raises(DatasetError, match=r"process 2147483647 on .* its lease ends within 120 s"):
        leased(store, ["a"]).__enter__()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"token": 1}', b"\xff", None])
@pytest.mark.parametrize("skew", [-(10**6), 10**6])
def test_what_shows_no_sign_of_life_is_taken_over(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
    skew: float,
) -> None:
    """Whatever its clock says, and where it is no lease that we know."""
    monkeypatch.setattr(lease, "SECONDS", 0.2)
    if content is None:
        write_holder(store, machine="elsewhere", last_renewed=time.time() + skew, pid=77)
    else:
        store.write("a/.lease", content)
    began = time.monotonic()
    with leased(store, ["a"]) as mine:
        assert time.monotonic() - began >= 0.2
        mine.check(store)
    who = "process 77 on" if content is None else "one of another version"
    assert who in caplog.text
    assert "taken over if that shows no sign of life" in caplog.text


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_who_renews_is_alive_whatever_its_clock_says(tmp_path: Path, skew: int) -> None:
    before = f"""
real = time.time
time.time = lambda: real() + {skew}
lease_holder._machine = lambda: "elsewhere"
"""
    with holder(tmp_path, seconds=0.3, before=before) as other:
        with pytest.raises(DatasetError, match=f"process {other.pid} on .* Wait until it ends or"):
            leased(open_store(tmp_path), ["a"]).__enter__()
        _, errors = other.communicate("go on\n")
        assert (other.returncode, errors) == (0, "")
    assert open_store(tmp_path).list() == []


@contextmanager
def expired(store: Store) -> Iterator[Lease]:
    """The lease of `a` as soon as its holder's may be taken over."""
    while True:
        try:
            with leased(store, ["a"]) as mine:
                yield mine
                return
        except DatasetError:
            time.sleep(0.05)


_WRITE = """
    store = mine.fenced(open_store(sys.argv[1]))
    for change in (
        lambda: store.write("a/shard", b"stale"),
        lambda: store.delete("a/shard"),
        lambda: store.delete("a/old/"),
        lambda: store.sweep(),
        lambda: store.update("a/shard", lambda was: b"stale"),
        lambda: store.write_array("a/lengths", __import__("numpy").arange(3)),
    ):
        try:
            change()
        except lease.DatasetError as error:
            print(error, flush=True)
        else:
            print("written", flush=True)
"""


def test_who_was_stopped_too_long_changes_nothing_when_it_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 0.5)
    store = open_store(tmp_path)
    with holder(tmp_path, seconds=0.5, after=_WRITE) as other:
        other.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        with expired(store) as mine, store.create("a/writing") as writing:
            store.write("a/shard", b"ours")
            store.write_array("a/lengths", np.arange(5))
            store.write("a/old/one", b"")
            other.send_signal(signal.SIGCONT)
            said, _ = other.communicate("go on\n")
            mine.check(store)
            assert writing.exists()
        assert said.splitlines() == [said.splitlines()[0]] * 6
        assert f"a was taken over by another process: process {os.getpid()} on" in said
        assert "was it stopped, or its machine asleep?" in said
        assert store.read("a/shard") == b"ours"
        assert store.read_array("a/lengths").tolist() == [0, 1, 2, 3, 4]
        assert (tmp_path / "a/old/one").exists()


def test_who_was_stopped_shortly_goes_on(tmp_path: Path) -> None:
    with holder(tmp_path, after=_WRITE) as other:
        other.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        with pytest.raises(DatasetError, match=f"process {other.pid} on"):
            leased(open_store(tmp_path), ["a"]).__enter__()
        other.send_signal(signal.SIGCONT)
        said, _ = other.communicate("go on\n")
        assert said.split() == ["written"] * 6


def test_one_may_wait_until_the_other_is_done(store: Store) -> None:
    order = []
    with leased(store, ["a"]):

        def wait() -> None:
            with leased(store, ["a"], wait=True):
                order.append("second")

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.3)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_a_lease_is_renewed_until_another_has_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 0.06)
    with leased(store, ["a"]) as mine:
        first = store.read("a/.lease")
        while store.read("a/.lease") == first:
            time.sleep(0.001)
        mine.check(store)
        theirs = write_holder(store)
        with pytest.raises(DatasetError, match="a was taken over by another process"):
            mine.check(store)
    assert store.read("a/.lease") == theirs


CHANGES: dict[str, Callable[[Store], object]] = {
    "write": lambda store: store.write("x", b"stale"),
    "delete": lambda store: store.delete("x"),
    "update": lambda store: store.update("x", lambda _: b"stale"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_happens_between_the_fence_and_the_change_of_an_object(change: str) -> None:
    """The lease is lost, and the object written by its new holder, right after the fence."""
    store = open_store(f"memory://lease-{next(_numbers)}/dataset")
    store.write("x", b"old")
    passed = []

    def fence() -> None:
        passed.append(len(passed))
        if passed == [0]:
            store.write("x", b"theirs")
        else:
            raise DatasetError("lost")

    with pytest.raises(DatasetError, match="lost"):
        CHANGES[change](store.fenced(fence))
    assert store.read("x") == b"theirs"


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_changes_under_the_lock_that_a_lease_is_taken_with(
    tmp_path: Path, change: str
) -> None:
    """Who is let pass is done before another process can take over."""
    store = open_store(tmp_path)
    store.write("x", b"old")
    taken = threading.Event()

    def take_over() -> None:
        with leased(store, ["a"]):
            taken.set()

    other = threading.Thread(target=take_over)

    def fence() -> None:
        if not other.is_alive():
            other.start()
        assert not taken.wait(0.2)

    CHANGES[change](store.fenced(fence))
    other.join()
    assert taken.is_set()
    assert store.read("x") == {"write": b"stale", "delete": None, "update": b"stale"}[change]


def test_a_lease_is_sent_to_workers(store: Store) -> None:
    with leased(store, ["a"]) as mine:
        fenced = Lease(mine.folders, mine.token).fenced(store)
        fenced.write("a/shard", b"data")
    with pytest.raises(DatasetError, match="one that has ended since"):
        fenced.write("a/shard", b"late")
    assert store.read("a/shard") == b"data"
