"""The state of a loader, wherever a run saved it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.feed.state import state_files
from jaxdata.storage import local_path


def read_state(path: str | Path) -> dict[str, Any]:
    """Read a loader's state.

    Args:
        path: a JSON file; an Orbax checkpoint with the state as one of its items; or a folder of
            such checkpoints or the output of `jaxdata train`, whose newest one is read.

    Raises:
        InputError: there is no state at `path`, or that of the newest checkpoint is damaged.
    """
    root = local_path(path, "copy the checkpoint, or only its loader's state, from the bucket")
    if not root.exists():
        raise InputError(f"no state at {root}: there is no such file or folder")
    for files in [[root]] if root.is_file() else _checkpoints(root):
        found = [_content(file) for file in files]
        for state in found:
            if isinstance(state, dict) and "next_row" in state:
                return state
        if root.is_dir() and None in found:
            raise InputError(
                f"{files[found.index(None)]} is damaged: it is no JSON. Give the folder of an "
                "earlier checkpoint"
            )
    raise InputError(
        f"no loader state in {root}: expected the JSON of loader.get_state(), a checkpoint that "
        "contains it, or a folder of checkpoints named by their steps"
    )


def _checkpoints(root: Path) -> Iterator[list[Path]]:
    """Files that may contain a state: of this checkpoint, then of those below, newest first."""
    yield state_files(root)
    yield state_files(root, "*/")
    for folder in (root, root / "checkpoints"):
        if folder.is_dir():
            steps = [each for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()]
            for step in sorted(steps, key=lambda each: int(each.name), reverse=True):
                yield state_files(step, "*/")


def _content(file: Path) -> Any:
    """The JSON of a file; None if it has none."""
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
