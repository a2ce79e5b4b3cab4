"""Worker processes of our own: fresh interpreters that never import the user's `__main__`.

A child ends with its parent, and messages between them may be of any size.
"""

import fcntl
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from typing import IO, Any, Self

import cloudpickle

from jaxdata.base.errors import WorkerDied, name_of
from jaxdata.base.threads import TICK, check_stop

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from jaxdata.base import processes; processes._serve(*map(int, sys.argv[2:]))"
)
WORKER_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TOKENIZERS_PARALLELISM": "false",
    "FASTOKENS_BPE_THREADS": "1",
}
"""A function of the user's may use jax; the accelerator belongs to the parent. A process has one
core."""
_GRACE_SECONDS = 5.0
_LARGE = 2**15
"""bytes; a socket that reports itself writable has room for this many"""
_IN_FILE = b""  # instead of the message: no pickle is empty


class Worker:
    """One process that calls `target`, a function of a module, which it imports.

    The arguments are a connection and `args`, sent with cloudpickle. Messages call it by `name`, if
    one is given.
    """

    def __init__(self, target: Callable[..., None], *args: Any, name: str | None = None) -> None:
        self._name = name or name_of(target)
        self._closed = False
        task = cloudpickle.dumps((target, args))
        self.connection, child = Channel.pair()
        line, lifeline = os.pipe()
        self._lifeline = os.fdopen(lifeline, "wb", 0)
        with child, os.fdopen(line, "rb", 0):
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(line), str(child.fileno())],
                pass_fds=[line, child.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | WORKER_ENVIRONMENT,
            )
        forget_in_forks(self)
        self.send(task)

    def send(self, message: Any) -> None:
        """Send a picklable message without waiting; raises WorkerDied if the process is gone."""
        self.guarded(self.connection.send, message)

    def receive(self) -> Any:
        """Wait for the next message; an exception in the child is raised here."""
        while not self.guarded(self.connection.poll, TICK):
            check_stop()
        message = self.guarded(self.connection.recv)
        if isinstance(message, _Failure):
            raise message.error()
        return message

    def close(self) -> None:
        """End the process and wait for it; idempotent."""
        if self._closed:
            return
        self._closed = True
        self.terminate()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Let go of the process, without ending it: in a forked copy it is the original's."""
        self._closed = True
        self.connection.close()
        self._lifeline.close()

    def terminate(self) -> None:
        """Tell the process to end, without waiting for it."""
        self._process.terminate()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it; None if none has, as far as is known."""
        code = self._process.returncode
        return signal.Signals(-code).name if code is not None and code < 0 else None

    def guarded(self, call: Any, *args: Any) -> Any:
        """Make a call that fails when the process is gone, and raise WorkerDied then."""
        try:
            return call(*args)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise WorkerDied(self._obituary()) from error

    def _obituary(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        how = self.signal or f"exit code {self._process.returncode}"
        out_of_memory = " (often the kernel, out of memory)" * (how == "SIGKILL")
        who = f"the worker process {self.pid} ({self._name})"
        return f"{who} ended early: {how}{out_of_memory}"


MakeAnswer = Callable[[], Callable[[Any], Any]]


class Pool:
    """At most `workers` processes that answer tasks, each one at a time; started when needed.

    `make` is called in each, and gives what answers its tasks.
    """

    def __init__(self, make: MakeAnswer, *, workers: int) -> None:
        self.workers = workers
        self._start = partial(Worker, _answer, make, name=name_of(make))
        self._idle: list[Worker] = []
        self._busy: dict[Any, tuple[Worker, Any]] = {}

    def __len__(self) -> int:
        """Tasks under way."""
        return len(self._busy)

    def start(self, task: Any, key: Any) -> None:
        """Give a task to an idle worker, or a new one; raises WorkerDied if that is gone."""
        worker = self._idle.pop() if self._idle else self._start()
        self._busy[worker.connection] = worker, key
        try:
            worker.send(task)
        except WorkerDied:
            self._busy.pop(worker.connection)
            worker.close()
            raise

    def wait(self) -> Iterator[tuple[Any, Any]]:
        """Wait for messages; an exception of a task is raised here.

        Yields:
            (key of the task, what came: a `Progress`, the answer, or WorkerDied).
        """
        for connection in wait(list(self._busy), TICK):
            worker, key = self._busy[connection]
            try:
                message = worker.receive()
            except WorkerDied as error:
                message = error
                worker.close()
            if not isinstance(message, Progress):
                del self._busy[connection]
                self._idle += [] if isinstance(message, WorkerDied) else [worker]
            yield key, message

    def map(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """The answers to tasks, in order; each task is taken when a worker is free for it."""
        pending = enumerate(tasks)
        answers: dict[int, Any] = {}
        following = 0
        while True:
            while len(self) < self.workers and (task := next(pending, None)):
                self.start(task[1], task[0])
            if not self:
                return
            for number, message in self.wait():
                if isinstance(message, WorkerDied):
                    raise message
                if not isinstance(message, Progress):
                    answers[number] = message
            while following in answers:
                yield answers.pop(following)
                following += 1

    def close(self) -> None:
        """End the processes, side by side: one takes some 30 ms to release its memory."""
        workers = [*self._idle, *(worker for worker, _ in self._busy.values())]
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Progress:
    """The share of its task, 0 to 1, that a worker has done."""

    share: float


def answers(make: MakeAnswer, tasks: Iterable[Any], workers: int) -> Iterator[Any]:
    """The answers to tasks, in order: from a `Pool`, or from this process if `workers` is 1."""
    if workers < 2:
        yield from map(make(), tasks)
    else:
        with Pool(make, workers=workers) as pool:
            yield from pool.map(tasks)


_parent: Connection | None = None
"""Of a worker of a pool: who gives it tasks."""


def report(share: float) -> None:
    """Tell the parent the share of a task that is done, if this is a worker of a pool.

    Raises:
        EOFError: the parent is gone: another process may be doing the task already.
    """
    if _parent:
        if _parent.poll():  # a parent sends nothing while we work
            raise EOFError
        _parent.send(Progress(share))


def _answer(connection: Connection, make: MakeAnswer) -> None:
    """What a worker of a pool does: answer the tasks that come, until the parent is gone."""
    global _parent
    answer, _parent = make(), connection
    while True:
        connection.send(answer(connection.recv()))


class Channel(Connection):
    """One end of a channel: a `Connection` whose `send` rarely blocks: much goes through a file.

    >>> here, there = Channel.pair()
    >>> here.send(bytes(10**7))
    >>> len(there.recv())
    10000000
    """

    @classmethod
    def pair(cls) -> "tuple[Channel, Channel]":
        one, other = socket.socketpair()
        return cls(one.detach()), cls(other.detach())

    def send(self, message: Any) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if len(data) < _LARGE and self._has_room():
            self.send_bytes(data)
            return
        with nameless_file() as file:
            file.write(data)
            file.flush()
            file.seek(0)
            self.send_bytes(_IN_FILE)
            send_handle(self, file.fileno(), None)

    def _has_room(self) -> bool:
        """Whether the socket takes a small message without blocking (Linux: a quarter full)."""
        waiting = select.poll()
        waiting.register(self.fileno(), select.POLLOUT)
        return bool(waiting.poll(0))

    def recv(self) -> Any:
        if data := self.recv_bytes():
            return pickle.loads(data)  # noqa: S301 (its sender is a process of ours)
        with os.fdopen(recv_handle(self), "rb") as file:
            return pickle.load(file)  # noqa: S301 (its sender is a process of ours)


def nameless_file() -> IO[bytes]:
    """A file in memory if the system has these, else a deleted one on disk."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("jaxdata"), "r+b")
    return tempfile.TemporaryFile()


class _Failure:
    """An exception that a child sends to its parent."""

    def __init__(self, error: BaseException) -> None:
        try:
            self._pickled = cloudpickle.dumps(error)
            cloudpickle.loads(self._pickled)
        except Exception:
            self._pickled = cloudpickle.dumps(WorkerDied(f"{type(error).__name__}: {error}"))

    def error(self) -> BaseException:
        error: BaseException = cloudpickle.loads(self._pickled)
        return error


def _serve(line: int, handle: int) -> None:
    """The main function of the child: call the target, send the parent what it raises."""
    _hold_on(line)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    connection = Channel(handle)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        try:
            target, args = cloudpickle.loads(connection.recv())
            target(connection, *args)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except BaseException as error:
            connection.send(_Failure(error))
    connection.close()


def _hold_on(child: int) -> None:
    """End this process, whatever it is doing, when the other end of a pipe is closed."""
    on_linux = sys.platform == "linux"  # elsewhere the signal is ignored by default
    signal.signal(signal.SIGIO, signal.SIG_DFL if on_linux else lambda *_: os._exit(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    with suppress(OSError):  # not every system can: then the child notices when it next reads
        fcntl.fcntl(child, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(child, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([child], [], [], 0)[0]:  # it was closed before
        os._exit(1)


_forgetful: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_in_forks(one: Any) -> None:
    """Have `one.forget()` called in every forked copy of this process, as long as it lives.

    A forked copy has neither the threads nor the child processes of the original, but it has copies
    of the objects that stand for them, and of locks that a thread held.
    """
    _forgetful.add(one)


def _forget() -> None:
    for one in list(_forgetful):
        one.forget()


os.register_at_fork(after_in_child=_forget)


def available_cores() -> int:
    """Number of CPU cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def held_port() -> Iterator[int]:
    """A port of this machine that nobody else is given while the block runs.

    It is bound, and not listened to: a server that asks for it by number gets it, as those of
    gRPC (and so `jax.distributed`) and of torch share ports that are bound to be shared.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
