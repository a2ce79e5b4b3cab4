"""Tracing: the documents in a row, and the rows of a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Documents
from jaxdata.documents.kept import KeptDocuments, base_of
from jaxdata.errors import InputError
from jaxdata.feed.loader import Loader
from jaxdata.look.origins import Origin, origin_of
from jaxdata.map_datasets.underlying import row_table
from jaxdata.rows.reading import ranges_to_read
from jaxdata.rows.table import Segments

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
    """its beginning as text; None if no tokenizer is known"""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Piece(Passage):
    """A segment of a row; its tokens are its inputs and its last target."""

    step: int | None
    """None if the row is in no step: skipped, or in a dropped last batch"""
    row_in_batch: int | None
    row: int
    """of the run"""
    slots: tuple[int, int]
    """`[first, stop)` in the row"""
    without_loss: int
    """masked context: first slots whose targets were trained in the previous window"""


class Tracer:
    """Explains the rows of a loader, as `pack` and `mix` return them, by its sizes and skips."""

    def __init__(self, loader: Loader, decode: Decode | None) -> None:
        table = row_table(loader.rows)
        if table is None or not table.sources:
            raise InputError("only rows as pack and mix return them can be traced")
        self._loader, self._table, self._decode = loader, table, decode
        self.names = table.names

    def documents(self, source: str) -> Documents:
        """All documents of a source; passages and pieces have their numbers."""
        return base_of(self.read(source))

    def read(self, source: str) -> Documents:
        """The documents of a source that the run reads: those of a view, where it names one."""
        if source not in self.names:
            raise InputError(f"no source {source!r} in this run: it has {', '.join(self.names)}")
        return self._table.sources[source].documents[0]

    def named(self, source: str) -> str:
        """The name that the run has for a source, given that or `"<split>/<source>"`."""
        known = {table.documents[0].name: name for name, table in self._table.sources.items()}
        return source if source in self.names else known.get(source, source)

    def seq_len(self, row: int) -> int:
        """Slots of a row of the run; amendments may change them."""
        return self._table.section_at(row).seq_len

    def batch(self, step: int) -> NDArray[np.int64]:
        return self._loader.batch_rows(step)

    def rows(self, rows: Sequence[int]) -> list[Piece]:
        """All segments of some rows of the run."""
        segments = self._table.segments(np.asarray(rows, np.int64))
        tokens = ranges_to_read(self._table, segments).tokens.tolist()  # none beyond a view's cut
        found = self._table.origins(segments)
        before = np.cumsum(found.slots) - found.slots
        first = before - before[np.searchsorted(found.row, found.row)]  # in its row
        return [
            self._piece(rows[int(found.row[at])], found, at, int(first[at]), count)
            for at, count in enumerate(tokens)
        ]

    def _piece(self, row: int, found: Segments, at: int, slot: int, tokens: int) -> Piece:
        source = self.names[int(found.source[at])]
        start, slots = int(found.start[at]), int(found.slots[at])
        passage = self.passage(source, int(found.document[at]), start, start + tokens)
        step, row_in_batch = self._loader.step_of_row(row) or (None, None)
        return Piece(
            **vars(passage),
            step=step,
            row_in_batch=row_in_batch,
            row=row,
            slots=(slot, slot + slots),
            without_loss=int(found.context[at]),
        )

    def passage(
        self, source: str, document: int, start: int = 0, stop: int | None = None
    ) -> Passage:
        """Tokens `[start, stop)` of a document, or fewer at its end."""
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
        documents = self.documents(source)
        one = (np.array([value]) for value in (document, start, stop - start))
        data = documents.tokens(*one).views.join()
        return np.frombuffer(data, documents.dtype.newbyteorder("<"))

    def pieces(self, source: str, document: int) -> list[Piece]:
        """All segments of a document in the run, in order of training."""
        read = self.read(source)
        numbers = read.numbers_of(document) if isinstance(read, KeptDocuments) else [document]
        rows = sorted({row for each in numbers for row in self._table.rows_with(source, each)})
        return [p for p in self.rows(rows) if (p.source, p.document) == (source, document)]
