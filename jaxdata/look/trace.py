"""Which documents a row holds, and which rows a document is in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.loader import Loader
from jaxdata.look.origins import Origin, origin_of
from jaxdata.rows.datasets import MixedDataset
from jaxdata.rows.documents import Documents
from jaxdata.rows.table import Segments, origins, section_at

__all__ = ["Decode", "Passage", "Piece", "Tracer"]

_EXCERPT_TOKENS = 100

Decode = Callable[[Any], str]


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A range of tokens of a document."""

    source: str
    document: int
    tokens: tuple[int, int]
    """`[first, stop)`"""
    length: int
    """tokens of the document"""
    origin: Origin
    excerpt: str | None
    """how it begins; None where no tokenizer is known"""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Piece(Passage):
    """A segment of a row; its tokens are the inputs and the target of the last of them."""

    step: int | None
    """None where the row is in no step: skipped, or in a last batch that is left out"""
    row_in_batch: int | None
    row: int
    """of the run"""
    slots: tuple[int, int]
    """`[first, stop)` in the row"""
    without_loss: int
    """first slots whose targets were trained in an earlier window"""


class Tracer:
    """Explains the rows of a loader, by the batch sizes and skips of the state it was set to.

    Args:
        loader: of rows as `pack` and `mix` return them.
        decode: makes text of tokens; None where that cannot be done.
    """

    def __init__(self, loader: Loader, decode: Decode | None) -> None:
        if not isinstance(loader.rows, MixedDataset):
            raise InputError("rows can be traced as mix returns them, not transformed ones")
        self._loader, self._table, self._decode = loader, loader.rows.table, decode
        self._sources = loader.rows.sources
        self.names = self._table.names

    def documents(self, source: str) -> Documents:
        """The documents of a source by name."""
        if source not in self.names:
            raise InputError(f"no source {source!r} in this run: it has {', '.join(self.names)}")
        documents: Documents = self._sources[source].table.documents[0]
        return documents

    def seq_len(self, row: int) -> int:
        """Slots of a row of the run; an amendment may have changed them."""
        return section_at(self._table, row).seq_len

    def batch(self, step: int) -> NDArray[np.int64]:
        """The rows of the global batch of a step."""
        return self._loader.batch_rows(step)

    def rows(self, rows: Sequence[int]) -> list[Piece]:
        """All pieces of some rows of the run."""
        found = origins(self._table, self._table.segments(np.asarray(rows, np.int64)))
        first = _first_slots(found)
        return [
            self._piece(rows[int(found.row[at])], found, at, int(first[at]))
            for at in range(len(first))
        ]

    def _piece(self, row: int, found: Segments, at: int, slot: int) -> Piece:
        source = self.names[int(found.source[at])]
        start, slots = int(found.start[at]), int(found.slots[at])
        passage = self.passage(source, int(found.document[at]), start, start + slots + 1)
        step, row_in_batch = self._loader.step_of_row(row) or (None, None)
        return Piece(
            **vars(passage),
            step=step,
            row_in_batch=row_in_batch,
            row=row,
            slots=(slot, slot + slots),
            without_loss=int(found.lead[at]),
        )

    def passage(
        self, source: str, document: int, start: int = 0, stop: int | None = None
    ) -> Passage:
        """Tokens `[start, stop)` of a document, up to its end where it has fewer."""
        documents = self.documents(source)
        if not 0 <= document < len(documents):
            raise InputError(
                f"no document {source}:{document}: {source!r} has 0 to {len(documents) - 1}"
            )
        length = int(documents.lengths[document])
        stop = length if stop is None else min(stop, length)
        begin = self.tokens(source, document, start, min(stop, start + _EXCERPT_TOKENS))
        return Passage(
            source=source,
            document=document,
            tokens=(start, stop),
            length=length,
            origin=origin_of(documents, document, start),
            excerpt=None if self._decode is None else self._decode(begin),
        )

    def tokens(self, source: str, document: int, start: int, stop: int) -> NDArray[Any]:
        """Some tokens of a document."""
        documents = self.documents(source)
        one = (np.array([value]) for value in (document, start, stop - start))
        data = documents.tokens(*one).views.join()
        return np.frombuffer(data, documents.dtype.newbyteorder("<"))

    def pieces(self, source: str, document: int) -> list[Piece]:
        """Every piece of a document in the run, in the order of training."""
        rows = sorted(set(self._table.rows_with(source, document)))
        return [p for p in self.rows(rows) if (p.source, p.document) == (source, document)]


def _first_slots(found: Segments) -> NDArray[np.int64]:
    """The slot of its row at which each segment begins."""
    before = np.cumsum(found.slots) - found.slots
    return np.asarray(before - before[np.searchsorted(found.row, found.row)], np.int64)
