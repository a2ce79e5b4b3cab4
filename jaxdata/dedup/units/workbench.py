"""What units of a search share in a process: the dataset, opened, and how texts are hashed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.dedup.kept_signatures import KeptSignatures
from jaxdata.dedup.member_texts import MemberTexts, open_texts
from jaxdata.dedup.members import Numbers
from jaxdata.dedup.units.dedup_job import ALIVE, DedupJob
from jaxdata.dedup.units.sorted_runs import Layout, decode_layout
from jaxdata.documents.converted_dataset import open_dataset
from jaxdata.hashing.exact_hashes import RULES, exact_hashes
from jaxdata.hashing.minhash import Bands
from jaxdata.hashing.ngrams import (
    Hashes,
    Pieces,
    byte_pieces,
    id_pieces,
    ngrams,
    word_pieces,
)
from jaxdata.ragged import AnyInts, Ints, expand


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

    def run_file(self, unit: str) -> str:
        """Where a unit writes its run."""
        return f"{self.job.folder}/work/{unit}.run"

    def _read_layout(self, unit: str) -> dict[str, Any]:
        return self.unfinished.receipt(unit, decode_layout)
