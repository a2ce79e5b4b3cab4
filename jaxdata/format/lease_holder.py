"""Who holds a lease: a process, and whether it is known to be dead."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jaxdata.format.redaction import redacted

_COMMAND = 300  # characters that are kept


class Holder(BaseModel):
    """The content of a lease.

    Attributes:
        token: tells this lease from every other.
        host: the name of the machine.
        machine: identifies the space of process ids: a boot of a machine, a container.
        pid: the process.
        started: when it started, in ticks of that machine: process ids are used again.
        since: when it took the lease, UTC.
        last_renewed: unix time.
        command: what it runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    token: str = Field(max_length=64)
    host: str = Field(max_length=256)
    machine: str = Field(max_length=256)
    pid: int = Field(gt=0, lt=2**31)
    started: int | None
    since: str = Field(max_length=64)
    last_renewed: float
    command: str = Field(max_length=_COMMAND)

    @classmethod
    def this_process(cls, token: str) -> Holder:
        """Describe this process, now."""
        return cls(
            token=token,
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            started=_started(os.getpid()),
            since=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            last_renewed=time.time(),
            command=redacted(shlex.join(sys.argv))[:_COMMAND],
        )

    @classmethod
    def decode(cls, content: bytes | None) -> Holder | None:
        """Read a lease; None if there is none, or not one as this version writes it."""
        try:
            return cls.model_validate_json(content) if content else None
        except ValidationError:
            return None

    def renewed(self) -> bytes:
        """The content of the lease, renewed now."""
        now = self.model_copy(update={"last_renewed": time.time()})
        return now.model_dump_json().encode()

    def wrote(self, content: bytes | None) -> bool:
        """Tell whether this holder wrote a lease."""
        holder = self.decode(content)
        return holder is not None and holder.token == self.token

    def age(self) -> float:
        """Seconds since it was renewed, by two clocks."""
        return time.time() - self.last_renewed

    def is_dead(self) -> bool:
        """Tell whether the process is known to be gone, which only its own machine knows."""
        if self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # somebody else's: it lives
            pass
        return _started(self.pid) not in (None, self.started)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since} ({self.command})"


@cache
def _machine() -> str:
    """Where a process id means the same process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux
        return socket.gethostname()


def _started(pid: int) -> int | None:
    """When a process started, in ticks; -1 if it is dead and not waited for, None if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before that may hold anything
    return -1 if state in "ZX" else int(fields[18])
