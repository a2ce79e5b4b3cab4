"""The documents that are compared, numbered from 0 across sources and benchmark files.

A member is a source or a file; its documents follow those of the members before it. Members that
may lose documents come first, in the order of preference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.ragged import AnyInts, Ints

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
