"""Made signatures of many documents, sorted on disk and clustered: no text is hashed.

A document shares each band's hash with the others of its group with a probability of one half; a
group has a document and a quarter on average.
"""

import json
import shutil
import subprocess
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Self

import numpy as np
from far_index import SOURCE, made
from harness import Report

from jaxdata.base.hashing import mixed
from jaxdata.base.progress import Advance
from jaxdata.converter.engines import choose_engine
from jaxdata.dataset.opening import open_dataset
from jaxdata.dedup.api import drop_copies, sources_of
from jaxdata.dedup.benchmarks import NO_OVERLAPS
from jaxdata.dedup.job import Columns, DedupJob, DedupUnit, Search, Workbench
from jaxdata.dedup.members import Members
from jaxdata.dedup.minhash import EXACT, HASH_FENCES, band_section, find_clusters, signature_units
from jaxdata.dedup.settings import DedupSettings

__all__ = ["Peak", "search_here", "search_made_signatures"]

MEMORY = 2**30


class Peak:
    """The most memory that this process, and any of its children, has had; MiB.

    Looked at 20 times a second, without the pages of mapped files, which the system may take back.
    """

    own = children = 0.0

    def __enter__(self) -> Self:
        self._done = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self.own = max(self.own, _anonymous("self"))
            for task in Path("/proc/self/task").iterdir():
                with suppress(OSError):
                    for child in (task / "children").read_text().split():
                        self.children = max(self.children, _anonymous(child))


def _anonymous(process: str) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _silent(_label: str) -> AbstractContextManager[Advance]:
    return nullcontext(lambda _done, _total: None)


def job_of(folder: Path) -> DedupJob:
    """A search of the made dataset in which no pairs are compared."""
    split, source = SOURCE.split("/")
    members = sources_of(open_dataset(folder), split, [source], None)
    return DedupJob(
        str(folder), "bench", DedupSettings(threshold=0.0, prefer="first"), Members(members), 2**26
    )


def write_signatures(job: DedupJob) -> None:
    """The run and the receipt of every unit."""
    bench = Workbench(job)
    total = job.members.total
    chance = np.random.default_rng(0)
    for unit in signature_units(bench):
        write_unit(bench, unit, total, chance)


def write_unit(bench: Workbench, unit: DedupUnit, total: int, chance: np.random.Generator) -> None:
    """The run and the receipt of one."""
    count = unit.stop - unit.first
    numbers = np.arange(unit.first, unit.stop, dtype=np.uint32)
    group = chance.integers(0, max(1, 4 * total // 5), count, dtype=np.uint64)
    alone = chance.integers(0, 2**63, (2, count), dtype=np.uint64)
    sections: dict[str, Columns] = {EXACT: [alone[0], alone[1], numbers]}
    for band in range(bench.settings.bands):
        own = chance.integers(0, 2**63, count, dtype=np.uint64)
        shared = mixed(group * np.uint64(256) + np.uint64(band))
        hashes = np.where(own & np.uint64(1), own, shared)
        sections[band_section(band)] = [hashes, numbers]
    bench.write_run(unit, sections, HASH_FENCES)


def search_here(folder: Path, workers: int) -> dict[str, float]:
    """Sort and cluster what is there; seconds, and MiB of memory of each process."""
    job = job_of(folder)
    search = Search(job, choose_engine("local", workers), MEMORY, _silent)
    begin = time.perf_counter()
    with Peak() as peak:
        clusters, _ = find_clusters(search)
        dropped = drop_copies(search.bench, clusters, NO_OVERLAPS)
    return {
        "seconds": time.perf_counter() - begin,
        "parent": peak.own,
        "worker": peak.children,
        "copies": len(dropped.documents),
    }


def search_made_signatures(
    report: Report, folder: Path, documents: int, command: list[str]
) -> None:
    """Measure it in a process of its own, which a command starts."""
    shutil.rmtree(folder, ignore_errors=True)
    made(folder, documents)
    write_signatures(job_of(folder))
    size = sum(file.stat().st_size for file in folder.glob("dedup-bench/work/*.run"))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    note = (
        f"{size / 1e9:,.2f} GB of signatures, {found['copies']:,.0f} copies; MiB of the parent "
        f"{found['parent']:,.0f}, of a worker {found['worker']:,.0f}"
    )
    report.add(f"{documents:,} signatures", found["seconds"], note=note)
    shutil.rmtree(folder)
