"""A damaged checkpoint is named, and an older one goes on without it; a full disk keeps them.

Which of its files are compared is in the table of `test_files.py`.
"""

import json
from pathlib import Path

import pytest

from jaxdata.train.trainer import read_log
from tests import commands
from tests.builders import run
from tests.damage.harm import flip

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
MODEL = {"layers": 1, "width": 16, "heads": 2}


@pytest.fixture
def begun(tmp_path: Path) -> list[str]:
    """The command of a run that was ended after 16 steps, with two checkpoints."""
    train = {"model": MODEL, "log_every": 1, "checkpoint_every": 8, "output": str(tmp_path / "run")}
    given = {"pack": {"seq_len": 32}, "loader": {"batch_size": 4}, "train": train}
    command = ["train", str(run(tmp_path, {"web": 300}, **given)), "--train.steps"]
    commands.apart(*command, "16")
    assert {each.name for each in (tmp_path / "run/checkpoints").iterdir()} >= {"8", "16"}
    return command


def largest_file(folder: Path) -> Path:
    files = (path for path in folder.rglob("*") if path.is_file())
    return max(files, key=lambda path: path.stat().st_size)


def test_an_older_one_is_offered_and_used(begun: list[str], tmp_path: Path) -> None:
    newest = tmp_path / "run/checkpoints/16"
    flip(harmed := largest_file(newest))
    said = commands.apart(*begun, "24", status=1).stderr
    assert f"the checkpoint {newest} is damaged: its file {harmed.relative_to(newest)} " in said
    assert "move it away to go on from step 8" in said
    newest.rename(tmp_path / "aside")
    commands.apart(*begun, "24")
    seen: dict[int, object] = {}
    for record in read_log(tmp_path / "run/log.jsonl"):
        if "rows" in record:  # steps 8 to 15 came again, as they were
            assert seen.setdefault(record["step"], record["rows"]) == record["rows"]
    assert sorted(seen) == list(range(24))


def test_a_checkpoint_that_cannot_be_saved_ends_the_run_in_a_line(begun: list[str]) -> None:
    code = (
        "import resource, signal, sys\n"
        "from jaxdata.cli import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000,) * 2)\n"
        f"main({json.dumps([*begun, '32'])})"
    )
    said = commands.python("-c", code, status=1).stderr
    assert "Traceback" not in said
    line = said.strip().splitlines()[-1]
    assert "the checkpoint of step 24 cannot be saved in" in line
    assert "then the same command goes on from step 16, which is kept" in line
    done = commands.apart(*begun, "32")
    assert "resumed after step 16" in done.stdout + done.stderr
