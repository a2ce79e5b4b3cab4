"""A damaged checkpoint is named, and passed over where asked; a full disk keeps the older ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.errors import DatasetError
from jaxdata.train.whole_checkpoints import damaged_checkpoints, write_checksums
from tests.train.test_train import (
    ROOT,
    command,
    config,
    dataset,
    environment,
    run,
    steps_of,
)

__all__ = ["config", "dataset"]  # fixtures
pytestmark = pytest.mark.slow


@pytest.fixture
def begun(config: Path, tmp_path: Path) -> Path:
    """A run that was ended after 16 steps, with two checkpoints."""
    output = tmp_path / "run"
    run(command(config, output, "--train.steps=16"))
    assert {each.name for each in (output / "checkpoints").iterdir()} >= {"8", "16"}
    return output


def largest_file(folder: Path) -> Path:
    return max(
        (path for path in folder.rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )


def flipped(path: Path) -> None:
    data = np.fromfile(path, np.uint8)
    data[len(data) // 2] ^= 1
    data.tofile(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("harm", [flipped, Path.unlink])
def test_the_newest_whole_one_is_offered_and_used(config: Path, begun: Path, harm: Any) -> None:
    harmed = largest_file(begun / "checkpoints/16")
    harm(harmed)
    again = command(config, begun, "--train.steps=24")
    said = run(again, status=1)
    assert f"the checkpoint {begun / 'checkpoints/16'} is damaged: its file" in said
    assert str(harmed.relative_to(begun / "checkpoints/16")) in said
    assert "add --train.resume newest-whole to go on from step 8" in said
    said = run([*again, "--train.resume=newest-whole"])
    assert f"damaged checkpoints of steps 16 are now in {begun / 'damaged'}" in said
    assert "resumed after step 8" in said
    assert (begun / "damaged/16").is_dir()
    seen: dict[int, Any] = {}
    for record in steps_of(begun):  # steps 8 to 15 came again, as they were
        assert seen.setdefault(record["step"], record["rows"]) == record["rows"]
    assert sorted(seen) == list(range(24))


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "[" * 10**5, '{"a": {}}', '{"": ""}'])
def test_checksums_that_are_damaged_themselves(content: str, tmp_path: Path) -> None:
    """Where they name no file of the checkpoint, nothing speaks against it."""
    folder = tmp_path / "checkpoints/8"
    folder.mkdir(parents=True)
    (folder / "weights").write_text("1 2 3")
    write_checksums(folder.parent, 8)
    assert damaged_checkpoints(folder.parent, "newest") == []
    (tmp_path / "checksums/8.json").write_text(content)
    if content.startswith('{"'):
        with pytest.raises(DatasetError, match=r"is damaged: its file .* is missing"):
            damaged_checkpoints(folder.parent, "newest")
    else:
        assert damaged_checkpoints(folder.parent, "newest") == []


@pytest.mark.exhaustive
def test_none_is_whole(config: Path, begun: Path) -> None:
    for step in ("8", "16"):
        flipped(largest_file(begun / "checkpoints" / step))
    said = run([*command(config, begun), "--train.resume=newest-whole"], status=1)
    assert "is damaged" in said
    assert "give another train.output to start again" in said


@pytest.mark.exhaustive
def test_a_checkpoint_that_cannot_be_saved_ends_the_run_in_a_line(
    config: Path, begun: Path
) -> None:
    code = (
        "import resource, runpy, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000,) * 2)\n"
        f"sys.argv = sys.argv[1:]; runpy.run_path({str(ROOT / 'tools/train.py')!r}, "
        "run_name='__main__')"
    )
    words = command(config, begun, "--train.steps=32")[1:]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert "the checkpoint of step 24 cannot be saved in" in line
    assert "then the same command goes on from step 16, which is kept" in line
    assert "resumed after step 16" in run(command(config, begun, "--train.steps=32"))
