"""The demo: its corpus, its proof, its folder, and all of it in a small form."""

import io
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jaxdata.base.errors import InputError, JaxdataError
from jaxdata.config import Config, load, load_config
from jaxdata.train import demo as runs
from jaxdata.train.demo import QUICK, Demo, prove_rows
from jaxdata.train.devices import batch_digest
from tests import builders, commands


@pytest.fixture
def config(tmp_path: Path) -> Config:
    given: Any = {"loader": {"batch_size": 4}, "train": {"steps": 10}}
    return load_config(builders.run(tmp_path, {"a": 60}, pack={"seq_len": 32}, **given))


def test_the_proof_counts_rows_and_fails_where_one_differs(config: Config, tmp_path: Path) -> None:
    digests = [batch_digest(batch) for batch in islice(load(config), 10)]
    records = [{"step": step, "loss": 1.0, "rows": rows} for step, rows in enumerate(digests)]

    def proof_of(*more: dict[str, object], hosts: int = 2) -> str:
        log = tmp_path / "log.jsonl"
        log.write_text("".join(json.dumps(record) + "\n" for record in ({}, *more)))
        return prove_rows(config, log, hosts=hosts)

    says = f"{13 * 4} rows compared: not one differs (3 steps were trained twice)"
    assert all(proof_of(*records[:7], *records[4:], hosts=n) == says for n in (1, 2, 4))
    wrong = {**records[5], "rows": digests[4]}
    for made, says in (
        ([*records, wrong], r"1 have other rows than 2 hosts make .*\[5\]"),
        (records[:9], r"1 are not in the log \(first: \[9\]\)"),
    ):
        with pytest.raises(JaxdataError, match=says):
            proof_of(*made)


def test_the_demo_empties_only_its_own_folder(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("not to be lost")
    with pytest.raises(InputError, match="was not made by a demo: give another folder with"):
        Demo(mine, QUICK, Console(file=io.StringIO())).run()
    assert (mine / "thesis.txt").exists()


@pytest.mark.parametrize("resolves", [True, False])
def test_hosts_on_one_machine_leave_its_gpu_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resolves: bool
) -> None:
    """Two processes that take the same GPU fail; a GPU is not several devices either."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$JAX_PLATFORMS" "$XLA_FLAGS"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(runs, "_name_resolves", lambda: resolves)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    said: list[str] = []
    runs.train_on_hosts(["demo"], 2, said.append)
    devices = "" if resolves else " --xla_force_host_platform_device_count=2"
    assert said[-1] == f"cpu --mine{devices}"


@pytest.mark.exhaustive
def test_the_whole_demo(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    output.mkdir()
    (output / ".jaxdata-demo").touch()
    (output / "of-an-earlier-demo").touch()
    said = commands.apart("demo", "--quick", "--output", output).stdout
    assert "\x1b" not in said, "plain when piped"
    assert "rows compared: not one differs" in said
    assert "resumed after step 10" in said
    assert "jaxdata convert my.jsonl" in said
    assert not (output / "of-an-earlier-demo").exists()
