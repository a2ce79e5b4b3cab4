"""Messages of any size between processes; the sender does not wait until they are read.

A socket holds about 200 kB. A larger message would block the sender until the receiver reads it,
which in a starting process is after all its imports. So a message that is large, or that finds the
socket partly full, is written to a file without a name, and only the handle of that file goes
through the socket. A sender blocks only when about a hundred messages are unread.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import tempfile
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import IO, Any

_LARGE = 2**15
"""bytes; a socket that reports itself writable has room for this many"""
_IN_FILE = b""  # instead of the message: no pickle is empty


class Channel(Connection):
    """One end of a channel: a `Connection` whose `send` rarely blocks: see above.

    >>> here, there = Channel.pair()
    >>> here.send(bytes(10**7))
    >>> len(there.recv())
    10000000
    """

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        one, other = socket.socketpair()
        return cls(one.detach()), cls(other.detach())

    def send(self, message: Any) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if len(data) < _LARGE and self._has_room():
            self.send_bytes(data)
            return
        with _nameless_file() as file:
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


def _nameless_file() -> IO[bytes]:
    """A file in memory if the system has these, else a deleted one on disk."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("jaxdata"), "r+b")
    return tempfile.TemporaryFile()
