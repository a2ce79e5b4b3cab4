"""The text of members: tokens on disk decoded, and benchmark files read once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from jaxdata.converter.kept.document_hashes import BETWEEN_SIDES
from jaxdata.dedup.kept_signatures import KeptSignatures
from jaxdata.dedup.members import Member
from jaxdata.dedup.settings import DedupSettings
from jaxdata.documents.base import Documents
from jaxdata.documents.dataset import Dataset
from jaxdata.errors import InputError
from jaxdata.format.unfinished import UnfinishedJob
from jaxdata.ragged import AnyInts, Ints
from jaxdata.tokenizers import Tokenizer


class MemberTexts(Protocol):
    """The documents of a member, by their number in it."""

    @property
    def lengths(self) -> NDArray[Any]:
        """How long each is, in tokens with EOD (benchmarks: in characters)."""
        ...

    def texts(self, documents: Ints) -> list[str]: ...

    def ids(self, documents: Ints) -> list[NDArray[Any]]:
        """Their tokens, without special ones."""
        ...

    def kept(self, settings: DedupSettings) -> KeptSignatures:
        """The hashes that the conversion kept, as far as the settings make these."""
        ...


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


class TokenTexts:
    """See `MemberTexts`; a source."""

    def __init__(self, side: Side, dataset: Dataset) -> None:
        self._documents, self._numbers, _ = side
        self._dataset = dataset
        self._special: NDArray[Any] | None = None

    @cached_property
    def lengths(self) -> NDArray[Any]:
        every = self._documents.lengths
        return every if self._numbers is None else every[self._numbers]

    def texts(self, documents: Ints) -> list[str]:
        return [self._dataset.decode(ids) for ids in self._read(documents)]

    def ids(self, documents: Ints) -> list[NDArray[Any]]:
        special = self._special_ids()
        return [ids[~np.isin(ids, special)] for ids in self._read(documents)]

    def tokens(self, documents: Ints) -> list[NDArray[Any]]:
        """All their tokens."""
        return self._read(documents)

    def kept(self, settings: DedupSettings) -> KeptSignatures:
        return KeptSignatures.of(self._documents, self._numbers, settings)

    def _special_ids(self) -> NDArray[Any]:
        if self._special is None:
            self._special = special_ids(self._dataset.tokenizer)
        return self._special

    def _read(self, documents: Ints) -> list[NDArray[Any]]:
        counts = self.lengths[documents].astype(np.int64)
        of = documents if self._numbers is None else self._numbers[documents].astype(np.int64)
        found = self._documents.tokens(of, np.zeros_like(counts), counts)
        tokens = np.frombuffer(found.views.join(), self._documents.dtype.newbyteorder("<"))
        return np.split(tokens, np.cumsum(counts)[:-1])


def special_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The ids that begin, end and pad documents."""
    known = (tokenizer.eod_id, tokenizer.bos_id, tokenizer.pad_id)
    return np.array([each for each in known if each is not None], np.int64)


class PairTexts:
    """See `MemberTexts`; sources whose documents of a number belong together."""

    def __init__(self, sides: Sequence[TokenTexts]) -> None:
        self._sides = sides

    @property
    def lengths(self) -> NDArray[Any]:
        lengths = [side.lengths.astype(np.int64) for side in self._sides]
        return lengths[0] + sum(lengths[1:])

    def texts(self, documents: Ints) -> list[str]:
        sides = (side.texts(documents) for side in self._sides)
        return [BETWEEN_SIDES.join(texts) for texts in zip(*sides, strict=True)]

    def ids(self, documents: Ints) -> list[NDArray[Any]]:
        sides = (side.ids(documents) for side in self._sides)
        return [np.concatenate(ids) for ids in zip(*sides, strict=True)]

    def kept(self, settings: DedupSettings) -> KeptSignatures:
        """Those of both sides are beside the first."""
        return self._sides[0].kept(settings)


class FileTexts:
    """See `MemberTexts`; a benchmark file."""

    def __init__(self, texts: list[str], dataset: Dataset) -> None:
        self._texts, self._dataset = texts, dataset
        self.lengths = np.array([len(text) for text in texts], np.int64)

    def texts(self, documents: Ints) -> list[str]:
        return [self._texts[number] for number in documents.tolist()]

    def ids(self, documents: Ints) -> list[NDArray[Any]]:
        return self._dataset.tokenizer.encode(self.texts(documents))

    def kept(self, settings: DedupSettings) -> KeptSignatures:  # noqa: ARG002
        return KeptSignatures({})
