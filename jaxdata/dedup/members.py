"""The documents that are compared, numbered across sources and benchmarks, and their texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import AnyArray, AnyInts, Ints
from jaxdata.converter.hashes import BETWEEN_SIDES, HASHING, minhash_fact
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.lease import UnfinishedJob
from jaxdata.dataset.opening import Dataset
from jaxdata.dedup.settings import DedupSettings

Numbers = NDArray[np.uint32]
"""Documents by their number across members."""
MOST = 2**32 - 1


@dataclass(frozen=True)
class Member:
    """One source, the sides of one source of preference pairs, or one benchmark file.

    Attributes:
        name: "train/web", or the name of the file.
        documents: how many it has.
        fingerprint: of the content.
        sides: the sources that a document is made of; none for a file.
        view: the view that it is read through.
        against: it loses no document; others lose theirs that it has, too.
        table: for a file, where the job keeps its texts.
    """

    name: str
    documents: int
    fingerprint: str
    sides: tuple[str, ...] = ()
    view: str | None = None
    against: bool = False
    table: str = ""


@dataclass(frozen=True)
class Members:
    """All of them, in order."""

    each: Sequence[Member]

    def __post_init__(self) -> None:
        if self.total > MOST:
            raise InputError(
                f"{self.total:,} documents are more than {MOST:,}, the most that are compared at a "
                "time: name fewer --sources"
            )

    @cached_property
    def starts(self) -> Ints:
        """(members + 1,) the number of the first document of each, and of all."""
        return np.cumsum([0, *(member.documents for member in self.each)], dtype=np.int64)

    @property
    def total(self) -> int:
        return int(self.starts[-1])

    def first(self, member: int) -> int:
        """The number of a member's first document."""
        return int(self.starts[member])

    def places(self, numbers: AnyInts) -> tuple[Ints, Ints]:
        """The member of each document, and the document's number in it; int64.

        >>> two = Members([Member("train/a", 2, ""), Member("train/b", 3, "")])
        >>> [found.tolist() for found in two.places(np.array([0, 2, 4]))]
        [[0, 1, 1], [0, 0, 2]]
        """
        member = self.starts[1:].searchsorted(numbers, side="right")
        return member, numbers.astype(np.int64) - self.starts[member]


class Side(NamedTuple):
    """A source, and which of its documents are compared."""

    documents: Documents
    numbers: AnyInts | None
    """ascending, each once; None for all"""
    fingerprint: str

    def in_source(self, numbers: Ints) -> Ints:
        """The numbers in the source of documents that are compared."""
        return numbers if self.numbers is None else self.numbers[numbers].astype(np.int64)

    @property
    def lengths(self) -> NDArray[Any]:
        """Tokens of each, with EOD."""
        every = self.documents.lengths
        return every if self.numbers is None else every[self.numbers]


def open_side(dataset: Dataset, name: str, view: str | None) -> Side:
    """Open a source; through a view only what that keeps is compared, copies of it once.

    Raises:
        InputError: the view cuts documents, which are compared as wholes.
    """
    if view is None:
        return Side(dataset[name], None, dataset[name].fingerprint)
    kept: Any = dataset.with_views({name: view})[name]
    if kept.view.cuts:
        raise InputError(
            f"documents={view!r}: this view cuts ranges out of documents of {name}, and wholes are "
            "compared; expected one that does not: mask these ranges, or cut them last"
        )
    return Side(kept.base, np.unique(kept.document), kept.fingerprint)


class MemberTexts:
    """The documents of a member, by their number in it."""

    def __init__(self, member: Member, dataset: Dataset, unfinished: UnfinishedJob) -> None:
        self._dataset = dataset
        self.sides = [open_side(dataset, side, member.view) for side in member.sides]
        table = unfinished.noted(member.table) if member.table else None
        rows: list[tuple[int, str]] = orjson.loads(table or b"[]")
        self._places, self._texts = [place for place, _ in rows], [text for _, text in rows]

    @cached_property
    def lengths(self) -> NDArray[Any]:
        """How long each is, in tokens with EOD (benchmarks: in characters)."""
        if len(self.sides) == 1:
            return self.sides[0].lengths
        sides = [side.lengths.astype(np.int64) for side in self.sides]
        return np.sum(sides, axis=0) if sides else np.array([*map(len, self._texts)], np.int64)

    def in_source(self, documents: Ints) -> Ints:
        """Their numbers in the source, or their places in the file."""
        if not self.sides:
            return np.array(self._places, np.int64)[documents]
        return self.sides[0].in_source(documents)

    def texts(self, documents: Ints) -> list[str]:
        """Their texts; those of the two sides of preference pairs as one."""
        if not self.sides:
            return [self._texts[number] for number in documents.tolist()]
        sides = [map(self._dataset.decode, self.tokens(documents, side)) for side in self.sides]
        return [BETWEEN_SIDES.join(texts) for texts in zip(*sides, strict=True)]

    def ids(self, documents: Ints) -> list[NDArray[Any]]:
        """Their tokens, without special ones; those of both sides as one."""
        tokenizer = self._dataset.tokenizer
        if not self.sides:
            return tokenizer.encode(self.texts(documents))
        sides = [self.tokens(documents, side) for side in self.sides]
        joined = map(np.concatenate, zip(*sides, strict=True))
        return [ids[~np.isin(ids, [*tokenizer.silent_ids])] for ids in joined]

    def tokens(self, documents: Ints, side: Side | None = None) -> list[NDArray[Any]]:
        """All their tokens, of one side; None for the first."""
        tokens, counts = self.end_to_end(documents, side)
        return np.split(tokens, np.cumsum(counts)[:-1])

    def end_to_end(self, documents: Ints, side: Side | None = None) -> tuple[AnyArray, Ints]:
        """The same end to end, and how many each of them has."""
        source = side or self.sides[0]
        return source.documents.end_to_end(source.in_source(documents))

    def kept(
        self, settings: DedupSettings, first: int = 0, stop: int = 0
    ) -> dict[str, NDArray[np.uint64]]:
        """The hashes of documents `[first, stop)` that a conversion kept and the settings ask for.

        "exact_hash" and "band_hash", uint64 (documents, n); those of both sides are beside the
        first.
        """
        if not self.sides or settings.of == "ids":
            return {}
        source: Any = self.sides[0].documents
        index, made, numbers = source.index, source.entry.parameters, self.sides[0].numbers
        minhash = minhash_fact(settings.of, settings.ngram, settings.bands, settings.rows)
        wanted = {"exact_hash": made.get("exact_hash") == settings.exact_rule}
        wanted["band_hash"] = settings.near and made.get("minhash") == minhash
        if made.get("hashing") != HASHING:
            return {}
        chosen = slice(first, stop) if numbers is None else numbers[first:stop]
        return {name: index.hashes(name)[chosen] for name in index.hashed if wanted[name]}

    def hashed(self, settings: DedupSettings) -> bool:
        """Whether no text is to be hashed."""
        kept = self.kept(settings)
        return "exact_hash" in kept and ("band_hash" in kept or not settings.near)
