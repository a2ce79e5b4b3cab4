"""Claims between the processes of a host: one fetches a page, the others wait for it.

A claim is a lock on one byte of a file, which nobody writes: the kernel drops it with the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from contextlib import suppress
from pathlib import Path

_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
"""of an open file, not of a process; where there is none, two processes may fetch the same page"""


class Claims:
    """Claims on names, between processes that use the same file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, name: str) -> bool:
        """Whether no other process had the name; this one has it now."""
        return self._set(name, fcntl.F_WRLCK)

    def release(self, name: str) -> None:
        """Let others have it."""
        self._set(name, fcntl.F_UNLCK)

    def _set(self, name: str, kind: int) -> bool:
        if _SET_LOCK is None:
            return True
        digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
        lock = struct.pack("hhqqi", kind, os.SEEK_SET, int.from_bytes(digest), 1, 0)
        with suppress(BlockingIOError, PermissionError):
            fcntl.fcntl(self._file, _SET_LOCK, lock)
            return True
        return False

    def close(self) -> None:
        """Release all."""
        os.close(self._file)
