"""Messages between processes, of any size: whoever sends one need not wait until it is read.

A socket holds some 200 kB; what is larger would keep the sender until the receiver has time, or, in
a process that is only starting, has imported what it needs. So it goes into a file of no name, and
only the handle of that through the socket.
"""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import IO, Any

__all__ = ["Channel"]

_LARGE = 2**16
_IN_FILE = b""  # instead of the message: no pickle is empty


class Channel(Connection):
    """One end; a `Connection` besides.

    >>> here, there = Channel.pair()
    >>> here.send(bytes(10**7))
    >>> len(there.recv())
    10000000
    """

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two ends."""
        one, other = socket.socketpair()
        return cls(one.detach()), cls(other.detach())

    def send(self, message: Any) -> None:
        """Send a picklable message."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if len(data) < _LARGE:
            self.send_bytes(data)
            return
        with _nameless_file() as file:
            file.write(data)
            file.flush()
            file.seek(0)
            self.send_bytes(_IN_FILE)
            send_handle(self, file.fileno(), None)

    def recv(self) -> Any:
        """Wait for the next message."""
        if data := self.recv_bytes():
            return pickle.loads(data)  # noqa: S301 (its sender is a process of ours)
        with os.fdopen(recv_handle(self), "rb") as file:
            return pickle.load(file)  # noqa: S301 (likewise)


def _nameless_file() -> IO[bytes]:
    """A file in memory where the system has such, else one that is deleted already."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("jaxdata"), "r+b")
    return tempfile.TemporaryFile()
