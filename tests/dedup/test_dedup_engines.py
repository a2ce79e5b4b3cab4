"""The same view whoever makes it: more workers, smaller units, less memory, kills."""

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
from tests.converter.here import records, tree, write_lines
from tests.dedup.planted import find, made, prose

KILLS = 6
CHOSEN: dict[str, Any] = {"repeats": 200, "repeats_action": "cut", "overlap_action": "cut"}
SMALL: dict[str, Any] = {"unit_tokens": 8_000, "memory": 12_000}


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
        "train/web": [changed(seed, seed % 3) for seed in range(100)],
        "train/wiki": [prose(seed, 6) for seed in range(30, 50)],
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


def test_units_and_memory_change_nothing(
    dataset: Path, against: list[str], tmp_path: Path, expected: dict[str, str]
) -> None:
    data = shutil.copytree(dataset, tmp_path / "d")
    find(data, against=against, **CHOSEN, **SMALL)
    assert tree(data) == expected
    assert verify(data).whole


def receipts(data: Path) -> int:
    return len(list(data.glob("dedup-d1/work/*.receipt")))


@pytest.mark.exhaustive
def test_searches_that_are_killed_with_their_workers_end_as_one_that_was_not(
    dataset: Path, against: list[str], tmp_path: Path, expected: dict[str, str]
) -> None:
    data, chance, kills = shutil.copytree(dataset, tmp_path / "d"), random.Random(0), 0
    given = {"against": against, "workers": 2} | CHOSEN | SMALL
    call = f"import jaxdata; jaxdata.deduplicate({str(data)!r}, 'd1', **{given!r})"
    while kills < KILLS:
        wanted = receipts(data) + chance.randrange(4)
        process = subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.DEVNULL)
        while receipts(data) < wanted and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        if process.wait() == 0:
            assert tree(data) == expected
            shutil.rmtree(data)
            shutil.copytree(dataset, data)
        kills += process.returncode == -signal.SIGKILL
    subprocess.run([sys.executable, "-c", call], check=True, capture_output=True)
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
