"""Model and loader saved together with Orbax; a checkpoint whose checksums fail is not whole."""

import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxdata.base.errors import DatasetError, StateMismatch, differences
from jaxdata.config.config_fields import ModelSettings
from jaxdata.storage import LocalStore
from jaxdata.storage.small_files import write_small
from jaxdata.train.model import State


def write_checksums(directory: Path, step: int) -> None:
    """Write those of the checkpoint `directory/<step>`."""
    folder = directory / str(step)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): _sha256(path) for path in files}
    write_small(_checksums(directory, step), json.dumps(found, indent=1).encode())
    _forget_deleted(directory)


def _forget_deleted(directory: Path) -> None:
    """Remove the checksums of checkpoints that are there no longer."""
    for each in _checksums(directory, 0).parent.glob("*.json"):
        if not (directory / each.stem).exists():
            each.unlink()


def check_newest(directory: Path) -> None:
    """Refuse to go on from a checkpoint of which a file is not as it was written; DatasetError."""
    steps = sorted(int(each.name) for each in directory.glob("*") if each.name.isdigit())[::-1]
    if not steps or (reason := _damage(directory, steps[0])) is None:
        return
    older = f"move it away to go on from step {steps[1]}" if steps[1:] else None
    raise DatasetError(
        f"the checkpoint {directory / str(steps[0])} is damaged: {reason}. Restore it, or "
        f"{older or 'give another train.output to start again'}"
    )


def _damage(directory: Path, step: int) -> str | None:
    folder = directory / str(step)
    try:
        written = json.loads(_checksums(directory, step).read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    for name, sha256 in written.items() if isinstance(written, dict) else ():
        if not (folder / name).is_file():
            return f"its file {name} is missing"
        if _sha256(folder / name) != sha256:
            return f"its file {name} is not as it was written"
    return None


def _checksums(directory: Path, step: int) -> Path:
    return directory.parent / "checksums" / f"{step}.json"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Checkpoints:
    """The checkpoints of one run, under `directory/<step>`.

    Each has three items: `model` (params and optimizer), `loader` (the loader's state, JSON) and
    `settings` (the model's, JSON). Saving returns when everything is on disk: a process killed at
    any moment leaves only complete checkpoints.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory.absolute()
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        if jax.process_index() == 0:
            # Orbax can do it too, in a thread that nobody can join: it prints a traceback if a run
            # ends soon.
            for unfinished in self._directory.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
                shutil.rmtree(unfinished)
            _forget_deleted(self._directory)
            LocalStore(_checksums(self._directory, 0).parent).sweep()
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    @property
    def latest(self) -> int | None:
        """Step of the newest complete checkpoint."""
        step: int | None = self._manager.latest_step()
        return step

    def save(
        self, step: int, state: State, loader_state: Mapping[str, Any], model: ModelSettings
    ) -> None:
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(state),
            loader=ocp.args.JsonSave(dict(loader_state)),
            settings=ocp.args.JsonSave(model.model_dump()),
        )
        try:
            with _one_error():
                self._manager.save(step, args=items)
                self._manager.wait_until_finished()
            if jax.process_index() == 0:
                write_checksums(self._directory, step)
        except Exception as error:  # Orbax and tensorstore raise many kinds
            kept = [int(each) for each in self._manager.all_steps() if each != step]
            goes_on = f"step {max(kept)}, which is kept" if kept else "the beginning"
            raise DatasetError(
                f"the checkpoint of step {step} cannot be saved in {self._directory}: "
                f"{_reason(error)}. Make room, or mend the folder: then the same command goes on "
                f"from {goes_on}"
            ) from error

    def loader_state(self, step: int) -> dict[str, Any]:
        state: dict[str, Any] = self._restore(step, loader=ocp.args.JsonRestore())["loader"]
        return state

    def state(self, step: int, like: State, model: ModelSettings) -> State:
        """Params and optimizer after `step` steps, with the shardings of `like`.

        Raises:
            StateMismatch: they belong to a model with other settings.
        """
        saved = self._restore(step, settings=ocp.args.JsonRestore())["settings"]
        given = model.model_dump()
        if changes := differences({name: saved.get(name) for name in given}, given).values():
            raise StateMismatch(
                f"the checkpoint {self._directory / str(step)} is of another model: "
                f"{'; '.join(f'model.{change}' for change in changes)}. Set it back, or give "
                "another train.output"
            )
        state: State = self._restore(step, model=ocp.args.StandardRestore(like))["model"]
        return state

    def _restore(self, step: int, **items: Any) -> Any:
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**items))
        except Exception as error:  # as above
            raise DatasetError(
                f"the checkpoint {self._directory / str(step)} cannot be read: {_reason(error)}. "
                "Restore it, or delete it to go on from an older one"
            ) from error

    def close(self) -> None:
        """End Orbax's threads."""
        self._manager.close()


@contextmanager
def _one_error() -> Iterator[None]:
    """Leave it to the caller to say what failed: Orbax and tensorstore print every traceback.

    They leave tasks and callbacks behind, which report later that their loop is closed.
    """
    hooks, level = (sys.excepthook, sys.unraisablehook), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    sys.excepthook, sys.unraisablehook = lambda *_: None, lambda _: None
    try:
        yield
    except Exception:
        logging.getLogger("asyncio").disabled = True
        hooks = _of_open_loops(hooks[0]), _of_open_loops(hooks[1])
        raise
    finally:
        sys.excepthook, sys.unraisablehook = hooks
        logging.disable(level)


def _of_open_loops(hook: Callable[..., Any]) -> Callable[..., None]:
    def report(*given: Any) -> None:
        """Of (kind, error, traceback), or of what could not be raised."""
        error = given[1] if len(given) > 1 else given[0].exc_value
        if str(error) != "Event loop is closed":
            hook(*given)

    return report


def _reason(error: BaseException) -> str:
    """What a library says, in a line: that the disk is full, if it says so anywhere."""
    said = str(error)
    for known in ("No space left on device", "File too large", "Disk quota exceeded"):
        if known in said:
            return known
    return next(iter(said.splitlines()), type(error).__name__)[:200]
