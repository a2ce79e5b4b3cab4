"""Conversion of many small text files: does a file cost the same, however many there are?

Files of about 1 kB, a thousand in a folder. Listing is what happens before the first is converted:
finding them, looking at each, and naming them in the parameters. Processor time is that of all
processes, starting and publishing included.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness import Report, arguments, machine, now, parse

from jaxdata import tokenizers
from jaxdata.converter import convert
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.parameters import make_parameters

TEXT = "the quick brown fox jumps over the lazy dog " * 22


def made_files(folder: Path, count: int) -> Path:
    """A folder of so many files, made where it is not there yet."""
    files = folder / f"small-files-{count}"
    if (files / "made").exists():
        return files
    for number in range(count):
        place = files / f"{number // 1000:04}"
        if number % 1000 == 0:
            place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:07}.txt").write_text(f"{number} {TEXT}")
    (files / "made").touch()
    return files


def listing(files: Path) -> None:
    """Find the files, and gather the parameters of their conversion."""
    make_parameters(find_inputs(files), tokenizers.load("bytes"), {})


def converting(files: Path) -> None:
    """Convert into a new folder."""
    folder = Path(tempfile.mkdtemp(prefix="jaxdata-bench-"))
    try:
        convert(files, output=folder, source="web", tokenizer="bytes")
    finally:
        shutil.rmtree(folder)


def measured(work: Callable[[Path], None], files: Path) -> tuple[float, float]:
    """Seconds of the wall clock, and of all processors."""
    used, begin = sum(os.times()[:4]), now()
    work(files)
    return now() - begin, sum(os.times()[:4]) - used


def report_of(given: argparse.Namespace, counts: list[int]) -> Report:
    """Microseconds a file, for each number of files."""
    facts = machine()
    report = Report("small_files", "Text files of 1 kB", "microseconds a file", "less", facts=facts)
    for count in counts:
        files = made_files(given.data, count)
        for name, work in (("list", listing), ("convert", converting)):
            rounds = [measured(work, files) for _ in range(min(given.rounds, 3))]
            wall, processor = zip(*rounds, strict=True)
            for clock, seconds in (("wall", wall), ("processor", processor)):
                figures = [1e6 * each / count for each in seconds]
                report.add(f"{count:,} files: {name}, {clock} time", *figures)
    return report


def main() -> None:
    """Convert ever more files."""
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--files", type=int, nargs="*", help="numbers of files (1,000, 10,000, 100,000)"
    )
    given = parse(parser)
    counts = given.files or ([20, 40] if given.quick else [1_000, 10_000, 100_000])
    report_of(given, counts).show(given.json)


if __name__ == "__main__":
    main()
