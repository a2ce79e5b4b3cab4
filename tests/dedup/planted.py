"""Small datasets with copies in them, searched in this process."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from jaxdata.dataset.opening import ConvertedDataset, open_dataset
from jaxdata.dedup.api import DedupReport, deduplicate
from tests.commands import run
from tests.converter.here import Here, records, run_here, write_lines

QUESTION = "How many of the nineteen swans that slept by the old mill flew south before dawn today"
_WORDS = (
    *("the", "of", "and", "to", "in", "is", "was", "for", "on", "as", "with", "by", "at", "from"),
    *("his", "that", "it", "an", "were", "are"),
)


def prose(seed: int, sentences: int = 12) -> str:
    """A text unlike those of other seeds."""
    chance = random.Random(seed)
    names = ["".join(chance.choices("abcdeilmnorstu", k=6)) for _ in range(60)]
    words = ([chance.choice([*_WORDS, *names]) for _ in range(12)] for _ in range(sentences))
    return " ".join(f"{' '.join(each).capitalize()}." for each in words)


def changed(text: str, words: int, chance: random.Random) -> str:
    """A text with some words changed."""
    made = text.split()
    for _ in range(words):
        made[chance.randrange(len(made))] = f"x{chance.random()}"
    return " ".join(made)


def made(folder: Path, sources: Mapping[str, Sequence[str]], **options: Any) -> Path:
    """Convert texts to sources, `"<split>/<source>"`."""
    for name, texts in sources.items():
        split, source = name.split("/")
        lines = write_lines(folder / "raw" / f"{split}-{source}.jsonl", records(*texts))
        run_here(lines, folder / "d", source=source, split=split, **options)
    return folder / "d"


def find(dataset: Path, **options: Any) -> DedupReport:
    """Search in this process, in small units unless told."""
    given = {"name": "d1", "unit_tokens": 3_000} | options
    with mock.patch("jaxdata.dedup.api.choose_engine", return_value=Here):
        return deduplicate(dataset, **given)


def command(*words: str | Path) -> str:
    """What a command prints that searches, in this process."""
    with mock.patch("jaxdata.dedup.api.choose_engine", return_value=Here):
        return run(*words).stdout


def dropped(dataset: Path, source: str, view: str = "d1") -> dict[int, tuple[Any, ...]]:
    """Each document that a view drops: why, and who stays."""
    opened = open_dataset(dataset)
    assert isinstance(opened, ConvertedDataset)
    docs: Any = opened.source(*source.split("/", 1), documents=view)
    fates = {number: docs.view.fate(number) for number in range(len(docs.base))}
    assert {number for number, fate in fates.items() if fate is None} == set(docs.document.tolist())
    return {number: (fate.reason, *fate.survivor) for number, fate in fates.items() if fate}
