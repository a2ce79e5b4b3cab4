"""A search for duplicates as its workers get it, and the units that it is cut into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from jaxdata.dedup.members import Members
from jaxdata.dedup.settings import DedupSettings
from jaxdata.format.lease import Lease
from jaxdata.format.storage import Store, open_store
from jaxdata.format.unfinished import UnfinishedJob
from jaxdata.hashing import VERSION as HASHES
from jaxdata.hashing.characters import UNICODE

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
    unseen: ClassVar[None] = None

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

    worker: ClassVar[str] = "jaxdata.dedup.units.dedup_worker"
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
        settings = self.settings.model_dump()
        if not self.settings.repeats:  # as before there were any
            del settings["repeats"]
        defaults = {"repeats_action": "mask", "decontaminate": None, "compared_with": "cluster"}
        for name, unset in defaults.items():
            if settings[name] == unset:
                del settings[name]
        return made | settings | compared

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
