"""A search for duplicates as its workers get it: units, what they share in a process, and on disk.

What a unit finds it sorts by a key and writes as one file, a run; then its receipt. Records whose
keys lie between two fences are one range of bytes of every run: a unit that merges a part of all
keys reads these ranges, and nothing else of other units. So sorting takes bounded memory.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base import hashing
from jaxdata.base.lazy import cached_property
from jaxdata.base.processes import report
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import AnyArray, AnyInts, Bools, Ints, even_cuts, expand
from jaxdata.converter.engines import Engine, ProgressSum, do_units
from jaxdata.dataset.lease import Lease, UnfinishedJob
from jaxdata.dataset.opening import open_dataset
from jaxdata.dedup.members import Members, MemberTexts, Numbers
from jaxdata.dedup.settings import DedupSettings
from jaxdata.storage import Store, open_store

VERSION = 2
"""Of the rules; another version finds other duplicates, and finishes no search of it."""
PARTS = 256
"""Parts of the keys that can be merged one by one."""
Columns = Sequence[AnyArray]
"""The keys, uint64, and what belongs to each."""
Sections = Mapping[str, Columns]
"""What a run has of each kind."""


def even_fences(end: int) -> hashing.Hashes:
    """`PARTS + 1` keys that cut [0, end) evenly; the last is `end`, at most 2^64 - 1."""
    return np.array([end * part // PARTS for part in range(PARTS + 1)], np.uint64)


class Section(NamedTuple):
    """Where the records of one kind lie in a run."""

    start: int
    records: int
    dtypes: list[str]
    fences: list[int]
    """the record at which each part begins"""


def encode_run(sections: Sections, fences: hashing.Hashes) -> tuple[bytes, dict[str, Section]]:
    """Sort the records of each section by their keys; the bytes of the run, and where they lie."""
    parts: list[bytes] = []
    layout = {}
    start = 0
    for name, columns in sections.items():
        order = np.argsort(columns[0], kind="stable")
        ordered = [column[order] for column in columns]
        cuts = [0, *ordered[0].searchsorted(fences[1:-1]).tolist(), len(order)]
        layout[name] = Section(start, len(order), [c.dtype.str for c in columns], cuts)
        parts += [column.tobytes() for column in ordered]
        start += sum(column.nbytes for column in columns)
    return b"".join(parts), layout


def read_part(store: Store, runs: Mapping[str, Section], first: int, stop: int) -> list[AnyArray]:
    """The records of parts `[first, stop)` of all runs, by the names of their files.

    Returns:
        Each column, end to end.
    """
    begin, end, start, size = np.array(
        [(one.fences[first], one.fences[stop], one.start, one.records) for one in runs.values()]
    ).T
    there, columns = np.flatnonzero(end > begin), []
    for dtype in map(np.dtype, next(iter(runs.values())).dtypes):
        where, until = (start + edge * dtype.itemsize for edge in (begin, end))
        ranges = store.gather([*runs], there, where[there], until[there])
        columns.append(np.frombuffer(ranges.join(), dtype))
        start = start + size * dtype.itemsize
    return columns


@dataclass(frozen=True)
class DedupUnit:
    """What one worker does at a time; its run and its receipt have its name.

    Attributes:
        size: of what it does, for the progress bar.
        where: what it reads, for messages.
        work: what does it.
        section: of the runs that it reads, or of its own.
        member: whose documents it reads.
        first: it reads documents `[first, stop)` of the member, or so many parts of the runs.
        runs: the units whose runs it reads.
    """

    name: str
    size: int
    where: str
    work: "Work"
    section: str = ""
    member: int = 0
    first: int = 0
    stop: int = 0
    runs: tuple[str, ...] = ()

    def without_data(self) -> "DedupUnit":
        return self


@dataclass(frozen=True)
class DedupJob:
    """A search, as every unit sees it; sent to each worker once.

    Attributes:
        url: the dataset.
        name: the view that it makes.
        unit_tokens: tokens of the documents of a unit, about.
        lease: the right to write what it leaves behind when it is killed.
    """

    url: str
    name: str
    settings: DedupSettings
    members: Members
    unit_tokens: int
    lease: Lease | None = None

    @property
    def folder(self) -> str:
        """Where it works: a folder of the dataset, deleted when the view is made."""
        return f"dedup-{self.name}"

    def facts(self) -> dict[str, Any]:
        """All that decides what it finds."""
        every = self.members.each
        made = {
            "version": [VERSION, hashing.VERSION],
            "unicode": hashing.UNICODE,
            "unit_tokens": self.unit_tokens,
        }
        compared = {
            "order": [member.name for member in every],
            "against": [member.name for member in every if member.against],
            "fingerprints": {member.name: member.fingerprint for member in every},
        }
        return made | self.settings.model_dump() | compared

    @property
    def overlaps(self) -> bool:
        """Whether n-grams of benchmarks are looked for."""
        return self.settings.overlap > 0 and any(member.table for member in self.members.each)


class BenchmarkNgrams:
    """The n-grams of texts of benchmarks, text after text; hashes, (n-grams,).

    Args:
        values: the hashes.
        counts: how many each text has.
        texts: the number of each.
    """

    def __init__(self, values: hashing.Hashes, counts: Ints, texts: Numbers) -> None:
        self.values, self.counts = values, counts
        self.row, _ = expand(counts)
        """(n-grams,) which text each is of, from 0"""
        self.text: Numbers = texts[self.row]
        """(n-grams,) the number of that text"""
        self.hashes, first = np.unique(values, return_index=True)
        """each once, ascending"""
        self.owners: Numbers = self.text[first]
        """the first text that has each"""


class Workbench:
    """One process's view of a job."""

    def __init__(self, job: DedupJob) -> None:
        self.job, self.settings, self.members = job, job.settings, job.members
        store = open_store(job.url)
        self.store = job.lease.fenced(store) if job.lease else store
        kind = "an unfinished search for duplicates"
        self.unfinished = UnfinishedJob(self.store, job.folder, kind, "work/search.json")
        """what it leaves behind when it is killed"""
        self.bands = hashing.Bands(self.settings.bands, self.settings.rows)
        self._layout, self._bits = cache(self._read_layout), cache(self._read_bits)

    @cached_property
    def texts(self) -> list[MemberTexts]:
        """The documents of each member."""
        dataset = open_dataset(self.job.url)
        return [MemberTexts(member, dataset, self.unfinished) for member in self.members.each]

    @cached_property
    def benchmarks(self) -> BenchmarkNgrams:
        """The n-grams of all texts of benchmarks."""
        found = []
        for which, member in enumerate(self.members.each):
            if member.table:
                own = np.arange(member.documents)
                grams = self.long_ngrams(self.content(which, own)[0])
                found.append((*grams, (own + self.members.first(which)).astype(np.uint32)))
        return BenchmarkNgrams(*map(np.concatenate, zip(*found, strict=True)))

    def looks_in(self, member: int) -> bool:
        """Whether n-grams of benchmarks are looked for in a member's documents."""
        return self.job.overlaps and not self.members.each[member].against

    def units(
        self, name: str, work: "Work", most: int, section: str = "", runs: tuple[str, ...] = ()
    ) -> list[DedupUnit]:
        """All documents in units of about `most` tokens."""
        found = []
        for number, texts in enumerate(self.texts):
            where = self.members.each[number].name
            for first, stop, size in even_cuts(texts.lengths, most):
                unit = f"{name}-{number:03d}-{first:010d}"
                found.append(DedupUnit(unit, size, where, work, section, number, first, stop, runs))
        return found

    def content(self, member: int, documents: Ints) -> tuple[hashing.Pieces, list[bytes]]:
        """Read documents of a member.

        Returns:
            What n-grams are made of, of no document where none are asked for; and each text as the
            exact rule has it.
        """
        settings, source = self.settings, self.texts[member]
        wanted = settings.near or self.job.overlaps
        if settings.of == "ids":
            ids = source.ids(documents)
            exact = [one.astype("<u4").tobytes() for one in ids]
            return hashing.id_pieces(ids if wanted else ()), exact
        texts = source.texts(documents)
        pieces = {"words": hashing.word_pieces, "bytes": hashing.byte_pieces}[settings.of]
        return pieces(texts if wanted else ()), [*map(hashing.RULES[settings.exact_rule], texts)]

    def long_ngrams(self, pieces: hashing.Pieces) -> hashing.Pieces:
        """The n-grams that documents may not share with benchmarks; of short ones none."""
        n = self.settings.overlap
        values, counts = hashing.ngrams(pieces, n)
        whole = pieces.counts >= n
        return hashing.Pieces(values[np.repeat(whole, counts)], np.where(whole, counts, 0))

    def lengths(self, numbers: AnyInts) -> Ints:
        """How long documents of any members are."""
        member, document = self.members.places(numbers)
        found = np.empty(len(numbers), np.int64)
        for each in np.unique(member).tolist():
            of = member == each
            found[of] = self.texts[each].lengths[document[of]]
        return found

    def note_bits(self, name: str, holds: Bools) -> None:
        """Keep what holds of which documents, for all units."""
        self.unfinished.note(name, np.packbits(holds).tobytes())

    def holds(self, name: str, numbers: AnyInts) -> Bools:
        """Whether it holds of documents."""
        bits = self._bits(name)[numbers >> 3] >> (7 - (numbers & 7)).astype(np.uint8)
        found: Bools = (bits & 1).astype(np.bool_)
        return found

    def _read_bits(self, name: str) -> AnyInts:
        return np.frombuffer(self.unfinished.noted(name) or b"", np.uint8)

    def write_run(self, unit: DedupUnit, sections: Sections, fences: hashing.Hashes) -> None:
        """Write what a unit found, sorted within its sections, and then its receipt."""
        data, layout = encode_run(sections, fences)
        report(1.0)
        self.store.write(self._run_file(unit.name), data)
        self.unfinished.commit(unit.name, json.dumps(layout).encode())

    def read_part(self, units: Iterable[str], section: str, first: int, stop: int) -> Columns:
        """The columns of parts `[first, stop)` of a section, of the runs of some units."""
        runs = {self._run_file(unit): self._layout(unit)[section] for unit in units}
        return read_part(self.store, runs, first, stop)

    def records(self, units: Iterable[str], section: str) -> int:
        """How many records a section has in the runs of some units."""
        return sum(self._layout(unit)[section].records for unit in units)

    def _run_file(self, unit: str) -> str:
        return f"{self.job.folder}/work/{unit}.run"

    def _read_layout(self, unit: str) -> Mapping[str, Section]:
        layout = self.unfinished.receipt(unit, json.loads)
        return {name: Section(*fields) for name, fields in layout.items()}


def worker_of(job: DedupJob) -> Callable[[DedupUnit], None]:
    """What does units of a job in this process."""
    bench = Workbench(job)
    return lambda unit: unit.work(bench, unit)


Work = Callable[[Workbench, DedupUnit], None]
Stage = Callable[[str], AbstractContextManager[Advance]]
"""Shows what is being done, as `progress_bar` does."""
_ALONE = 2
"""So few units are not worth starting processes for."""


@dataclass
class Search:
    """A job that runs.

    Args:
        job: what is searched.
        engine: where units are done.
        memory: bytes that a process takes to sort, about.
        stage: shows progress.
    """

    job: DedupJob
    engine: Engine
    memory: int
    stage: Stage
    compared: int = 0
    """pairs of documents that share a band"""
    alike: int = 0
    """those of them that are similar enough"""

    def __post_init__(self) -> None:
        self.bench = Workbench(self.job)

    def do(self, label: str, units: list[DedupUnit]) -> list[str]:
        """Do units that have no receipt; the names of all."""
        if not units:
            return []
        done = self.bench.unfinished.done()
        todo = [unit for unit in units if unit.name not in done]
        total = sum(unit.size for unit in units)
        with self.stage(label) as advance, self.bench.unfinished.writing():
            bar = ProgressSum(total, advance, done=total - sum(unit.size for unit in todo))
            if len(todo) > _ALONE:
                do_units(self.engine(self.job, worker_of), todo, bar.advance)
            else:
                for unit in todo:
                    unit.work(self.bench, unit)
                    bar.advance(unit.size)
        return [unit.name for unit in units]

    def merge(
        self, label: str, work: Work, sections: Sequence[str], runs: list[str], record_bytes: int
    ) -> list[str]:
        """Search sections of runs for equal keys, in parts that fit in memory."""
        records, read = self.bench.records(runs, sections[0]), tuple(runs)
        step = parts_together(records * record_bytes, self.memory)
        size, units = records * step, []
        for section in sections:
            for at in range(0, PARTS, step):
                name = f"{section}-{at:03d}-{step:03d}"
                unit = DedupUnit(name, size, section, work, section, 0, at, at + step, read)
                units.append(unit)
        return self.do(label, units)

    def parts(
        self, units: list[str], section: str, record_bytes: int
    ) -> Iterator[tuple[str, Columns]]:
        """The records of a section of runs, as many at a time as fit in memory, by name."""
        step = parts_together(self.bench.records(units, section) * record_bytes, self.memory)
        for number, at in enumerate(range(0, PARTS, step)):
            columns = self.bench.read_part(units, section, at, at + step)
            yield f"{section}-{step:03d}-{number:03d}", columns


def parts_together(size: int, memory: int) -> int:
    """How many of the `PARTS` of so many bytes fit in memory; a power of two.

    >>> [parts_together(size, 2**20) for size in (0, 2**20, 2**20 + 1, 2**40)]
    [256, 256, 128, 1]
    """
    wanted = max(1, -(-size // max(memory, 1)))
    return max(1, PARTS >> (wanted - 1).bit_length())
