"""The log of a run: one JSON object a line, appended over restarts, readable after any kill."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["RunLog", "read_log"]


class RunLog:
    """Append records to a file; a line that a kill cut short is dropped first.

    Floats keep all their digits, so losses read back are the losses, to the bit. A record with
    `loss` is of step `step`, counted from 0; one with `bits_per_byte` or `event` is of the moment
    after `step` steps.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _drop_unfinished_line(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, *records: Mapping[str, Any]) -> None:
        """Append records and hands them to the operating system."""
        self._file.write("".join(json.dumps(record) + "\n" for record in records))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _drop_unfinished_line(path: Path) -> None:
    text = path.read_bytes()
    complete = text.rfind(b"\n") + 1
    if complete < len(text):
        with path.open("r+b") as file:
            file.truncate(complete)


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete records, oldest first; steps that were run twice are there twice."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
