"""A run that is kept in a bucket: any machine resumes it, and nothing unfinished counts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxdata.base.errors import InputError
from jaxdata.train import output_folder
from jaxdata.train.output_folder import BucketOutput, open_output
from tests.storage.servers import BucketServer, bucket_server
from tests.train.test_train import command, config, dataset, environment, facts, run, steps_of

__all__ = ["config", "dataset"]

OUTPUT = "gs://runs/mine"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with bucket_server("gs") as served:
        for name, value in served.env.items():
            monkeypatch.setenv(name, value)
        yield served


def on(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, what a machine keeps is in this folder."""
    monkeypatch.setenv("JAXDATA_CACHE", str(machine))


@pytest.mark.exhaustive
def test_another_machine_goes_on_where_one_was_killed(
    server: BucketServer, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("--train.steps", "20")
    run(command(config, tmp_path / "unbroken", *steps))
    on(tmp_path / "first", monkeypatch)
    process = subprocess.Popen(
        command(config, Path("x"), *steps, "--train.output", OUTPUT),
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    while "runs/mine/checksums/8.json" not in server.names("runs/mine/"):
        assert process.poll() is None
    process.kill()
    process.wait()
    on(tmp_path / "second", monkeypatch)
    said = run(command(config, Path("x"), *steps, "--train.output", OUTPUT))
    assert "resumed after step " in said
    assert "step 20/20  loss" in said
    (log,) = tmp_path.glob("second/runs-of-train/*/log.jsonl")
    last = {record["step"]: facts(record) for record in steps_of(log.parent)}
    assert last == {each["step"]: facts(each) for each in steps_of(tmp_path / "unbroken")}
    kept = {name.split("/")[3] for name in server.names("runs/mine/checkpoints/")}
    assert kept == {"8", "16", "20"}
    assert server.read("runs/mine/log.jsonl") == log.read_bytes()


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_checkpoint_without_checksums_counts_nowhere(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(tmp_path / "first", monkeypatch)
    folder = open_output(OUTPUT)
    put(folder.path, "checkpoints/3/a", "checkpoints/3/b/c", "checksums/3.json", "log.jsonl")
    put(folder.path, "compiled/program")
    folder.send()
    server.write("runs/mine/checkpoints/6/a", b"its process was killed before it sent the others")
    on(tmp_path / "second", monkeypatch)
    again = open_output(OUTPUT)
    files = sorted(str(each.relative_to(again.path)) for each in again.path.rglob("*.*"))
    assert files == ["checksums/3.json", "log.jsonl"]
    assert (again.path / "checkpoints/3/b/c").read_text() == "checkpoints/3/b/c"
    assert not any("/6/" in name or "compiled" in name for name in server.names("runs/mine/"))
    put(again.path, "checkpoints/9/a", "compiled/program")
    open_output(OUTPUT)
    assert not (again.path / "checkpoints/9").exists(), "what a machine has left does not count"
    assert (again.path / "compiled/program").exists()


def test_checksums_come_last_and_go_first(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(tmp_path, monkeypatch)
    folder = open_output(OUTPUT)
    put(folder.path, "checkpoints/3/a", "checksums/3.json")
    folder.send()
    put(folder.path, "checkpoints/6/a", "checksums/6.json")
    for old in ("checkpoints/3/a", "checksums/3.json"):
        (folder.path / old).unlink()
    server.clear()
    folder.send()
    changed = [each.object for each in server.requests if each.method in ("POST", "PUT", "DELETE")]
    names = [name.removeprefix("runs/mine/") for name in changed if name]
    assert names.index("checksums/3.json") < names.index("checkpoints/3/a")
    assert names[-1] == "checksums/6.json"


def test_several_processes_need_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_folder.jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match="of which 2 processes would each"):
        BucketOutput(OUTPUT)
