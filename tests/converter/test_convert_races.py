"""Several converters into one source: one of them writes, whoever is stopped or killed.

Real processes, in a folder; leases of buckets are tested where they are.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from jaxdata.dataset.verify import verify
from tests.converter.here import receipts
from tests.converter.test_convert_kill import OPTIONS, corpus, expected
from tests.dataset.trees import tree

__all__ = ["corpus", "expected"]  # fixtures

pytestmark = pytest.mark.slow
_MAIN = """
import sys
from jaxdata.cli import main
from jaxdata.dataset import lease
lease.SECONDS = float(sys.argv.pop(1))
main()
"""


@dataclass
class Output:
    """Where conversions write to, and how it is looked at."""

    folder: Path
    corpus: Path

    def start(self, seconds: float = 60) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", _MAIN, str(seconds), "convert", str(self.corpus)]
        words += ["--output", str(self.folder), *OPTIONS, "--workers", "1"]
        return subprocess.Popen(words, stdout=-3, stderr=subprocess.PIPE, text=True)

    def wait_for(self, count: int) -> None:
        """Until there are so many receipts, or the index is being written."""
        while len(receipts(self.folder)) < count and not (self.folder / "train/web/index").exists():
            time.sleep(0.001)

    def tree(self) -> dict[str, str]:
        """The content, and a check that it is a whole dataset."""
        assert verify(self.folder).whole
        return tree(self.folder)


@pytest.fixture
def output(corpus: Path, tmp_path: Path) -> Output:
    return Output(tmp_path / "out", corpus)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How a process ended, and what it said of it."""
    _, errors = process.communicate()
    return process.returncode, errors


def test_of_two_that_start_together_one_is_told_who_the_other_is(
    expected: dict[str, str], output: Output
) -> None:
    both = [output.start() for _ in range(2)]
    found = [ended(process) for process in both]
    assert sorted(code for code, _ in found) == [0, 1]
    loser = int(found[1][0] == 1)
    says = (
        rf"error: \S+/train/web is being written by another process: process {both[1 - loser].pid} "
        "on .*convert .*Wait until it ends or stop it, then run the same"
    )
    assert re.match(says, found[loser][1]), found
    assert "cannot be written" not in found[loser][1]
    assert output.tree() == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("units", [1, 10, 10**6])
def test_one_that_was_stopped_and_wakes_does_no_damage(
    expected: dict[str, str], output: Output, units: int
) -> None:
    """Stopped on the way, or (with more receipts than there will be) while it publishes."""
    first = output.start(seconds=1)
    output.wait_for(units)
    first.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    code, errors = ended(output.start(seconds=1))
    assert code == 0, errors
    if errors:  # if the first one had not released it
        assert re.match(r"\S+/train/web is held by another process: process \d+ on", errors)
    first.send_signal(signal.SIGCONT)
    code, errors = ended(first)
    assert code == 0 or "/train/web was taken over by another process" in errors, errors
    assert output.tree() == expected
