"""The demo's training processes, started as a user starts them; one of them is killed.

They train on the CPU, also where there are GPUs or TPUs: hosts on one machine cannot share one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from jaxdata.errors import JaxdataError
from jaxdata.processes import held_port
from jaxdata.train.log import read_log

Say = Callable[[str], None]


def train_and_kill(arguments: Sequence[str], log: Path, after_step: int, say: Say) -> int:
    """Run `jaxdata train`, SIGKILL it once `after_step` is in its log, and return the last step."""
    with _start(arguments) as process:
        try:
            for line in _lines(process):
                say(line)
                if last_logged_step(log) >= after_step:
                    break
        finally:
            process.send_signal(signal.SIGKILL)
        ended = process.wait()
    if ended != -signal.SIGKILL:
        raise JaxdataError(
            f"the training process exited with code {ended} before it could be killed"
        )
    return last_logged_step(log)


def train_on_hosts(arguments: Sequence[str], hosts: int, say: Say) -> None:
    """Run `jaxdata train` to its end as several JAX processes that share each batch.

    In some sandboxes the machine's own name does not resolve, and JAX processes cannot find each
    other; then each host is a virtual device of one process.
    """
    if _name_resolves():
        _train_as_processes(arguments, hosts, say)
        return
    say(f"(this machine's name does not resolve: {hosts} devices of one process act as hosts)")
    devices = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={hosts}"
    with _start(arguments, XLA_FLAGS=devices) as process:
        for line in _lines(process):
            say(line)
    if process.returncode:
        raise JaxdataError(f"the resumed process exited with code {process.returncode}, not 0")


def _name_resolves() -> bool:
    """Whether JAX's CPU collectives, which look up the machine's name, will work."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return False
    return True


def _train_as_processes(arguments: Sequence[str], hosts: int, say: Say) -> None:
    with ExitStack() as stack:
        coordinator = f"localhost:{stack.enter_context(held_port())}"
        cluster = ["--coordinator", coordinator, "--num-processes", str(hosts)]
        threads = stack.enter_context(ThreadPoolExecutor())
        processes = []
        for host in range(hosts):
            command = [*arguments, *cluster, "--process-id", str(host)]
            processes.append(stack.enter_context(_start(command)))
            stack.callback(processes[-1].kill)
        others = [threads.submit(_follow, process, processes) for process in processes[1:]]
        for line in _lines(processes[0]):
            say(line)
        ends = [process.wait() for process in processes]
        outputs = [other.result() for other in others]
    if any(ends):
        said = "\n".join(chain.from_iterable(outputs))
        raise JaxdataError(f"the hosts exited with codes {ends}, not 0\n{said}".rstrip())


def _follow(
    process: subprocess.Popen[str], processes: Sequence[subprocess.Popen[str]]
) -> list[str]:
    """The output of a process; if it fails, the others are killed."""
    lines = list(_lines(process))
    if process.wait():
        for other in processes:
            other.kill()
    return lines


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines a process prints, without those of the collectives."""
    return (line.rstrip() for line in process.stdout or () if not line.startswith("[Gloo]"))


def last_logged_step(log: Path) -> int:
    """The last step with a loss in a log, -1 if there is none."""
    if not log.exists():
        return -1
    return max((record["step"] for record in read_log(log) if "loss" in record), default=-1)


def _start(arguments: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jaxdata", "train", *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
