"""What hashes cost while text is converted, and what a later search saves by them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpus import shared_data
from harness import Report

import jaxdata
from jaxdata.dedup.api import deduplicate

__all__ = ["CONVERSIONS", "SEARCHES", "compare", "tokenizer"]

Figures = dict[str, float]
_KEPT = "kept"


def tokenizer() -> str:
    """GPT-2's, or bytes where its file is not at hand."""
    shared = shared_data()
    return "bytes" if shared is None else f"tiktoken:{shared}/tokenizers/tiktoken/gpt2.tiktoken"


def _conversion(name: str, **options: Any) -> Callable[[Path], None]:
    def convert(folder: Path) -> None:
        output = folder / name
        shutil.rmtree(output, ignore_errors=True)
        made = {"output": output, "source": "all", "tokenizer": tokenizer(), "workers": 1}
        jaxdata.convert(folder / "all.jsonl", **made, **options)

    return convert


def _search(dataset: str, **options: Any) -> Callable[[Path], None]:
    def search(folder: Path) -> None:
        deduplicate(folder / dataset, "later", prefer="first", workers=1, **options)

    return search


def _exact_copies(folder: Path) -> None:
    _conversion("exact", exact_hash="whitespace")(folder)
    deduplicate(folder / "exact", "exact", near=False, workers=1)


CONVERSIONS: dict[str, Callable[[Path], None]] = {
    "convert": _conversion("plain"),
    "convert --minhash": _conversion(_KEPT, minhash=True),
    "convert --dedup exact": _exact_copies,
}
_KINDS: dict[str, dict[str, Any]] = {
    "dedup": {},
    "dedup --threshold 0": {"threshold": 0.0},
    "dedup --no-near": {"near": False},
}
SEARCHES: dict[str, Callable[[Path], None]] = {
    f"{name}{how}": _search(dataset, **options)
    for name, options in _KINDS.items()
    for how, dataset in (("", "plain"), (", hashes kept", _KEPT))
}


def compare(report: Report, measured: Callable[[str], Figures | None], rounds: int) -> None:
    """Take turns: conversions, each over the one without hashes; searches over those of text."""
    figures: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in (*CONVERSIONS, *SEARCHES):
            if found := measured(name):
                figures.setdefault(name, []).append(found["cpu"])
    for name, own in figures.items():
        against = "convert" if name in CONVERSIONS else name.partition(",")[0]
        ratios = [one / other for one, other in zip(own, figures[against], strict=True)]
        line: dict[str, Any] = {"against": against, "ratios": ratios} if name != against else {}
        report.add(name, *own, **line)
