"""Saving a loader with Orbax: one process writes one small file, for any number of processes.

    manager.save(step, args=ocp.args.Composite(model=…, loader=jaxdata.LoaderSave(loader)))
    manager.restore(step, args=ocp.args.Composite(loader=jaxdata.LoaderRestore(loader)))

`ocp.args.JsonSave(loader.get_state())` writes the same file: each restores the other's. Checkpoints
of grain's `CheckpointSave`, with a file for each process, are restored as well.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import orbax.checkpoint as ocp

from jaxdata.base.errors import StateMismatch
from jaxdata.feed.state import STATE_FILES, state_files


class LoaderHandler(ocp.JsonCheckpointHandler):  # type: ignore[misc]
    """Orbax's handler of `LoaderSave` and `LoaderRestore`; it registers itself."""

    def __init__(self) -> None:
        super().__init__(STATE_FILES[0])

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Take the state now; the primary process writes it in the background."""
        state = ocp.args.JsonSave(args.loader.get_state())
        return await super().async_save(directory, item, state)

    def restore(self, directory: Any, _item: Any = None, args: Any = None) -> Any:
        """Set the state of `args.loader`, which is returned."""
        args.loader.set_state(_read(directory))
        return args.loader


@ocp.args.register_with_handler(LoaderHandler, for_save=True)
@dataclass
class LoaderSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """Save a loader: the state at the call, even if Orbax writes the file later.

    Args:
        loader: any loader, or what has its `get_state` and `set_state`.

    >>> import jaxdata, tempfile
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> loader = jaxdata.Loader(rows, batch_size=1)
    >>> with tempfile.TemporaryDirectory() as folder, ocp.CheckpointManager(folder) as manager:
    ...     manager.save(1, args=ocp.args.Composite(data=jaxdata.LoaderSave(loader)))
    True
    """

    loader: Any


@ocp.args.register_with_handler(LoaderHandler, for_restore=True)
@dataclass
class LoaderRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """Restore a loader of the same rows, on any number of processes.

    Args:
        loader: a new one, which goes to the row that was saved.

    Raises:
        StateMismatch: the state belongs to other rows; one line for each fact that differs.

    >>> import jaxdata, tempfile
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> loader, other = (jaxdata.Loader(rows, batch_size=1) for _ in range(2))
    >>> batch = next(loader)
    >>> with tempfile.TemporaryDirectory() as folder, ocp.CheckpointManager(folder) as manager:
    ...     saved = manager.save(1, args=ocp.args.Composite(data=jaxdata.LoaderSave(loader)))
    ...     found = manager.restore(1, args=ocp.args.Composite(data=jaxdata.LoaderRestore(other)))
    >>> other.next_row
    1
    """

    loader: Any


async def load_later(directory: Any, loader: Any) -> None:
    """Read a state and set it; for Orbax's checkpointables."""
    loader.set_state(await asyncio.to_thread(_read, directory))


def _read(directory: Any) -> dict[str, Any]:
    if not (found := state_files(directory)):
        raise StateMismatch(
            f"no loader state in {directory}: expected the file {STATE_FILES[0]!r} that "
            "jaxdata.LoaderSave and ocp.args.JsonSave write, or the files of grain's CheckpointSave"
        )
    try:
        state: dict[str, Any] = json.loads(found[0].read_text())  # the same in all
    except (ValueError, RecursionError) as error:
        raise StateMismatch(
            f"{found[0]} is damaged ({error}): restore an earlier checkpoint, or this file from a "
            "copy"
        ) from None
    return state
