"""Conversions in processes that are killed, on a Ray cluster, or two at once.

Leases of buckets are tested where they are.
"""

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from jaxdata.base.errors import InputError, WorkerDied
from jaxdata.converter import ConversionReport, convert
from jaxdata.converter.engines import Attempt
from tests.converter.here import Here, convert_here, receipts, records, run, tree, write_lines
from tests.leftovers import held
from tests.readmes import of

pytestmark = pytest.mark.slow
UNIT_BYTES = 20_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 33 units of work in three files."""
    folder, chance = tmp_path_factory.mktemp("corpus"), random.Random(1)
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        words = ("".join(chance.choices("abcdefg \n", k=chance.randrange(400))) for _ in range(999))
        write_lines(folder / name, [*records(*words), b"bad"])
    packed = folder / "b.jsonl"
    packed.with_suffix(".jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return folder


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a conversion writes that nobody kills and nobody is beside."""
    output = tmp_path_factory.mktemp("expected") / "out"
    run(corpus, output, unit_bytes=UNIT_BYTES, minhash=True)
    return tree(output)


_MAIN = f"""
import os, sys
from pathlib import Path
from jaxdata.cli import main
from jaxdata.converter import engines, parameters
parameters.unit_bytes_for = lambda _: {UNIT_BYTES}
inner = engines.ProgressSum.advance

def advance(self, size):
    inner(self, size)
    output, units, how = os.environ.get("STOP_AFTER", "none 1 0").split()
    if len([*Path(output).glob("train/web/work/*.receipt")]) >= int(units):
        os.kill(os.getpid(), int(how))

engines.ProgressSum.advance = advance
main()
"""
INTERRUPTED = 130, "interrupted. Finished work is kept: the same command resumes\n"
OPTIONS = ["--source", "web", "--tokenizer", "bytes", "--minhash"]


def command(corpus: Path, output: Path) -> list[str]:
    """The command, with small units."""
    words = ["convert", str(corpus), "--output", str(output), *OPTIONS, "--workers", "2"]
    return [sys.executable, "-c", _MAIN, *words]


def stopped(command: list[str], output: Path, units: int, how: signal.Signals) -> tuple[int, str]:
    """Run a command, which sends itself a signal once so many units have receipts."""
    environment = {**os.environ, "STOP_AFTER": f"{output} {units} {how:d}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_a_stopped_conversion_is_finished_by_the_same_command_and_no_unit_done_twice(
    corpus: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    output = tmp_path / "out"
    words = command(corpus, output)
    assert stopped(words, output, 3, signal.SIGKILL)[0] == -signal.SIGKILL
    assert stopped(words, output, 12, signal.SIGINT) == INTERRUPTED
    assert not (output / "dataset.json").exists()
    done = {path.stem for path in receipts(output)}
    shards = {path: path.stat().st_mtime_ns for path in output.glob("train/web/*.array_record")}
    subprocess.run(words, check=True, capture_output=True)
    assert tree(output) == expected
    assert {path.stem for path, at in shards.items() if path.stat().st_mtime_ns == at} == done


@pytest.mark.parametrize("deaths", [3, 4])
def test_a_unit_is_given_to_another_worker_until_four_have_died_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, deaths: int
) -> None:
    class Dying(Here):
        def start(self, task: Any, key: Attempt) -> None:
            if task.name == "00000-00001" and key.number <= deaths:
                raise WorkerDied("the worker is gone")
            super().start(task, key)

    source = write_lines(tmp_path / "a.jsonl", records(*map(str, range(9))))
    options = {"source": "web", "tokenizer": "bytes", "unit_bytes": 40, "output": tmp_path / "out"}
    with mock.patch("tests.converter.here.Here", Dying):
        if deaths < 4:
            assert convert_here(source, **options).documents == 9
        else:
            with pytest.raises(WorkerDied) as error:
                convert_here(source, **options)
            assert str(error.value) == (
                "the worker is gone; 4 workers have died on the unit 00000-00001 (from "
                f"{source}). If memory is short, use fewer --workers. Finished work is kept: the "
                "same command resumes"
            )
    says = f"the worker is gone; the unit 00000-00001 (from {source}) is retried"
    assert caplog.messages == [says] * 3
    assert run(source, tmp_path / "out", unit_bytes=40).documents == 9


def _begin(cluster: Any, **node: Any) -> None:
    """Begin a node of Ray, up to three times: within 15 seconds it wants to have all its processes.

    For all of it Ray waits 30 seconds, here two minutes.
    """
    slow = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() / 4})
    with mock.patch("ray._private.node.time", slow):
        for tries_left in (2, 1, 0):
            before = held()
            try:
                cluster.add_node(**node)
                return
            except Exception:  # of Ray's own
                if not tries_left:
                    raise
                for left in held() - before:
                    if left.startswith("process "):
                        os.kill(int(left.split()[1].rstrip(":")), signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a core each, which the tests of a module may kill."""
    utilities = pytest.importorskip("ray.cluster_utils", reason="the extra 'ray' is not installed")
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    made = utilities.Cluster()
    _begin(made, **node, include_dashboard=False)
    _begin(made, **node)
    with mock.patch.dict(os.environ, RAY_ADDRESS=made.address):
        yield made
    made.shutdown()


def on_ray(inputs: Path, output: Path, **options: Any) -> ConversionReport:
    given = {"source": "web", "tokenizer": "bytes", "unit_bytes": UNIT_BYTES, "minhash": True}
    return convert(inputs, output=output, engine="ray", **given | options)


def test_a_node_is_killed_on_the_way(
    cluster: Any, corpus: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    (node,) = cluster.worker_nodes
    calls: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 10:
            cluster.remove_node(node, allow_graceful=False)

    on_ray(corpus, tmp_path / "out", progress=progress)
    assert tree(tmp_path / "out") == expected
    assert len(calls) > 25
    assert calls == sorted(calls)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_command_in_the_readme_is_stopped_and_finished_without_the_cluster(
    corpus: Path, tmp_path: Path, expected: dict[str, str], how: signal.Signals
) -> None:
    output, here = tmp_path / "out", command(corpus, tmp_path / "out")
    block = next(text for text in of("converter").blocks("text") if "--set engine=ray" in text)
    places = {"/shared/corpus": str(corpus), "gs://bucket/data": str(output)}
    words = [places.get(word, word) for word in block.splitlines()[-1].split()[1:]]
    words = [*here[:3], *words, "--minhash"]
    found = stopped(words, output, 5, how)
    assert receipts(output)
    assert found == INTERRUPTED or how == signal.SIGKILL
    subprocess.run(here, check=True, capture_output=True)
    assert tree(output) == expected


@pytest.mark.usefixtures("cluster")
def test_what_a_node_cannot_see_is_named(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a"))
    with pytest.raises(InputError, match=r"does not see memory://ray/train/web/.* gs://"):
        on_ray(source, "memory://ray")  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_where_no_cluster_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    source = write_lines(tmp_path / "a.jsonl", records("a"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 .*ray start"):
        on_ray(source, tmp_path / "out")
