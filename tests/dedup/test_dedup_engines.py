"""The same view whoever makes it: more workers, smaller units, less memory, kills, a cluster.

For a release: `JAXDATA_TEST_KILLS=50`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.verify import verify
from tests.converter.here import records, write_lines
from tests.dataset.trees import tree
from tests.dedup.planted import find, made, prose

KILLS = int(os.environ.get("JAXDATA_TEST_KILLS", "6"))
UNIT_TOKENS = 8_000
MEMORY = 4_000
REPEATS = 200
CHOSEN: dict[str, Any] = {"repeats": REPEATS, "repeats_action": "cut", "overlap_action": "cut"}


def changed(seed: int, words: int) -> str:
    """A text with some words changed."""
    chance = random.Random(seed)
    text = prose(seed % 40, 6).split()
    for _ in range(words):
        text[chance.randrange(len(text))] = f"x{chance.random()}"
    return " ".join(text)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies, also of validation, and texts with words of the benchmark `bench.jsonl`."""
    folder = tmp_path_factory.mktemp("engines")
    words = [" ".join(prose(seed, 6).split()[30:50]) for seed in (3, 44)]
    write_lines(folder / "bench.jsonl", records(*words))
    sources = {
        "train/web": [changed(seed, seed % 3) for seed in range(150)],
        "train/wiki": [prose(seed, 6) for seed in range(30, 60)],
        "val/web": [prose(seed, 6) for seed in (1, 35)],
    }
    return made(folder, sources)


@pytest.fixture(scope="module")
def against(dataset: Path) -> list[str]:
    return ["val", str(dataset.parent / "bench.jsonl")]


@pytest.fixture(scope="module")
def expected(dataset: Path, against: list[str]) -> dict[str, str]:
    """What a search that nobody disturbs writes."""
    data = shutil.copytree(dataset, dataset.parent / "expected")
    report = find(data, against=against, **CHOSEN, unit_tokens=10**9)
    cut = report.views["train/web"].account.cut
    assert {*cut} == {"13 words in a row", "repeated span"}
    return tree(data)


def command(data: Path, against: list[str], *more: str) -> list[str]:
    words = [*("dedup", str(data), "--output-name", "d1", "--against", ",".join(against))]
    for name, value in CHOSEN.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    limits = ["--set", f"unit_tokens={UNIT_TOKENS}", "--set", f"memory={MEMORY}"]
    return [sys.executable, "-m", "jaxdata", *words, *limits, "--workers", "2", *more]


def receipts(data: Path) -> int:
    return len(list(data.glob("dedup-d1/work/*.receipt")))


def killed(data: Path, against: list[str], units: int) -> int:
    """Search until so many units have receipts, then kill the search."""
    process = subprocess.Popen(
        command(data, against), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while receipts(data) < units and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    return process.wait()


def test_units_and_memory_change_nothing(
    dataset: Path, against: list[str], tmp_path: Path, expected: dict[str, str]
) -> None:
    data = shutil.copytree(dataset, tmp_path / "d")
    find(data, against=against, **CHOSEN, unit_tokens=UNIT_TOKENS, memory=MEMORY)
    assert tree(data) == expected
    assert verify(data).whole


@pytest.mark.exhaustive
def test_killed_again_and_again(
    dataset: Path, against: list[str], tmp_path: Path, expected: dict[str, str]
) -> None:
    data, chance = shutil.copytree(dataset, tmp_path / "d"), random.Random(0)
    kills = 0
    while kills < KILLS:
        before = receipts(data)
        code = killed(data, against, before + chance.randrange(4))
        if code == 0:
            assert tree(data) == expected
            shutil.rmtree(data)
            data = shutil.copytree(dataset, tmp_path / "d")
        kills += code == -signal.SIGKILL
    subprocess.run(command(data, against), check=True, capture_output=True)
    assert tree(data) == expected


def test_a_search_goes_on_with_its_own_settings_and_whole_receipts(
    dataset: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(dataset, tmp_path / "d")
    with pytest.MonkeyPatch.context() as patch:
        stop = mock.Mock(side_effect=KeyboardInterrupt)
        patch.setattr("jaxdata.dedup.minhash._connect_near", stop)
        with pytest.raises(KeyboardInterrupt):
            find(data)
    assert receipts(data)
    assert verify(data).unfinished == ()  # it is no conversion
    says = r"unfinished search for duplicates with .*ngram was 5, is 6.*start over"
    with pytest.raises(InputError, match=says):
        find(data, ngram=6)
    receipt = next(data.glob("dedup-d1/work/exact-*.receipt"))
    receipt.write_bytes(receipt.read_bytes()[:-1])
    with pytest.raises(DatasetError, match=r"exact-.*receipt is damaged.*delete it and run"):
        find(data)
    receipt.unlink()
    find(data)
    assert not (data / "dedup-d1").exists()
