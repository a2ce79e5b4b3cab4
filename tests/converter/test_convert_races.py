"""Several converters into one source: one of them writes, whoever is stopped or killed.

Real processes, in a folder and in a bucket.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jaxdata.format.verify import verify
from jaxdata.testing.buckets import bucket_server
from tests.converter.test_convert_kill import OPTIONS, corpus, expected, whole
from tests.format.trees import tree

__all__ = ["corpus", "expected", "whole"]  # fixtures

pytestmark = pytest.mark.slow
_MAIN = """
import sys
from jaxdata.cli import main
from jaxdata.format import lease
lease.SECONDS = float(sys.argv.pop(1))
main()
"""


@dataclass
class Output:
    """Where conversions write to, and how it is looked at."""

    url: str
    environment: dict[str, str]
    names: Callable[[], set[str]]
    copy: Callable[[Path], object]

    def start(self, corpus: Path, *options: str, seconds: float = 60) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", _MAIN, str(seconds), "convert", str(corpus)]
        return subprocess.Popen(
            [*words, "--output", self.url, *OPTIONS, "--workers", "1", *options],
            env=os.environ | self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, receipts: int) -> None:
        """Until a conversion has begun and there are so many, or the index is being written."""
        names: set[str] = set()
        while not names or sum(name.endswith(".receipt") for name in names) < receipts:
            if any("/index/" in name for name in names):
                return
            time.sleep(0.001)
            names = self.names()

    def tree(self, folder: Path) -> dict[str, str]:
        """The content, and a check that it is a whole dataset."""
        self.copy(folder)
        assert verify(folder).whole
        return tree(folder)


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.exhaustive)])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Output]:
    if request.param == "folder":
        folder = tmp_path / "out"
        yield Output(
            str(folder),
            {},
            lambda: {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")},
            folder.rename,
        )
        return
    with bucket_server("gs") as server:
        below = "bucket/out/"

        def names() -> set[str]:
            return {name.removeprefix(below) for name in server.names(below)}

        def copy(target: Path) -> None:
            for name in names():
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(server.read(below + name))

        yield Output("gs://bucket/out", server.env, names, copy)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How a process ended, and what it said of it."""
    _, errors = process.communicate()
    lines = [line for line in errors.splitlines() if "google_auth_provider" not in line]
    return process.returncode, "\n".join(lines)


def test_of_two_that_start_together_one_is_told_who_the_other_is(
    corpus: Path, expected: dict[str, str], output: Output, tmp_path: Path
) -> None:
    both = [output.start(corpus) for _ in range(2)]
    found = [ended(process) for process in both]
    assert sorted(code for code, _ in found) == [0, 1]
    loser = int(found[1][0] == 1)
    says = (
        rf"error: \S+/train/web is being written by another process: process {both[1 - loser].pid} "
        "on .*convert .*Wait until it ends or stop it, then run the same"
    )
    assert re.match(says, found[loser][1]), found
    assert "cannot be written" not in found[loser][1]
    assert output.tree(tmp_path / "copy") == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("receipts", [1, 10, 10**6])
def test_one_that_was_stopped_and_wakes_does_no_damage(
    corpus: Path, expected: dict[str, str], output: Output, tmp_path: Path, receipts: int
) -> None:
    """Stopped on the way, or (with more receipts than there will be) while it publishes."""
    first = output.start(corpus, seconds=1)
    output.wait_for(receipts)
    first.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    code, errors = ended(output.start(corpus, seconds=1))
    assert code == 0, errors
    if errors:  # if the first one had not released it
        assert re.match(r"\S+/train/web is held by another process: process \d+ on", errors)
    first.send_signal(signal.SIGCONT)
    code, errors = ended(first)
    assert code == 0 or "/train/web was taken over by another process" in errors, errors
    assert output.tree(tmp_path / "copy") == expected
