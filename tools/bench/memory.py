"""How much memory does a loading process take beyond its imports, and does it grow?

Each contestant loads in a process of its own. `anonymous` is what the process has allocated;
`RSS` adds the pages it has mapped from files, `PSS` its part of those shared with other processes.
Mapped pages of shards and indexes are page cache: the system takes them back when it needs them.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from corpus import made
from harness import Line, Report, arguments, machine, parse

MEGA = 1e6
FIELDS = {"Anonymous": "anonymous", "Rss": "RSS", "Pss": "PSS"}


def usage() -> dict[str, float]:
    """What the system says of this process, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return {name: sizes[field] for field, name in FIELDS.items()}


def child(kind: str, folder: str, quick: bool, batches: int) -> None:
    """Load in this process, and print what it took."""
    from load import BATCH, crops, ours, rows_of

    corpus = made(Path(folder), quick=quick)
    before = usage()
    work = ours(rows_of(corpus)) if kind == "jaxdata" else crops(corpus.flat, BATCH)
    work()
    first = usage()
    half = [work() for _ in range(batches // 2)] and usage()
    places, seen = [], []
    for batch in range(batches - batches // 2):
        work()
        if batch % max(1, batches // 40) == 0:
            places.append(batch)
            seen.append(usage()["anonymous"])
    slope = float(np.polyfit(places, seen, 1)[0]) if len(places) > 1 else 0.0
    print(json.dumps([before, first, half, usage(), slope]))


def run(kind: str, folder: Path, quick: bool, batches: int) -> list[dict[str, float]]:
    """The child's account."""
    command = [
        sys.executable,
        __file__,
        "--child",
        kind,
        str(folder),
        str(int(quick)),
        str(batches),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Load in processes of their own, in turns."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--batches", type=int, help="batches that each loads (2,000; quick: 40)")
    given = parse(parser)
    batches = given.batches or (40 if given.quick else 2_000)
    corpus = made(given.data, quick=given.quick)
    rounds = min(given.rounds, 3)
    accounts = {
        kind: [run(kind, given.data, given.quick, batches) for _ in range(rounds)]
        for kind in ("memmap crops", "jaxdata")
    }
    facts = machine() | {"documents": corpus.documents, "batches": batches}
    report = Report("memory", "Memory beyond imports", "MB", "less", facts=facts)
    for field in FIELDS.values():
        for kind, found in accounts.items():
            for place, name in ((1, "first batch"), (3, f"{batches:,} batches")):
                figures = [(one[place][field] - one[0][field]) / MEGA for one in found]
                report.lines.append(Line(f"{kind}: {field} after {name}", figures))
    report.show(given.json)
    growth = Report("memory", "Growth in the second half", "bytes a batch", "less")
    for kind, found in accounts.items():
        growth.add(f"{kind}: anonymous", *(one[4] for one in found))  # type: ignore[misc]
    growth.show(given.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], bool(int(sys.argv[4])), int(sys.argv[5]))
    else:
        main()
