"""The documents that are compared, numbered across sources and benchmarks, and their texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.converter.hashes import BETWEEN_SIDES, HASHING, minhash_fact
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.unfinished import UnfinishedJob
from jaxdata.dedup.settings import DedupSettings
from jaxdata.tokenizers import Tokenizer

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
    def ends(self) -> Ints:
        """(members,) the number after the last document of each."""
        return np.cumsum([member.documents for member in self.each], dtype=np.int64)

    @property
    def total(self) -> int:
        return int(self.ends[-1]) if len(self.each) else 0

    def first(self, member: int) -> int:
        """The number of a member's first document."""
        return int(self.ends[member]) - self.each[member].documents

    def places(self, numbers: AnyInts) -> tuple[Ints, Ints]:
        """The member of each document, and the document's number in it; int64.

        >>> two = Members([Member("train/a", 2, ""), Member("train/b", 3, "")])
        >>> [found.tolist() for found in two.places(np.array([0, 2, 4]))]
        [[0, 1, 1], [0, 0, 2]]
        """
        member = self.ends.searchsorted(numbers, side="right")
        starts = np.append(0, self.ends)
        return member, numbers.astype(np.int64) - starts[member]


@dataclass(frozen=True)
class KeptSignatures:
    """Those of the documents of a member.

    Attributes:
        columns: uint64 (documents of the source, n), by name; see `format.index`.
        numbers: the documents of the member, by their numbers in the source; None for all.
    """

    columns: Mapping[str, NDArray[np.uint64]]
    numbers: AnyInts | None = None

    @classmethod
    def of(cls, source: Documents, numbers: AnyInts | None, settings: DedupSettings) -> Self:
        """Those of a source that are as the settings say."""
        converted: Any = source
        index, made = converted.index, converted.entry.parameters
        if made.get("hashing") != HASHING or settings.of == "ids":
            return cls({})
        wanted = {"exact_hash": made.get("exact_hash") == settings.exact_rule}
        wanted["band_hash"] = settings.near and made.get("minhash") == minhash_of(settings)
        return cls({name: index.hashes(name) for name in index.hashed if wanted[name]}, numbers)

    def between(self, first: int, stop: int) -> dict[str, NDArray[np.uint64]]:
        """Those of documents `[first, stop)`, (stop - first, n)."""
        chosen = slice(first, stop) if self.numbers is None else self.numbers[first:stop]
        return {name: column[chosen] for name, column in self.columns.items()}

    def suffice(self, settings: DedupSettings) -> bool:
        """Whether no text is to be hashed."""
        return "exact_hash" in self.columns and ("band_hash" in self.columns or not settings.near)


def minhash_of(settings: DedupSettings) -> str:
    """The settings of MinHash, as a conversion names its own."""
    return minhash_fact(settings.of, settings.ngram, settings.bands, settings.rows)


class MemberTexts(ABC):
    """The documents of a member, by their number in it."""

    lengths: NDArray[Any]
    """How long each is, in tokens with EOD (benchmarks: in characters)."""

    @abstractmethod
    def texts(self, documents: Ints) -> list[str]: ...

    @abstractmethod
    def ids(self, documents: Ints) -> list[NDArray[Any]]:
        """Their tokens, without special ones."""

    def kept(self, settings: DedupSettings) -> KeptSignatures:  # noqa: ARG002
        """The hashes that the conversion kept, as far as the settings make these."""
        return KeptSignatures({})


def open_texts(member: Member, dataset: Dataset, unfinished: UnfinishedJob) -> MemberTexts:
    """Open a member."""
    if not member.sides:
        kept = unfinished.noted(member.table)
        return FileTexts(orjson.loads(kept or b"[]"), dataset)
    sides = [TokenTexts(open_side(dataset, side, member.view), dataset) for side in member.sides]
    return sides[0] if len(sides) == 1 else PairTexts(sides)


class Side(NamedTuple):
    """A source, and which of its documents are compared."""

    documents: Documents
    numbers: AnyInts | None
    """ascending, each once; None for all"""
    fingerprint: str


def open_side(dataset: Dataset, name: str, view: str | None) -> Side:
    """Open a source; through a view only what that keeps is compared, copies of it once.

    Raises:
        InputError: the view cuts documents, which are compared as wholes.
    """
    if view is None:
        return Side(dataset[name], None, dataset[name].fingerprint)
    split, _, source = name.partition("/")
    kept: Any = dataset.source(split, source, documents=view)
    if kept.view.cuts:
        raise InputError(
            f"documents={view!r}: this view cuts ranges out of documents of {name}, and wholes are "
            "compared; expected one that does not: mask these ranges, or cut them last"
        )
    return Side(kept.base, np.unique(kept.document), kept.fingerprint)


class TokenTexts(MemberTexts):
    """A source."""

    def __init__(self, side: Side, dataset: Dataset) -> None:
        self._documents, self._numbers, _ = side
        self._dataset = dataset

    @cached_property
    def lengths(self) -> NDArray[Any]:  # type: ignore[override]
        every = self._documents.lengths
        return every if self._numbers is None else every[self._numbers]

    def texts(self, documents: Ints) -> list[str]:
        return [self._dataset.decode(ids) for ids in self.tokens(documents)]

    def ids(self, documents: Ints) -> list[NDArray[Any]]:
        special = special_ids(self._dataset.tokenizer)
        return [ids[~np.isin(ids, special)] for ids in self.tokens(documents)]

    def kept(self, settings: DedupSettings) -> KeptSignatures:
        return KeptSignatures.of(self._documents, self._numbers, settings)

    def tokens(self, documents: Ints) -> list[NDArray[Any]]:
        """All their tokens."""
        counts = self.lengths[documents].astype(np.int64)
        of = documents if self._numbers is None else self._numbers[documents].astype(np.int64)
        found = self._documents.tokens(of, np.zeros_like(counts), counts)
        tokens = np.frombuffer(found.views.join(), self._documents.dtype.newbyteorder("<"))
        return np.split(tokens, np.cumsum(counts)[:-1])


def special_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The ids that begin, end and pad documents."""
    known = (tokenizer.eod_id, tokenizer.bos_id, tokenizer.pad_id)
    return np.array([each for each in known if each is not None], np.int64)


class PairTexts(MemberTexts):
    """Sources whose documents of a number belong together."""

    def __init__(self, sides: Sequence[TokenTexts]) -> None:
        self._sides = sides
        self.lengths = np.sum([side.lengths.astype(np.int64) for side in sides], axis=0)

    def texts(self, documents: Ints) -> list[str]:
        sides = (side.texts(documents) for side in self._sides)
        return [BETWEEN_SIDES.join(texts) for texts in zip(*sides, strict=True)]

    def ids(self, documents: Ints) -> list[NDArray[Any]]:
        sides = (side.ids(documents) for side in self._sides)
        return [np.concatenate(ids) for ids in zip(*sides, strict=True)]

    def kept(self, settings: DedupSettings) -> KeptSignatures:
        """Those of both sides are beside the first."""
        return self._sides[0].kept(settings)


class FileTexts(MemberTexts):
    """A benchmark file."""

    def __init__(self, texts: list[str], dataset: Dataset) -> None:
        self._texts, self._dataset = texts, dataset
        self.lengths = np.array([len(text) for text in texts], np.int64)

    def texts(self, documents: Ints) -> list[str]:
        return [self._texts[number] for number in documents.tolist()]

    def ids(self, documents: Ints) -> list[NDArray[Any]]:
        return self._dataset.tokenizer.encode(self.texts(documents))
