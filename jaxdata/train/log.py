"""The log of a run: one JSON object a line, appended across restarts, readable after any kill."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class RunLog:
    """Append records to a file, after dropping a line that a kill cut short.

    Floats keep all their digits, so losses read back are equal to the bit. A record with `loss`
    belongs to step `step`, counted from 0; one with `bits_per_byte` or `event` to the moment after
    `step` steps.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self._file = path.open("a", encoding="utf-8")

    def write(self, *records: Mapping[str, Any]) -> None:
        """Append records and hand them to the operating system."""
        self._file.write("".join(json.dumps(record) + "\n" for record in records))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete records, oldest first; a step that was run twice appears twice."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def amendments_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The changes of weights that a run made while it went on, for the `amendments` of a config.

    What was asked for after the checkpoint that a later start resumed from counts no more.

    >>> start = {"event": "start", "step": 0}
    >>> log = [start, {"event": "reweigh", "row": 96, "weights": {"web": 1}, "asked_at": 80}]
    >>> amendments_of(log), amendments_of([*log, start])
    ([{'at_row': 96, 'mix': {'web': 1}}], [])
    """
    found: dict[int, Any] = {}
    for record in records:
        if record.get("event") == "start":
            held = [each for each in record.get("amendments", ()) if "asked_at" in each]
            found = {each["row"]: each["weights"] for each in held}
        elif record.get("event") == "reweigh":
            found[record["row"]] = record["weights"]
    return [{"at_row": row, "mix": found[row]} for row in sorted(found)]
