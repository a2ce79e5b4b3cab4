"""Processes and their channels: who ends with whom, and what arrives; threads end with Python."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given, strategies as st

from jaxdata.base import processes
from jaxdata.base.errors import WorkerDied
from jaxdata.base.lazy import cached_property
from jaxdata.base.processes import Channel, Pool, Worker
from tests.commands import python
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def hold(given: Any) -> Any:
    """Say that it has begun, then never come back to Python: no thread of its own gets a turn."""
    os.write(1, f"{os.getpid()}\n".encode())  # at once, as another process does it too
    while True:
        ctypes.PyDLL(None).pause()
    return given


def with_a_forked_copy() -> None:
    """The copy, which goes on, has the parent's end of everything."""
    workers = [Worker(hold) for _ in range(2)]
    if not os.fork():
        signal.pause()
    workers[0].receive()


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """No process is left behind."""
    given: Any = {"stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    given["stderr"] = subprocess.DEVNULL  # nobody waits for those that hold it
    given["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", f"import {__name__} as t; t.with_a_forked_copy()"]
    parent = subprocess.Popen(command, **given, start_new_session=True)
    assert parent.stdout is not None
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    assert all(map(runs, workers))
    parent.kill()
    while any(map(runs, workers)):
        time.sleep(0.001)
    with suppress(ProcessLookupError):
        os.killpg(parent.pid, signal.SIGKILL)
    parent.communicate()


class Computed:
    """A property that another function computes."""

    def __init__(self, compute: Callable[[], int]) -> None:
        self._compute = compute

    @cached_property
    def value(self) -> int:
        return self._compute()


def test_a_forked_copy_waits_for_no_thread_that_computes_a_property() -> None:
    begun, end = Event(), Event()
    thread = Thread(target=lambda: Computed(lambda: begun.set() or int(end.wait())).value)
    thread.start()
    begun.wait()
    if not (copy := os.fork()):
        os._exit(Computed(lambda: 7).value)
    _, status = os.waitpid(copy, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    end.set()
    thread.join()


def deadly() -> Any:
    return lambda _task: os.kill(os.getpid(), signal.SIGKILL)


def test_the_end_of_a_pools_worker_says_what_it_was_for() -> None:
    says = rf"\({__name__}:deadly\) ended early: SIGKILL"
    with Pool(deadly, workers=1) as pool, pytest.raises(WorkerDied, match=says):
        list(pool.map(range(3)))


IN_A_LIBRARY = """
import tensorstore
from threading import Event
from jaxdata.base.threads import check_stop, in_background

begun, (_, never) = Event(), tensorstore.Promise.new()


def wait():
    begun.set()
    while True:
        try:
            never.result(timeout=0.2)
        except TimeoutError:
            check_stop()


in_background(wait, name="waits")
begun.wait()
"""


def test_python_ends_while_a_thread_waits_in_a_library() -> None:
    """A daemon thread as Python has them would abort it."""
    assert python("-c", IN_A_LIBRARY).stderr == ""


SIZES = st.sampled_from([0, 1, 2**15 - 30, 2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**20])


@given(st.lists(st.one_of(st.builds(bytes, SIZES), st.integers(), st.none())), st.booleans())
def test_messages_come_as_they_were_sent_and_no_handle_is_left(sent: Any, in_memory: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not in_memory:  # as on a system without memfd_create
            patch.delattr(processes.os, "memfd_create", raising=False)
        here, there = Channel.pair()
        with here, there:
            before = len([*Path("/proc/self/fd").iterdir()])
            for message in sent:
                here.send(message)
            there.send("and back")
            assert [there.recv() for _ in sent] == sent
            assert here.recv() == "and back"
            assert len([*Path("/proc/self/fd").iterdir()]) <= before


@pytest.mark.parametrize(("size", "count"), [(2**15, 64), (2**16 - 200, 64), (10**7, 3)])
def test_a_sender_waits_for_no_reader(size: int, count: int) -> None:
    here, there = Channel.pair()
    with here, there:
        sender = Thread(target=lambda: [here.send(bytes(size)) for _ in range(count)], daemon=True)
        sender.start()
        sender.join(60)
        assert not sender.is_alive(), "the sender waits for somebody to read"
        assert [there.recv() for _ in range(count)] == [bytes(size)] * count


def test_the_other_end_is_gone() -> None:
    here, there = Channel.pair()
    there.close()
    with here:
        with pytest.raises(BrokenPipeError):
            here.send(bytes(10**6))
        with pytest.raises(EOFError):
            here.recv()
