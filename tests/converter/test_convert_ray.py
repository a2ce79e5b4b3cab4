"""Conversions on a Ray cluster of two nodes, on this machine, that are killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jaxdata.base.errors import InputError
from jaxdata.converter import ConversionReport, convert
from tests.converter.here import receipts, records, write_lines
from tests.converter.test_convert_kill import (
    UNIT_BYTES,
    command,
    corpus,
    expected,
    stop_after,
)
from tests.dataset.trees import tree
from tests.readmes import of

pytestmark = pytest.mark.slow

__all__ = ["corpus", "expected"]  # fixtures


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a core each, which the tests of a module may kill."""
    utilities = pytest.importorskip("ray.cluster_utils", reason="the extra 'ray' is not installed")
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    made = utilities.Cluster(
        initialize_head=True, head_node_args=node | {"include_dashboard": False}
    )
    made.add_node(**node)
    with mock.patch.dict(os.environ, RAY_ADDRESS=made.address):
        yield made
    made.shutdown()


def run(inputs: Path, output: Path, **options: Any) -> ConversionReport:
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

    run(corpus, tmp_path / "out", progress=progress)
    assert tree(tmp_path / "out") == expected
    assert len(calls) > 25
    assert calls == sorted(calls)
    total = sum(path.stat().st_size for path in corpus.iterdir())
    assert 0.95 * total <= calls[-1][0] <= calls[-1][1] == total


@pytest.mark.exhaustive
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_command_in_the_readme_is_stopped_and_finished_without_the_cluster(
    corpus: Path,
    tmp_path: Path,
    expected: dict[str, str],
    how: signal.Signals,
) -> None:
    output, here = tmp_path / "out", command(corpus, tmp_path / "out")
    block = next(text for text in of("converter").blocks("text") if "--set engine=ray" in text)
    places = {"/shared/corpus": str(corpus), "gs://bucket/data": str(output)}
    words = [places.get(word, word) for word in block.splitlines()[-1].split()[1:]]
    words = [*here[:4], *words, "--minhash"]
    code, errors = stop_after(words, output, 5, how)
    assert receipts(output)
    if how == signal.SIGINT:
        assert code == 130
        assert errors == "interrupted. Finished work is kept: the same command resumes\n"
    subprocess.run(here, check=True, capture_output=True)
    assert tree(output) == expected


@pytest.mark.usefixtures("cluster")
def test_what_a_node_cannot_see_is_named(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a"))
    with pytest.raises(InputError, match=r"does not see memory://ray/train/web/.* gs://"):
        run(source, "memory://ray")  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_where_no_cluster_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    source = write_lines(tmp_path / "a.jsonl", records("a"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 .*ray start"):
        run(source, tmp_path / "out")
