"""Many small files: the work for each does not grow with their number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.converter.here import run_here

FEW, MANY = 200, 800


def calls(work: Callable[[], Any]) -> int:
    """How many functions are called meanwhile; a step of a generator is a call."""
    count = 0

    def called(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def corpus(folder: Path, count: int) -> Path:
    for number in range(count):
        place = folder / f"{number % 7}" / f"{number:04}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"text {number}")
    return folder


@pytest.mark.parametrize("unit_bytes", [2**22, 200])
def test_four_times_the_files_are_four_times_the_work(tmp_path: Path, unit_bytes: int) -> None:
    run_here(corpus(tmp_path / "first", 1), tmp_path / "out")  # imports what is needed
    for what in ("convert", "finished", "append"):
        work = []
        for count in (FEW, MANY):
            inputs = tmp_path / f"{count}"
            if what == "append":
                corpus(inputs / "more", count)
            else:
                corpus(inputs / "some", count)
            options = {"append": what == "append", "unit_bytes": unit_bytes}
            output = tmp_path / f"out-{count}"
            work.append(calls(lambda: run_here(inputs, output, **options)))  # noqa: B023
        few, many = work
        assert many <= MANY / FEW * few, f"{what}: {few:,} calls for {FEW}, {many:,} for {MANY}"
