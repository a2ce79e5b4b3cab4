"""The folder of a run: on this machine, or in a bucket, of which this machine works in a copy."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

import jax

from jaxdata.base.errors import InputError
from jaxdata.base.threads import Threads
from jaxdata.config.train_section import BUCKETS
from jaxdata.storage import cache_root, open_store

COMPILED = "compiled"
"""folder of programs that XLA has compiled, which stay on this machine"""
_THREADS = 8


def output_path(output: str) -> Path:
    """Where a run that is kept in `output` works on this machine."""
    if not output.startswith(BUCKETS):
        return Path(output)
    return cache_root() / "runs-of-train" / hashlib.sha256(output.rstrip("/").encode()).hexdigest()


class OutputFolder:
    """A run's folder on this machine."""

    def __init__(self, output: str) -> None:
        self.path = output_path(output)

    def send(self) -> None:
        """Bring what is new to where the run is kept, after a checkpoint and at the end."""


class BucketOutput(OutputFolder):
    """A copy of a run's folder in a bucket, which holds what counts.

    Checksums of a checkpoint are sent after it, and deleted before it: a checkpoint without them
    is one that a killed process did not finish.

    Raises:
        InputError: there are several processes.
        DatasetError: the bucket refuses.
    """

    def __init__(self, output: str) -> None:
        super().__init__(output)
        if jax.process_count() > 1:
            raise InputError(
                f"train.output is {output}, of which {jax.process_count()} processes would each "
                "have a copy: give a folder that all of them see, such as a mounted bucket"
            )
        self._store = open_store(output)
        self._there = set(self._store.list())
        self._bring()

    def _bring(self) -> None:
        """Make the copy what is in the bucket, and remove checkpoints there that are not whole."""
        steps = {PurePosixPath(name).stem for name in self._there if name.startswith("checksums/")}
        unfinished = {name for name in self._there if _step(name) not in (None, *steps)}
        self._delete(unfinished)
        for path in self.path.glob("*"):
            if path.name != COMPILED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        _each(self._receive, self._there)

    def _receive(self, name: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for buffer in self._store.scan(name):
                file.write(buffer)

    def send(self) -> None:
        """See `OutputFolder`; raises DatasetError if the bucket refuses."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        here = {path.relative_to(self.path).as_posix() for path in files}
        here = {name for name in here if not name.startswith(f"{COMPILED}/")}
        new = here - self._there | {name for name in here if "/" not in name}  # the log grew
        for some in _last_first(self._there - here):
            self._delete(some)
        for some in reversed(_last_first(new)):
            _each(self._send, some)
        self._there = here

    def _send(self, name: str) -> None:
        with self._store.create(name) as file:
            shutil.copyfile(self.path / name, file)

    def _delete(self, names: set[str]) -> None:
        _each(self._store.delete, names)
        self._there -= names


def open_output(output: str) -> OutputFolder:
    """The folder of a run that is kept in `output`."""
    return (BucketOutput if output.startswith(BUCKETS) else OutputFolder)(output)


def _step(name: str) -> str | None:
    """The step that a file is of a checkpoint of."""
    parts = PurePosixPath(name).parts
    return parts[1] if parts[0] == "checkpoints" and len(parts) > 2 else None


def _last_first(names: set[str]) -> tuple[set[str], set[str]]:
    """The checksums, which are sent last and deleted first; and the other files."""
    last = {name for name in names if name.startswith("checksums/")}
    return last, names - last


def _each(do: Callable[[str], None], names: Iterable[str]) -> None:
    with Threads(_THREADS) as threads:
        threads.map(do, names)
