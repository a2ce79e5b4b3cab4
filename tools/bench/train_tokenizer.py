"""Training byte-level BPE: ours, and the trainer of `tokenizers`, in seconds for 100 MB of text.

Both read the same texts of memory, split them by the same rule, and learn the same merges, which is
checked. Figures are of processor time, all threads together, and of the wall clock.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import tokenizers as library
from corpus import shared_data
from harness import Line, Report, arguments, machine, parse

from jaxdata import tokenizers
from jaxdata.converter import texts
from jaxdata.tokenizers.text_cuts import split_rule

FILES = ("wiki", "web", "books", "code-0", "code-1")


def corpus(quick: bool) -> list[str]:
    """The real texts, or a few made lines where there are none."""
    shared = shared_data()
    if shared is None or quick:
        return [f"{n} quick{n % 97} foxes jump{n % 89} over{n % 13} dogs" for n in range(9_000)]
    return [
        text for name in FILES for file in sorted(shared.glob(f"{name}.*")) for text in texts(file)
    ]


def ours(documents: list[str], folder: Path, size: int) -> list[Any]:
    """The merges that we learn."""
    tokenizers.train_byte_level(documents, folder / "trained", vocab_size=size + 1)
    merges: list[Any] = json.loads((folder / "trained/tokenizer.json").read_text())["model"][
        "merges"
    ]
    return merges


def theirs(documents: list[str], size: int) -> list[Any]:
    """The merges that the library learns."""
    parts = library.pre_tokenizers
    made = library.Tokenizer(library.models.BPE())
    split = parts.Split(library.Regex(split_rule("gpt4", 2)), "isolated")
    made.pre_tokenizer = parts.Sequence([split, parts.ByteLevel(False, use_regex=False)])
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=parts.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(iter(documents), trainer)
    merges: list[Any] = json.loads(made.to_str())["model"]["merges"]
    return merges


def timed(work: Callable[[], list[Any]]) -> tuple[list[Any], float, float]:
    """What it learns, and the seconds of the processor and of the clock."""
    begin = time.process_time(), time.perf_counter()
    merges = work()
    return merges, time.process_time() - begin[0], time.perf_counter() - begin[1]


def measure(given: argparse.Namespace) -> Report:
    """Both in turn, for each size of the vocabulary."""
    documents = corpus(given.quick)
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    report = Report("train_tokenizer", "Training byte-level BPE", "seconds for 100 MB", "less")
    report.facts = machine("tokenizers") | {"megabytes": round(megabytes, 1)}
    for size in (350,) if given.quick else (8192, 32768):
        figures: dict[str, list[float]] = {}
        ways = partial(theirs, documents, size), partial(ours, documents, given.data, size)
        for _ in range(min(given.rounds, 3)):
            found = [timed(way) for way in ways]
            assert found[0][0] == found[1][0], "the same merges"
            for name, (_, processor, wall) in zip(("library", "jaxdata"), found, strict=True):
                figures.setdefault(f"{size:,}: {name}, processor", []).append(processor)
                figures.setdefault(f"{size:,}: {name}, wall", []).append(wall)
        add(report, {name: [s * 100 / megabytes for s in all_] for name, all_ in figures.items()})
    return report


def add(report: Report, figures: dict[str, list[float]]) -> None:
    """Add lines; ours with what the library takes over what we do."""
    for name, own in figures.items():
        other = name.replace("jaxdata", "library")
        ratios = [a / b for a, b in zip(own, figures[other], strict=True)]
        report.lines.append(Line(name, own) if name == other else Line(name, own, other, ratios))


def main() -> None:
    """Train in turns."""
    given = parse(arguments(__doc__ or ""))
    measure(given).show(given.json)


if __name__ == "__main__":
    main()
