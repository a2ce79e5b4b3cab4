"""Conversions on a Ray cluster of two nodes, on this machine, that are killed on the way.

For a release: `JAXDATA_TEST_RAY_KILLS=20`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from jaxdata.converter import ConversionReport, convert
from jaxdata.errors import InputError, WorkerDied
from jaxdata.format.verify import verify
from tests.converter.ray_cluster import cluster
from tests.converter.test_convert import records, write_lines
from tests.converter.test_convert_kill import (
    UNIT_BYTES,
    command,
    corpus,
    expected,
    receipts,
    stop_after,
)
from tests.format.trees import tree
from tests.readmes import of

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("JAXDATA_TEST_RAY_KILLS", "3"))

__all__ = ["cluster", "corpus", "expected"]  # fixtures


def run(inputs: Path, output: Path, cluster: Any, **options: Any) -> ConversionReport:
    given = {"source": "web", "tokenizer": "bytes", "unit_bytes": UNIT_BYTES} | options
    given = {"minhash": True} | given
    return convert(inputs, output=output, engine="ray", ray_address=cluster.address, **given)


@pytest.mark.exhaustive
def test_workers_are_killed_again_and_again(
    cluster: Any, corpus: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    killed: list[int] = []
    enough = Event()

    def kill() -> None:
        chance = random.Random(1)
        while len(killed) < KILLS and not enough.wait(chance.uniform(0.0, 2.0)):
            while not (busy := _workers(cluster)) and not enough.wait(0.002):
                pass
            with suppress(ProcessLookupError, IndexError):
                os.kill(busy[-1], signal.SIGKILL)
                killed.append(busy[-1])

    killer = Thread(target=kill)
    killer.start()
    try:
        while len(killed) < KILLS:
            output = tmp_path / f"out-{len(killed)}"
            while not (output / "dataset.json").exists():
                with suppress(WorkerDied):  # four of one unit: the user gives the command again
                    run(corpus, output, cluster)
            assert tree(output) == expected
    finally:
        enough.set()
        killer.join()


def _workers(cluster: Any) -> list[int]:
    """Processes of the cluster that convert a unit now."""
    raylets = {n.all_processes["raylet"][0].process.pid for n in cluster.list_all_nodes()}
    found = []
    for raylet in raylets:
        for pid in _children(raylet):
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::_convert"):
                    found.append(pid)
    return found


def _children(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError):
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_a_node_is_killed_on_the_way(
    cluster: Any, corpus: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    (node,) = cluster.worker_nodes
    calls: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 20:
            cluster.remove_node(node, allow_graceful=False)

    run(corpus, tmp_path / "out", cluster, progress=progress)
    assert tree(tmp_path / "out") == expected
    assert len(calls) > 40
    assert calls == sorted(calls)
    total = sum(path.stat().st_size for path in corpus.iterdir())
    assert 0.95 * total <= calls[-1][0] <= calls[-1][1] == total


def test_the_command_in_the_readme(
    cluster: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = next(text for text in of("converter").blocks("text") if "--engine ray" in text)
    words = block.splitlines()[-1].split()
    places = {"/shared/corpus": str(corpus), "gs://bucket/data": str(tmp_path / "out")}
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    words = [places.get(word, word) for word in words[1:]]
    subprocess.run([sys.executable, "-m", "jaxdata", *words], check=True, capture_output=True)
    assert verify(tmp_path / "out").counts["documents"] == 9_000


@pytest.mark.exhaustive
def test_what_a_killed_driver_leaves_is_finished_elsewhere(
    cluster: Any, corpus: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    output = tmp_path / "out"
    words = [*command(corpus, output), "--engine", "ray", "--ray-address", cluster.address]
    driver = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while receipts(output) < 5 and driver.poll() is None:
        time.sleep(0.01)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    subprocess.run([*command(corpus, output), "--resume"], check=True, capture_output=True)
    assert tree(output) == expected


@pytest.mark.exhaustive
def test_ctrl_c_says_how_to_go_on(
    cluster: Any, corpus: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    output = tmp_path / "out"
    words = [*command(corpus, output), "--engine", "ray", "--ray-address", cluster.address]
    code, errors = stop_after(words, output, 5, signal.SIGINT)
    assert (code, errors) == (
        130,
        "interrupted. Finished work is kept: the same command resumes\n",
    )
    while _workers(cluster):  # tasks that were under way end by themselves, or are ended
        time.sleep(0.01)
    subprocess.run(words, check=True, capture_output=True)
    assert tree(output) == expected


def test_the_first_bad_record_is_named(cluster: Any, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [*records(*map(str, range(99))), b"{"])
    with pytest.raises(InputError, match=r"a\.jsonl:100: not JSON\. Fix the record, or"):
        run(source, tmp_path / "out", cluster, unit_bytes=200, on_error="fail")
    assert not (tmp_path / "out/dataset.json").exists()


def test_what_a_node_cannot_see_is_named(cluster: Any, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a"))
    with pytest.raises(InputError, match=r"does not see memory://ray/train/web/.* gs://"):
        run(source, "memory://ray", cluster)  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_where_no_cluster_answers(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    source = write_lines(tmp_path / "a.jsonl", records("a"))
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 .*ray start"):
        convert(
            source,
            output=tmp_path / "out",
            source="web",
            tokenizer="bytes",
            engine="ray",
            ray_address="127.0.0.1:1",
        )
