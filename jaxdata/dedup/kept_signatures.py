"""Hashes that a conversion kept, where they are those that a search would make of the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.converter.kept.kept_hashes import HASHING, minhash_fact
from jaxdata.dedup.settings import DedupSettings
from jaxdata.documents.base import Documents
from jaxdata.ragged import AnyInts


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
