"""What a command draws on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def on_a_terminal(command: Sequence[str | Path], environment: Mapping[str, str]) -> tuple[int, str]:
    """The status of a command in a process of its own, and what its terminal was sent."""
    reader, writer = pty.openpty()
    process = subprocess.Popen(command, env=environment, stdout=writer, stderr=writer)
    os.close(writer)
    seen = b""
    while True:
        try:
            seen += os.read(reader, 65_536)
        except OSError:  # nobody writes any more
            break
    os.close(reader)
    return process.wait(), seen.decode()
