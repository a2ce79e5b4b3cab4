"""Worker processes, tried as a user meets them: from scripts, with real processes."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.errors import WorkerDied
from jaxdata.processes import Worker
from jaxdata.testing import distinct_documents, write_dataset

ROWS = jaxdata.pack(jaxdata.ArrayDocuments(distinct_documents([20] * 500)), seq_len=32)


def run_script(path: Path, code: str) -> str:
    path.write_text(code)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_unguarded_script_runs_once(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"train/a": distinct_documents([20] * 100)})
    code = f"""
import jaxdata
print("once")
rows = jaxdata.pack(jaxdata.open_dataset({str(tmp_path / "d")!r}).source("train", "a"), seq_len=32)
print(len(list(jaxdata.Loader(rows, batch_size=4, num_workers=2))))
"""
    lines = run_script(tmp_path / "script.py", code).split()
    assert lines[0] == "once"
    assert len(lines) == 2
    assert int(lines[1]) > 10


def test_workers_import_neither_jax_nor_grain(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"train/a": distinct_documents([20] * 100)})
    code = f"""
import os, jaxdata
from pathlib import Path
rows = jaxdata.pack(jaxdata.open_dataset({str(tmp_path / "d")!r}).source("train", "a"), seq_len=32)
loader = jaxdata.Loader(rows, batch_size=4, num_workers=1)
next(loader)
me = os.getpid()
child = Path(f"/proc/{{me}}/task/{{me}}/children").read_text().split()[0]
maps = Path(f"/proc/{{child}}/maps").read_text()
print("numpy" in maps, "jaxlib" in maps, "grain" in maps, "tensorstore" in maps)
"""
    assert run_script(tmp_path / "script.py", code).split() == ["True", "False", "False", "False"]


def test_a_killed_worker_is_an_error_at_once() -> None:
    others = children()
    loader = jaxdata.Loader(ROWS, batch_size=4, num_workers=2)
    next(loader)
    for pid in set(children()) - set(others):
        os.kill(int(pid), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerDied, match=r"worker_stream:serve\) ended early: SIGKILL"):
        list(loader)
    assert time.monotonic() - started < 60  # an end, not a hang
    loader.close()


def held() -> dict[str, int]:
    """What this process holds that a loader could leave behind."""
    gc.collect()
    return {
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "shared memory": Path("/proc/self/maps").read_text().count("/dev/shm/"),
        "processes": len(children()),
    }


def children() -> list[str]:
    me = os.getpid()
    return Path(f"/proc/{me}/task/{me}/children").read_text().split()


KINDS: dict[str, dict[str, Any]] = {
    "made here": {"prefetch": 0},
    "made ahead": {"prefetch": 3},
    "on devices": {"prefetch": 2, "sharding": "data"},
    "row by row": {"rows": ROWS.map(dict)},
    "a worker": {"num_workers": 1, "prefetch": 0},
    "workers, made ahead": {"num_workers": 2, "prefetch": 2},
}
HOW_OFTEN = {"a worker": 10, "workers, made ahead": 10}


@pytest.mark.exhaustive
def test_a_hundred_loaders_leave_nothing_behind() -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), PartitionSpec("x"))
    made, before = 0, None
    for kind, given in KINDS.items():
        settings = {"rows": ROWS, **given}
        settings.update({"sharding": sharding} if "sharding" in given else {})
        for number in range(HOW_OFTEN.get(kind, 20)):
            loader = jaxdata.Loader(settings["rows"], batch_size=4, **without_rows(settings))
            next(loader)
            if number % 3 == 1:
                loader.seek(step=3)  # closes one stream and opens another
                next(loader)
            if number % 2:
                loader.close()
            del loader
            made += 1
            before = before or held()  # libraries open what they keep at their first use
        assert held() == before, kind
    assert made == 100


def without_rows(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "rows"}


def test_a_script_that_joins_a_pod_unguarded_may_use_workers(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"train/a": distinct_documents([20] * 100)})
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        address = f"localhost:{listener.getsockname()[1]}"
    code = f"""
import jax, jaxdata
jax.distributed.initialize({address!r}, 1, 0)
print("joined", jax.process_count())
rows = jaxdata.pack(jaxdata.open_dataset({str(tmp_path / "d")!r}).source("train", "a"), seq_len=32)
sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
loader = jaxdata.Loader(rows, batch_size=4, num_workers=2, sharding=sharding)
print(len(list(loader)) == len(loader))
loader.close()
"""
    assert run_script(tmp_path / "script.py", code).split() == ["joined", "1", "True"]


def test_an_exception_in_a_worker_is_raised_in_the_parent() -> None:
    worker = Worker("operator:truediv", 0)  # a connection divided by 0
    with pytest.raises(TypeError, match="unsupported operand"):
        worker.receive()
    worker.close()
    worker.close()


def test_a_worker_that_exits_is_named_with_its_code() -> None:
    worker = Worker(f"{__name__}:leave")
    with pytest.raises(WorkerDied, match=r"test_workers:leave\) ended early: exit code 3"):
        worker.receive()
    worker.close()


def leave(_: object) -> None:
    os._exit(3)
