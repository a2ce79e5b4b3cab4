"""The state of a loader, wherever a run has left it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxdata.errors import InputError

__all__ = ["read_state"]


def read_state(path: str | Path) -> dict[str, Any]:
    """Read a loader's state.

    Args:
        path: a JSON file; a checkpoint of Orbax that has the state as one of its items; or a
            folder of such checkpoints or the output of `jaxdata train`: the newest counts.

    Raises:
        InputError: there is no state.
    """
    root = Path(path)
    if not root.exists():
        raise InputError(f"no state at {root}: there is no such file or folder")
    for file in [root] if root.is_file() else _candidates(root):
        state = _state_in(file)
        if state is not None:
            return state
    raise InputError(
        f"no state of a loader in {root}: expected the JSON of loader.get_state(), a checkpoint "
        "that holds it, or a folder of checkpoints named by their steps"
    )


def _candidates(root: Path) -> Iterator[Path]:
    """Files that may hold a state: of this checkpoint, or of the newest one below."""
    for pattern in ("metadata", "process_*-of-*.json", "*/metadata", "*/process_*-of-*.json"):
        yield from sorted(root.glob(pattern))
    for folder in (root, root / "checkpoints"):
        if folder.is_dir():
            steps = [each for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()]
            for step in sorted(steps, key=lambda each: int(each.name), reverse=True):
                yield from sorted([*step.glob("*/metadata"), *step.glob("*/process_*-of-*.json")])


def _state_in(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "next_row" in found else None
