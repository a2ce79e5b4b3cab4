"""Several converters into one source: one of them writes, whoever is stopped or killed.

Real processes, in a folder and in a bucket.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jaxdata.converter import convert
from jaxdata.testing.buckets import bucket_server
from tests.converter.test_convert_kill import UNIT_BYTES, write_corpus
from tests.format.trees import tree

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("JAXDATA_TEST_SEED", "0"))
_MAIN = """
import sys
from jaxdata.cli import main
from jaxdata.format import lease
lease.SECONDS = float(sys.argv.pop(1))
main()
"""
_HELD = r"error: \S+/train/web is being written by another process: process %s on .*convert "


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 20 units of work in three files."""
    return write_corpus(tmp_path_factory.mktemp("corpus"), 600)


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a conversion writes that is alone."""
    output = tmp_path_factory.mktemp("expected") / "out"
    options = {"tokenizer": "bytes", "unit_bytes": UNIT_BYTES, "workers": 1}
    convert(corpus, output=output, source="web", **options)
    return tree(output)


@dataclass
class Output:
    """Where conversions write to, and how it is looked at."""

    url: str
    environment: dict[str, str]
    names: Callable[[], set[str]]
    copy: Callable[[Path], None]

    def start(
        self, corpus: Path, *options: str, seconds: float = 60, command: str = "convert"
    ) -> subprocess.Popen[str]:
        given = ["--output", self.url, "--source", "web", "--tokenizer", "bytes", "--workers", "1"]
        words = [sys.executable, "-c", _MAIN, str(seconds), command, str(corpus), *given]
        return subprocess.Popen(
            [*words, "--unit-bytes", str(UNIT_BYTES), *options],
            env=os.environ | self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def receipts(self) -> int:
        return sum(name.endswith(".receipt") for name in self.names())

    def tree(self, folder: Path) -> dict[str, str]:
        """The content, and a check that it is a whole dataset."""
        self.copy(folder)
        words = [sys.executable, "-m", "jaxdata", "verify", str(folder)]
        subprocess.run(words, check=True, capture_output=True)
        return tree(folder)


@pytest.fixture(params=["folder", "bucket"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Output]:
    if request.param == "folder":
        folder = tmp_path / "out"
        yield Output(
            str(folder),
            {},
            lambda: {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")},
            lambda target: folder.rename(target) and None,
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
    says = _HELD % both[1 - loser].pid + r".*Wait until it ends or stop it, then run the same"
    assert re.match(says, found[loser][1]), found
    assert "cannot be written" not in found[loser][1]
    assert output.tree(tmp_path / "copy") == expected


@pytest.mark.exhaustive
def test_other_options_at_the_same_time_are_refused(
    corpus: Path, expected: dict[str, str], output: Output, tmp_path: Path
) -> None:
    """Whoever comes when: held by the other, or made by the other with other settings."""
    chance = random.Random(SEED)
    first = output.start(corpus)
    others = []
    while not output.names():
        time.sleep(0.001)
    while first.poll() is None and len(others) < 3:
        others.append(output.start(corpus, "--min-chars", "9"))
        time.sleep(chance.uniform(0, 3))
    assert ended(first)[0] == 0
    for other in others:
        code, errors = ended(other)
        assert code == 1
        held = re.match(_HELD % first.pid, errors)
        assert held or "already has train/web with different settings" in errors, errors
    assert output.tree(tmp_path / "copy") == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("receipts", [0, 5])
def test_a_killed_one_is_followed_at_once(
    corpus: Path, expected: dict[str, str], output: Output, tmp_path: Path, receipts: int
) -> None:
    """Its workers may live a little longer; they write nothing that is not theirs to write."""
    options = [] if receipts else ["--min-chars", "9"]
    first = output.start(corpus, *options, seconds=10**6)
    while output.receipts() < receipts or not output.names():
        time.sleep(0.001)
    first.kill()
    code, errors = ended(output.start(corpus, seconds=10**6))
    assert (code, errors) == (0, "")
    first.communicate()
    assert output.tree(tmp_path / "copy") == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("receipts", [1, 10, 10**6])
def test_one_that_was_stopped_and_wakes_does_no_damage(
    corpus: Path, expected: dict[str, str], output: Output, tmp_path: Path, receipts: int
) -> None:
    """Stopped on the way, or (with more receipts than there will be) while it publishes."""
    first = output.start(corpus, seconds=1)
    while output.receipts() < receipts and not any("/index/" in one for one in output.names()):
        time.sleep(0.001)
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


@pytest.mark.exhaustive
def test_two_sources_into_a_new_dataset_at_once(
    corpus: Path, output: Output, tmp_path: Path
) -> None:
    """With other tokenizers: one of them is refused, and the files of the other's stay."""
    both = [output.start(corpus, "--source", f"s{end}", "--eod", str(end)) for end in (1, 2)]
    found = [ended(process) for process in both]
    assert sorted(code for code, _ in found) == [0, 1], found
    loser = int(found[1][0] == 1)
    assert "all sources of a dataset share one tokenizer" in found[loser][1]
    output.tree(tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy/dataset.json").read_bytes())
    assert manifest["sources"].keys() == {f"train/s{2 - loser}"}
