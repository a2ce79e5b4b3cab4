"""Saving a loader with Orbax: one small file by one process, for any number of processes.

    manager.save(step, args=ocp.args.Composite(model=…, loader=jaxdata.LoaderSave(loader)))
    manager.restore(step, args=ocp.args.Composite(loader=jaxdata.LoaderRestore(loader)))

The file is the one that `ocp.args.JsonSave(loader.get_state())` writes: each restores the other's.
What grain's `CheckpointSave` wrote, a file for each process, is restored as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orbax.checkpoint as ocp

from jaxdata.errors import StateMismatch
from jaxdata.feed.loader import Loader

__all__ = ["LoaderHandler", "LoaderRestore", "LoaderSave", "load_later", "save_later"]

_FILE = "metadata"  # the name that Orbax's JSON handler gives its file


class LoaderHandler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]
    """Orbax's handler of `LoaderSave` and `LoaderRestore`; it needs no registration by hand."""

    def __init__(self) -> None:
        self._json = ocp.JsonCheckpointHandler(_FILE)

    async def async_save(self, directory: Any, args: LoaderSave) -> Any:
        """Take the state now; the primary process writes it in the background."""
        return await self._json.async_save(directory, args=ocp.args.JsonSave(_state_of(args)))

    def save(self, directory: Any, args: LoaderSave) -> None:
        """Take the state and write it."""
        self._json.save(directory, args=ocp.args.JsonSave(_state_of(args)))

    def restore(self, directory: Any, args: LoaderRestore) -> Loader:
        """Set the state of `args.loader`, which is returned."""
        args.loader.set_state(_read(directory))
        return args.loader

    def close(self) -> None:
        """End the threads of the JSON handler."""
        self._json.close()


@ocp.args.register_with_handler(LoaderHandler, for_save=True)
@dataclass
class LoaderSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """Save a loader: its state when Orbax is called, however late the file is written."""

    loader: Loader


@ocp.args.register_with_handler(LoaderHandler, for_restore=True)
@dataclass
class LoaderRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """Restore a loader that was made for the same rows, on any number of processes.

    Raises:
        StateMismatch: the state is of other rows; one line for each fact that differs.
    """

    loader: Loader


async def save_later(directory: Any, state: Mapping[str, Any]) -> None:
    """Write a state when its directory is there; for Orbax's checkpointables."""
    path = await directory.await_creation()
    if ocp.multihost.process_index() == 0:
        await asyncio.to_thread((path / _FILE).write_text, json.dumps(state))


async def load_later(directory: Any, loader: Loader) -> None:
    """Read a state and set it; for Orbax's checkpointables."""
    loader.set_state(await asyncio.to_thread(_read, directory))


def _state_of(args: LoaderSave) -> dict[str, Any]:
    return args.loader.get_state()


def _read(directory: Any) -> dict[str, Any]:
    path = directory / _FILE
    found = [path] if path.exists() else sorted(directory.glob("process_*-of-*.json"))
    if not found:
        raise StateMismatch(
            f"no loader state in {directory}: expected the file {_FILE!r}, as jaxdata.LoaderSave "
            "and ocp.args.JsonSave write it, or those of grain's CheckpointSave"
        )
    state: dict[str, Any] = json.loads(found[0].read_text())  # the same in all
    return state
