"""A pod of real JAX processes for tests: starting them, and what each of them does.

`python -m tests.feed.pod JOB.json` is one process. It delivers batches on a mesh of all devices,
writes what its own devices hold of them below `output`, and saves its loaders with Orbax.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import jaxdata
from jaxdata.base.processes import held_port

ROOT = Path(__file__).parents[2]
SEQ_LEN = 32
SOURCES = ("web", "code", "wiki")


POOLS = {"chunk_bytes": 1_024, "block_bytes": 4_096}
PACKS: dict[str, dict[str, Any]] = {
    "best_fit": {"block_bytes": 6400},
    "one block": {},
    "lanes 8": POOLS | {"lanes": 8},
}


def mixed(dataset: str | Path, pack: str) -> Any:
    """Three sources through two phases, each source exactly twice; packed in one of `PACKS`."""
    opened = jaxdata.open_dataset(dataset)
    given = {"seq_len": SEQ_LEN, **PACKS[pack]}
    rows = {name: jaxdata.pack(opened.source("train", name), **given) for name in SOURCES}
    total, twice = 2 * sum(map(len, rows.values())), dict.fromkeys(rows, 2)
    first, later = total // 3, total - total // 3
    phases = [jaxdata.Phase(rows=first, weights={"web": 0.6, "code": 0.3, "wiki": 0.1})]
    phases += [jaxdata.Phase(rows=later, weights={"web": 0.2, "code": 0.3, "wiki": 0.5})]
    return jaxdata.mix(rows, phases=phases, epochs=twice, on_exhaustion="renormalize")


@contextmanager
def pod(job: dict[str, Any], processes: int, devices: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes of a job; those still there at the end are killed."""
    from tests.conftest import xla_flags  # the processes have no need of pytest

    output = Path(job["output"])
    output.mkdir(exist_ok=True)
    environment = {**os.environ, "XLA_FLAGS": xla_flags(devices), "JAX_PLATFORMS": "cpu"}
    given: Any = {"cwd": ROOT, "env": environment, "stderr": subprocess.STDOUT, "text": True}
    started = []
    with held_port() as port:
        for process in range(processes):
            path = output / f"job-{processes}-{process}.json"
            cluster = [f"localhost:{port}", processes, process]
            path.write_text(json.dumps({**job, "cluster": cluster}))
            command = [sys.executable, "-m", "tests.feed.pod", str(path)]
            with (output / f"said-{processes}-{process}.txt").open("w") as said:
                started.append(subprocess.Popen(command, stdout=said, **given))
        try:
            yield started
        finally:
            for one in started:
                one.kill()  # if it still runs
            for one in started:
                one.wait()


def run_pod(job: dict[str, Any], processes: int, devices: int) -> None:
    """Run a job to its end."""
    with pod(job, processes, devices) as started:
        codes = [one.wait() for one in started]
    said = [path.read_text() for path in Path(job["output"]).glob(f"said-{processes}-*.txt")]
    assert codes == [0] * processes, "\n".join(said)


def kill_pod(job: dict[str, Any], processes: int, devices: int, row: int) -> None:
    """Run a job until it delivers some batch that begins at `row` or later, then SIGKILL all.

    A pod of another number of processes may have been there before.
    """
    own = f"*@*-{processes}-*.npz"
    with pod(job, processes, devices) as started:
        while not any(first_row(path) >= row for path in Path(job["output"]).glob(own)):
            assert all(one.poll() is None for one in started), job
            time.sleep(0.01)


def first_row(path: Path) -> int:
    """The row at which the batch in a file begins: `<name>@<row>-<processes>-<process>.npz`."""
    return int(path.stem.split("@")[1].split("-")[0])


def put_together(output: Path, name: str, rows: int) -> dict[str, np.ndarray]:
    """The rows of a loader, in order, from the pieces of all processes, which have to agree."""
    whole: dict[str, np.ndarray] = {}
    for path in sorted(output.glob(f"{name}@*.npz")):
        pieces = dict(np.load(path))
        numbers = pieces.pop("numbers")
        for key, piece in pieces.items():
            array, row, column = key.split("|")
            if array not in whole:
                whole[array] = np.zeros((rows + 1000, SEQ_LEN), piece.dtype)
                whole[f"seen {array}"] = np.zeros((rows + 1000, SEQ_LEN), bool)
            height, width = piece.shape
            mine = numbers[int(row) : int(row) + height]
            part = np.ix_(mine, np.arange(int(column), int(column) + width))
            seen = whole[f"seen {array}"][part]
            assert np.array_equal(whole[array][part][seen], piece[seen]), (path, array)
            whole[array][part], whole[f"seen {array}"][part] = piece, True
    arrays = [array for array in whole if not array.startswith("seen")]
    assert all(whole[f"seen {array}"][:rows].all() for array in arrays)
    assert not any(whole[array][rows:].any() for array in arrays), "rows after the last are padding"
    return {array: whole[array][:rows] for array in arrays}


class Member:
    """One process of the pod, in its own interpreter."""

    def __init__(self, job: dict[str, Any]) -> None:
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(*job["cluster"])
        self.job, self.output = job, Path(job["output"])
        self.name = f"{job['cluster'][1]}-{job['cluster'][2]}"

    def sharding(self) -> Any:
        """Rows over all devices, or as the job says, rows and columns."""
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        devices = np.array(jax.devices()).reshape(-1, self.job.get("columns", 1))
        return NamedSharding(Mesh(devices, ("x", "y")), PartitionSpec("x", "y"))

    def loader(self, pack: str) -> jaxdata.Loader:
        rows, more = mixed(self.job["dataset"], pack), self.job.get("settings", {})
        size = self.job["batch_size"]
        return jaxdata.Loader(rows, sharding=self.sharding(), batch_size=size, **more)

    def note(self, name: str, row: int, numbers: Any, batch: Any) -> None:
        """Write what this process holds of a batch; whole or not at all."""
        pieces = {
            f"{key}|{shard.index[0].start or 0}|{shard.index[1].start or 0}": np.asarray(shard.data)
            for key, array in batch.items()
            for shard in array.addressable_shards
        }
        path = self.output / f"{name}@{row:06}-{self.name}.tmp"
        with path.open("wb") as file:
            np.savez(file, numbers=numbers, **pieces)
        path.rename(path.with_suffix(".npz"))

    def stream(self) -> None:
        """Deliver some loaders to their ends from the newest checkpoint, saving on the way."""
        import orbax.checkpoint as ocp

        loaders = {name: self.loader(name) for name in self.job["packs"]}
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        with ocp.CheckpointManager(self.job["checkpoints"], options=options) as manager:
            step = manager.latest_step() or 0
            if step:
                items = {name: jaxdata.LoaderRestore(one) for name, one in loaders.items()}
                manager.restore(step, args=ocp.args.Composite(**items))
            while True:
                step += 1
                delivered = [self.deliver(name, one) for name, one in loaders.items()]
                if not any(delivered):
                    break
                if step % self.job["save_every"] == 0:
                    items = {name: jaxdata.LoaderSave(one) for name, one in loaders.items()}
                    manager.save(step, args=ocp.args.Composite(**items))

    def deliver(self, name: str, loader: jaxdata.Loader) -> bool:
        row = loader.next_row
        if loader.step == len(loader):
            return False
        numbers = loader.batch_rows(loader.step)
        batch = next(loader)
        padding = np.arange(row + len(numbers), row + len(batch["inputs"]))
        self.note(name, row, np.append(numbers, padding), batch)
        return True

    def reweighed(self) -> None:
        """A run whose weights are changed, by calls and by a file, and at last differently."""
        import jax

        from jaxdata.base.errors import InputError
        from jaxdata.feed import steering

        steering._GRACE = 0.1
        loader = self.loader("best_fit")
        file = self.output / "weights.yaml"
        control, rows = jaxdata.WeightsFile(file if jax.process_index() == 0 else "nowhere"), []
        for step in range(9):
            self.deliver("reweighed", loader)
            if step in (1, 2, 5):
                rows.append(loader.reweigh({"web": step, "code": 2, "wiki": 0.5}))
            if step == 4 and jax.process_index() == 0:
                file.write_text("{wiki: 1}")
            if step >= 4:
                rows.append(control.follow(loader))
        state = loader.get_state()
        try:
            loader.reweigh({"web": 1 + jax.process_index()})
        except InputError as error:
            said = str(error)
        path = self.output / f"reweighed-{self.name}.json"
        path.write_text(json.dumps({"rows": rows, "state": state, "said": said}))


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    getattr(Member(given), given["task"])()
