"""Worker processes of our own: fresh interpreters that never import the user's `__main__`.

`multiprocessing` would run the user's script again in every spawned child (and with it, say,
`jax.distributed.initialize`), and a forked child inherits locks and threads that it cannot use.
A :class:`Worker` is a new Python process that imports one named function and talks to its parent
through a :class:`Channel`. It ends when its parent does.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from jaxdata.channel import Channel
from jaxdata.errors import WorkerDied

__all__ = ["Worker", "available_cores", "close_all", "map_tasks"]

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from jaxdata import processes; \
processes._serve(int(sys.argv[1]))"
_GRACE_SECONDS = 5.0


def available_cores() -> int:
    """Number of CPU cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Worker:
    """One process that runs `function(connection, *args)`.

    Args:
        target: the function, as `"package.module:function"`; imported in the child.
        *args: its arguments after the connection; sent with cloudpickle.
        handles: file descriptors of this process that it gets, under the same numbers.
    """

    def __init__(self, target: str, *args: Any, handles: Sequence[int] = ()) -> None:
        self.target = target
        self._closed = False
        self.connection, child = Channel.pair()
        with child:
            handle = child.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(handle), json.dumps(sys.path)],
                pass_fds=[handle, *handles],
                stdin=subprocess.DEVNULL,
                # A function of the user's may use jax; the accelerator belongs to the parent.
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )
        self.send(cloudpickle.dumps((target, args)))

    def send(self, message: Any) -> None:
        """Send a picklable message without waiting; raises WorkerDied if nobody is there."""
        self.guarded(self.connection.send, message)

    def receive(self) -> Any:
        """Wait for the next message; an exception in the child is raised here."""
        message = self.guarded(self.connection.recv)
        if isinstance(message, _Failure):
            raise message.error()
        return message

    def close(self) -> None:
        """End the process and wait for it; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self.terminate()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.connection.close()

    def terminate(self) -> None:
        """Tell the process to end, and wait for nothing."""
        self._process.terminate()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def guarded(self, call: Any, *args: Any) -> Any:
        """A call that fails when the process is gone; raises WorkerDied then."""
        try:
            return call(*args)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise WorkerDied(self._obituary()) from error

    def _obituary(self) -> str:
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"the worker process {self.pid} ({self.target}) closed its connection"
        how = f"exit code {code}"
        if code < 0:
            how = signal.Signals(-code).name
            how += " (often the kernel, out of memory)" if how == "SIGKILL" else ""
        return f"the worker process {self.pid} ({self.target}) ended early: {how}"


def close_all(workers: Iterable[Worker]) -> None:
    """End processes, side by side: one takes some 30 ms to give its memory back."""
    pool = list(workers)
    for worker in pool:
        worker.terminate()
    for worker in pool:
        worker.close()


def map_tasks(
    target: str, args: Sequence[Any], tasks: Sequence[Any], workers: int
) -> Iterator[tuple[int, Any]]:
    """Give each task to the first worker that is free.

    Args:
        target: a function `(connection, *args)` that answers every task it receives.
        args: what it gets besides its connection.
        tasks: what to send.
        workers: processes, at most.

    Yields:
        (number of the task, answer), as they come.
    """
    pending = iter(enumerate(tasks))
    pool = [Worker(target, *args) for _ in range(min(workers, len(tasks)))]
    busy: dict[Any, tuple[Worker, int]] = {}

    def give(worker: Worker) -> None:
        for number, task in pending:
            worker.send(task)
            busy[worker.connection] = worker, number
            return

    try:
        for worker in pool:
            give(worker)
        while busy:
            for connection in wait(list(busy)):
                worker, number = busy.pop(connection)
                answer = worker.receive()
                give(worker)
                yield number, answer
    finally:
        close_all(pool)


class _Failure:
    """An exception on its way from a child to its parent."""

    def __init__(self, error: BaseException) -> None:
        try:
            self._pickled = cloudpickle.dumps(error)
            cloudpickle.loads(self._pickled)
        except Exception:
            self._pickled = cloudpickle.dumps(WorkerDied(f"{type(error).__name__}: {error}"))

    def error(self) -> BaseException:
        error: BaseException = cloudpickle.loads(self._pickled)
        return error


def _serve(handle: int) -> None:
    """The child's whole life: take the work, do it, pass on what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    connection = Channel(handle)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        try:
            target, args = cloudpickle.loads(connection.recv())
            module, function = target.split(":")
            getattr(importlib.import_module(module), function)(connection, *args)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except BaseException as error:
            connection.send(_Failure(error))
    connection.close()
