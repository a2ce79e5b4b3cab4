"""A search for duplicates as its workers get it: its units, and what they share in a process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.hashing import (
    RULES,
    UNICODE,
    Bands,
    Hashes,
    Pieces,
    byte_pieces,
    exact_hashes,
    id_pieces,
    ngrams,
    word_pieces,
)
from jaxdata.base.hashing import VERSION as HASHES
from jaxdata.base.processes import Report
from jaxdata.base.ragged import AnyInts, Ints, expand
from jaxdata.dataset.lease import Lease
from jaxdata.dataset.opening import open_dataset
from jaxdata.dataset.unfinished import UnfinishedJob
from jaxdata.dedup.members import KeptSignatures, Members, MemberTexts, Numbers, open_texts
from jaxdata.dedup.settings import DedupSettings
from jaxdata.dedup.sorted_runs import Columns, Layout, decode_layout, encode_layout, encode_run
from jaxdata.storage import Store, open_store

VERSION = 2
"""Of the rules; another version finds other duplicates, and finishes no search of it."""
EXACT = "exact"
"""The section of a run with the hashes of whole texts."""
OVERLAP = "overlap"
"""The section of a run with n-grams of benchmarks."""
SAME, NEXT, OTHERS = "same", "next", "others"
"""Sections of pairs: exact copies; neighbours in a bucket by length; and those further apart."""
ALIVE = "alive.bits"
"""Which documents are not a copy of an earlier one."""
KEPT = "kept.bits"
"""Which documents are not dropped."""
SAMPLES, WINDOWS = "samples", "windows"
"""Sections of runs of spans: sampled windows of tokens, and all that are around some of these."""


def band_section(band: int) -> str:
    """The section of a run with one band's hashes."""
    return f"band-{band:03d}"


@dataclass(frozen=True)
class DedupUnit:
    """What one worker does at a time; its receipt has its name."""

    name: str
    size: int
    where: str

    def without_data(self) -> DedupUnit:
        return self


@dataclass(frozen=True)
class SignatureUnit(DedupUnit):
    """Documents `[first, stop)` of a member, to be hashed; the run has its name."""

    member: int
    first: int
    stop: int


@dataclass(frozen=True)
class CandidateUnit(DedupUnit):
    """Parts `[first, stop)` of a section of all signatures, to be searched for equal hashes."""

    section: str
    first: int
    stop: int


@dataclass(frozen=True)
class PairUnit(DedupUnit):
    """Pairs to be compared, which the job keeps under the name of the unit."""


@dataclass(frozen=True)
class SpanUnit(DedupUnit):
    """Documents `[first, stop)` of a member, whose spans of tokens are hashed for a section."""

    section: str
    member: int
    first: int
    stop: int
    runs: tuple[str, ...] = ()
    """units that found the samples that repeat, for windows"""


@dataclass(frozen=True)
class SpanPart(DedupUnit):
    """Parts `[first, stop)` of a section of `runs`, to be searched for equal hashes."""

    section: str
    first: int
    stop: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class DedupJob:
    """A search, as every unit sees it; sent to each worker once.

    Attributes:
        url: the dataset.
        name: the view that it makes.
        unit_tokens: tokens of the documents of a unit, about.
        lease: the right to write what it leaves behind when it is killed.
    """

    worker: ClassVar[str] = "jaxdata.dedup.search"
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

    def store(self) -> Store:
        """Open the dataset, to write as long as the lease is held."""
        store = open_store(self.url)
        return self.lease.fenced(store) if self.lease else store

    def unfinished(self, store: Store) -> UnfinishedJob:
        """What it leaves behind when it is killed."""
        kind = "an unfinished search for duplicates"
        return UnfinishedJob(store, self.folder, kind, parameters="work/search.json")

    def facts(self) -> dict[str, Any]:
        """All that decides what it finds."""
        every = self.members.each
        made = {"version": [VERSION, HASHES], "unicode": UNICODE, "unit_tokens": self.unit_tokens}
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

    @cached_property
    def sections(self) -> list[str]:
        """The bands of near copies."""
        return [band_section(band) for band in range(self.settings.bands * self.settings.near)]

    def signature_units(
        self, lengths: list[NDArray[Any]], most: int | None = None
    ) -> Iterator[SignatureUnit]:
        """All documents in units, given the lengths of each member's; of about `most` tokens."""
        for number, member in enumerate(self.members.each):
            ends = np.cumsum(lengths[number], dtype=np.int64)
            for first, stop in even_cuts(ends, most or self.unit_tokens):
                name = f"hashes-{number:03d}-{first:010d}"
                size = int(ends[stop - 1] - (ends[first - 1] if first else 0))
                yield SignatureUnit(name, size, member.name, number, first, stop)


def even_cuts(ends: NDArray[np.int64], size: int) -> list[tuple[int, int]]:
    """Ranges of things that end at `ends`, each of about `size`.

    >>> even_cuts(np.array([4, 5, 30, 31]), 10)
    [(0, 3), (3, 4)]
    """
    if not len(ends):
        return []
    inner = np.searchsorted(ends, np.arange(size, int(ends[-1]), size)) + 1
    cuts = np.unique(np.concatenate([[0], inner, [len(ends)]])).tolist()
    return list(pairwise(cuts))


class Content(NamedTuple):
    """What documents are compared by."""

    pieces: Pieces | None
    """None where no n-grams are asked for"""
    normalised: list[bytes]
    """as the exact rule has them"""


NO_NUMBERS: Numbers = np.empty(0, np.uint32)


class BenchmarkNgrams:
    """The n-grams of texts of benchmarks, text after text; hashes, (n-grams,).

    Args:
        values: the hashes.
        counts: how many each text has.
        texts: the number of each.
    """

    def __init__(self, values: Hashes, counts: Ints, texts: Numbers) -> None:
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
        self.store = job.store()
        self.unfinished = job.unfinished(self.store)
        self.bands = Bands(self.settings.bands, self.settings.rows)
        self._layout = lru_cache(None)(self._read_layout)

    @cached_property
    def texts(self) -> list[MemberTexts]:
        """The documents of each member."""
        dataset = open_dataset(self.job.url)
        return [open_texts(member, dataset, self.unfinished) for member in self.members.each]

    @cached_property
    def kept(self) -> list[KeptSignatures]:
        """The hashes of each member's documents that conversions kept."""
        return [texts.kept(self.settings) for texts in self.texts]

    def looks_in(self, member: int) -> bool:
        """Whether n-grams of benchmarks are looked for in a member's documents."""
        return self.job.overlaps and not self.members.each[member].against

    def reads_text(self, member: int) -> bool:
        """Whether a member's documents are to be read, to hash them."""
        return self.looks_in(member) or not self.kept[member].suffice(self.settings)

    @cached_property
    def signatures(self) -> dict[str, int]:
        """The units with signatures, and the number of the first document of each."""
        units = self.job.signature_units([texts.lengths for texts in self.texts])
        return {unit.name: self.members.first(unit.member) + unit.first for unit in units}

    def content(self, member: int, documents: Ints) -> Content:
        """Read documents of a member."""
        settings, source = self.settings, self.texts[member]
        if settings.of == "ids":
            ids = source.ids(documents)
            pieces = id_pieces(ids) if self._needs_pieces else None
            return Content(pieces, [one.astype("<u4").tobytes() for one in ids])
        texts = source.texts(documents)
        rule = RULES[settings.exact_rule]
        of = {"words": word_pieces, "bytes": byte_pieces}[settings.of]
        pieces = of(texts) if self._needs_pieces else None
        return Content(pieces, [rule(text) for text in texts])

    @property
    def _needs_pieces(self) -> bool:
        return self.settings.near or self.job.overlaps

    def ngrams(self, pieces: Pieces) -> Pieces:
        """The n-grams that near copies share."""
        return ngrams(pieces, self.settings.ngram)

    @cached_property
    def benchmark_ngrams(self) -> BenchmarkNgrams:
        """The n-grams of all texts of benchmarks."""
        values, counts, texts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], [NO_NUMBERS]
        for which, member in enumerate(self.members.each):
            if member.table:
                pieces = self.content(which, np.arange(member.documents)).pieces
                assert pieces is not None
                grams = self.long_ngrams(pieces)
                values.append(grams.values)
                counts.append(grams.counts)
                numbers = np.arange(member.documents) + self.members.first(which)
                texts.append(numbers.astype(np.uint32))
        return BenchmarkNgrams(
            np.concatenate(values), np.concatenate(counts), np.concatenate(texts)
        )

    def long_ngrams(self, pieces: Pieces) -> Pieces:
        """The n-grams that documents may not share with benchmarks; of short ones none."""
        n = self.settings.overlap
        grams = ngrams(pieces, n)
        whole = pieces.counts >= n
        kept = np.repeat(whole, grams.counts)
        return Pieces(grams.values[kept], np.where(whole, grams.counts, 0))

    def exact_hashes(self, content: Content) -> Hashes:
        """uint64 (documents, 2)."""
        return exact_hashes(content.normalised)

    def lengths(self, numbers: AnyInts) -> Ints:
        """How long documents of any members are."""
        member, document = self.members.places(numbers)
        found = np.empty(len(numbers), np.int64)
        for each in np.unique(member).tolist():
            of = member == each
            found[of] = self.texts[each].lengths[document[of]]
        return found

    def alive(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Whether documents are no exact copy of an earlier one."""
        bits = self._alive[numbers >> 3] >> (7 - (numbers & 7)).astype(np.uint8)
        found: NDArray[np.bool_] = (bits & 1).astype(bool)
        return found

    @cached_property
    def _alive(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.unfinished.noted(ALIVE) or b"", np.uint8)

    def runs(self, units: Iterable[str]) -> dict[str, Layout]:
        """The runs that units have written, by the names of their files."""
        return {self.run_file(unit): self._layout(unit) for unit in units}

    def write_run(
        self, unit: DedupUnit, sections: Mapping[str, Columns], fences: Hashes, report: Report
    ) -> None:
        """Write what a unit found, sorted within its sections, and then its receipt."""
        data, layout = encode_run(sections, fences)
        report(1.0)
        self.store.write(self.run_file(unit.name), data)
        self.unfinished.commit(unit.name, encode_layout(layout))

    def run_file(self, unit: str) -> str:
        """Where a unit writes its run."""
        return f"{self.job.folder}/work/{unit}.run"

    def _read_layout(self, unit: str) -> dict[str, Any]:
        return self.unfinished.receipt(unit, decode_layout)
