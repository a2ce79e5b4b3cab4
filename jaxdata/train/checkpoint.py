"""Model and loader saved together with Orbax; a checkpoint is complete or it is not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from jaxdata.errors import StateMismatch
from jaxdata.train.optimizer import State
from jaxdata.train.settings import ModelSettings

__all__ = ["Checkpoints"]


class Checkpoints:
    """The checkpoints of one run, under `directory/<step>`.

    Each has three items: `model` (params and optimizer), `loader` (the loader's state, JSON) and
    `settings` (the model's, JSON). Saving returns when all is on disk: a process killed at any
    moment leaves complete checkpoints only.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory.absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    @property
    def latest(self) -> int | None:
        """Step of the newest complete checkpoint."""
        step: int | None = self._manager.latest_step()
        return step

    def save(
        self, step: int, state: State, loader_state: Mapping[str, Any], model: ModelSettings
    ) -> None:
        """Save what continues the run after `step` steps."""
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(state),
            loader=ocp.args.JsonSave(dict(loader_state)),
            settings=ocp.args.JsonSave(model.model_dump()),
        )
        self._manager.save(step, args=items)
        self._manager.wait_until_finished()

    def loader_state(self, step: int) -> dict[str, Any]:
        """The loader's state after `step` steps."""
        state: dict[str, Any] = self._restore(step, loader=ocp.args.JsonRestore())["loader"]
        return state

    def state(self, step: int, like: State, model: ModelSettings) -> State:
        """Params and optimizer after `step` steps, laid out on devices as `like` is.

        Raises:
            StateMismatch: they are of a model with other settings.
        """
        saved = self._restore(step, settings=ocp.args.JsonRestore())["settings"]
        self._check_model(step, saved, model)
        state: State = self._restore(step, model=ocp.args.StandardRestore(like))["model"]
        return state

    def _restore(self, step: int, **items: Any) -> Any:
        return self._manager.restore(step, args=ocp.args.Composite(**items))

    def _check_model(self, step: int, saved: Mapping[str, Any], model: ModelSettings) -> None:
        given = model.model_dump()
        changes = [
            f"model.{name} was {saved.get(name)}, is {value}"
            for name, value in given.items()
            if saved.get(name) != value
        ]
        if changes:
            raise StateMismatch(
                f"the checkpoint {self._directory / str(step)} is of another model: "
                f"{'; '.join(changes)}. Set it back, or give another train.output"
            )

    def close(self) -> None:
        """End Orbax's threads."""
        self._manager.close()
