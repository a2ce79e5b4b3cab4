"""What the benchmarks share: taking turns, and printing.

Contestants take turns in one process, round after round, so that a noisy neighbour slows all of
them alike. A figure is the median of the rounds, with the lowest and the highest; a ratio is the
median of the ratios within the rounds.
"""

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

__all__ = [
    "Contestant",
    "Line",
    "Report",
    "arguments",
    "chosen",
    "compare",
    "machine",
    "now",
    "once",
    "parse",
]

Work = Callable[[], float]
sys.path.append(str(Path(__file__).parents[2]))  # servers of buckets: tests.storage.servers
_CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
_clock = _CLOCKS["wall"]


@dataclass
class Contestant:
    """One way of doing the job.

    Args:
        name: what the table calls it.
        work: does a piece of the job and returns how much it was; or with `timed` the seconds
            that the interesting part of it took.
        against: name of the contestant it is compared with.
        note: what a reader must know of it.
        threads: it has others work for it, so that its own processor time says nothing.
    """

    name: str
    work: Work
    against: str | None = None
    note: str = ""
    threads: bool = False


@dataclass
class Line:
    """A line of a report: the figure of each round, and the ratios to the reference."""

    name: str
    figures: Sequence[float]
    against: str | None = None
    ratios: Sequence[float] = ()
    note: str = ""


@dataclass
class Report:
    """The answer to one question.

    Args:
        bench: name of the script.
        question: title of the table.
        unit: what the figures are in.
        better: "more" or "less".
        facts: what the figures depend on: sizes, versions.
    """

    bench: str
    question: str
    unit: str
    better: str = "more"
    lines: list[Line] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def add(self, name: str, *figures: float, note: str = "", **ratio: object) -> None:
        """Add a line that needed no turns."""
        self.lines.append(Line(name, figures, note=note, **ratio))  # type: ignore[arg-type]

    def show(self, as_json: bool) -> None:
        """Print it: a table for people, or a JSON object a line."""
        if as_json:
            for line in self.lines:
                print(json.dumps(self._json(line)), flush=True)
        else:
            self._table()

    def _json(self, line: Line) -> dict[str, object]:
        shown: dict[str, object] = {
            "bench": self.bench,
            "question": self.question,
            "name": line.name,
            "unit": self.unit,
            "better": self.better,
            "median": _short(median(line.figures)),
            "min": _short(min(line.figures)),
            "max": _short(max(line.figures)),
            "rounds": len(line.figures),
        }
        if line.ratios:
            shown |= {"against": line.against, "ratio": _short(median(line.ratios))}
            shown |= {"ratio_min": _short(min(line.ratios)), "ratio_max": _short(max(line.ratios))}
        if line.note:
            shown["note"] = line.note
        return shown | {"facts": self.facts}

    def _table(self) -> None:
        table = Table(title=f"{self.question} ({self.unit}; {self.better} is better)")
        ratios = any(line.ratios for line in self.lines)
        notes = any(line.note for line in self.lines)
        table.add_column("", overflow="fold")
        for heading in ("median", "min", "max"):
            table.add_column(heading, justify="right")
        if ratios:
            table.add_column("ratio", justify="right")
            table.add_column("to", overflow="fold")
        if notes:
            table.add_column("note", overflow="fold")
        for line in self.lines:
            cells = [line.name, *map(_text, (median(line.figures), *_range(line.figures)))]
            if ratios:
                cells += [_text(median(line.ratios)) if line.ratios else "", line.against or ""]
            table.add_row(*cells, *([line.note] if notes else []))
        console = Console(width=None if os.isatty(1) else 130)
        console.print(table)
        if self.facts:
            facts = ", ".join(f"{name} {value}" for name, value in self.facts.items())
            console.print(facts, style="dim", highlight=False, soft_wrap=True)


def compare(
    report: Report,
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    seconds: float,
    scale: float = 1.0,
    timed: bool = False,
) -> Report:
    """Let the contestants take turns and add a line for each.

    Args:
        report: what the lines are added to.
        contestants: who takes part; each does one uncounted piece first, in every round.
        rounds: turns of each.
        seconds: least time of a turn.
        scale: figures are multiplied by it.
        timed: `work` returns seconds of one piece: the figure is their median in the turn,
            at least one piece; else it is amounts a second.
    """
    figures: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            gc.collect()
            work = contestant.work
            clock = _CLOCKS["wall"] if contestant.threads else _clock
            figure = _median_seconds(work, seconds) if timed else _rate(work, seconds, clock)
            figures[contestant.name].append(scale * figure)
    for contestant in contestants:
        own = figures[contestant.name]
        others = figures.get(contestant.against or "", [])
        ratios = [a / b for a, b in zip(own, others, strict=False)]
        report.lines.append(Line(contestant.name, own, contestant.against, ratios, contestant.note))
    return report


def now() -> float:
    """Seconds on the clock that `--clock` chose."""
    return _clock()


def _rate(work: Work, seconds: float, clock: Callable[[], float]) -> float:
    work()
    done, begin = 0.0, clock()
    while (elapsed := clock() - begin) < seconds or not done:
        done += work()
    return done / elapsed


def _median_seconds(work: Work, seconds: float) -> float:
    taken, begin = [work()], time.perf_counter()
    while time.perf_counter() - begin < seconds:
        taken.append(work())
    return median(taken)


def once(work: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    begin = now()
    work()
    return now() - begin


def arguments(description: str) -> argparse.ArgumentParser:
    """Options that every script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a tiny corpus, a moment a turn")
    parser.add_argument("--json", action="store_true", help="a JSON object a line, no table")
    parser.add_argument("--rounds", type=int, help="turns of each contestant (7; quick: 1)")
    parser.add_argument("--seconds", type=float, help="least length of a turn (1; quick: 0.02)")
    parser.add_argument("--only", help="only contestants whose name contains this")
    parser.add_argument(
        "--clock",
        choices=tuple(_CLOCKS),
        default="wall",
        help="cpu: processor time of the one thread, for a machine with other users; what has "
        "threads or workers is always timed by the wall clock",
    )
    default = Path(tempfile.gettempdir()) / "jaxdata-bench"
    parser.add_argument("--data", type=Path, default=default, help="where corpora are kept")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line; rounds and seconds follow `--quick` where not given."""
    global _clock
    given = parser.parse_args()
    _clock = _CLOCKS[given.clock]
    given.rounds = given.rounds or (1 if given.quick else 7)
    given.seconds = given.seconds or (0.02 if given.quick else 1.0)
    return given


def chosen(contestants: Sequence[Contestant], only: str | None) -> list[Contestant]:
    """The contestants that `--only` names, with those they are compared with."""
    if not only:
        return list(contestants)
    named = [one for one in contestants if only in one.name]
    wanted = {one.name for one in named} | {one.against for one in named}
    return [one for one in contestants if one.name in wanted]


def machine(*packages: str) -> dict[str, object]:
    """The machine, and versions of the packages that are installed."""
    facts: dict[str, object] = {
        "clock": next(name for name, clock in _CLOCKS.items() if clock is _clock),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
    for package in ("jaxdata", "numpy", *packages):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "absent"
    return facts


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _range(figures: Sequence[float]) -> tuple[float, float]:
    return min(figures), max(figures)


def _short(figure: float) -> float:
    return float(f"{figure:.4g}")


def _text(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.3g}"
