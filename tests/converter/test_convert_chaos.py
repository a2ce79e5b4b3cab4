"""SIGKILLs at random moments of a conversion, of the job, of a worker or of all of them.

For a release: `JAXDATA_TEST_KILLS=100`, which brings in the real text as well;
`JAXDATA_TEST_SEED` is another course of events.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jaxdata.format.verify import verify
from tests.converter.test_convert_kill import command, corpus
from tests.format.trees import tree

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("JAXDATA_TEST_KILLS", "5"))
SEED = int(os.environ.get("JAXDATA_TEST_SEED", "0"))

__all__ = ["corpus"]  # a fixture


@pytest.fixture(params=["made", "split", "real"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], Path]:
    """A conversion as a command, and its output."""
    output = tmp_path / "out"
    if request.param != "real":
        split = ["--split-ratio", "train=3,val=1"] if request.param == "split" else []
        return [*command(request.getfixturevalue("corpus"), output), *split], output
    if "JAXDATA_TEST_KILLS" not in os.environ:
        pytest.skip("set JAXDATA_TEST_KILLS to do it with real text")
    data = request.getfixturevalue("shared_data")
    names = ["code-0.jsonl.gz", "short.jsonl.gz", "web.parquet"]
    options = {
        "--output": output,
        "--source": "real",
        "--tokenizer": f"tiktoken:{data / 'tokenizers/tiktoken/gpt2.tiktoken'}",
        "--workers": 3,
        "--unit-bytes": 500_000,
    }
    words = [str(word) for option in options.items() for word in option]
    start = command(data, output)[:4]
    return [*start, *(str(data / name) for name in names), *words], output


@pytest.mark.exhaustive
def test_nothing_is_lost_or_twice_whoever_is_killed(job: tuple[list[str], Path]) -> None:
    words, output = job
    started = time.monotonic()
    subprocess.run(words, check=True, capture_output=True)
    seconds = time.monotonic() - started
    assert verify(output).whole
    expected = tree(output)
    chance = random.Random(SEED)
    kills = 0
    while kills < KILLS:
        _remove(output)
        finished = False
        while not finished:
            killed, finished = _run(words, chance, seconds, KILLS - kills)
            kills += killed
        assert tree(output) == expected
        assert not list(output.rglob(".tmp-*"))
        assert not list(output.rglob("work"))


def _run(words: list[str], chance: random.Random, seconds: float, kills: int) -> tuple[int, bool]:
    """Run the job once, killing at most `kills` processes of it; (how many, whether it ended)."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    killed = 0
    while killed < kills and process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.0, seconds / 2))
            break
        victims = _victims(process.pid, chance)
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        killed += 1
        if process.pid in victims:
            break
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL, 1), errors
    assert process.returncode != 1 or b"give fewer --workers" in errors, errors
    return killed, process.returncode == 0


def _victims(job: int, chance: random.Random) -> list[int]:
    """The job, one of its workers, or, as when the machine dies, all of them."""
    workers = [*_children(job)]
    one = [chance.choice(workers)] if workers else [job]
    return chance.choice([[job], one, [*workers, job]])


def _children(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError):
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _remove(folder: Path) -> None:
    """Remove a folder that a worker of a killed job may still be writing to."""
    while folder.exists():
        with suppress(OSError):
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
