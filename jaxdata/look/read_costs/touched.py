"""The bytes that each host reads in each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from jaxdata.base.ragged import Ints
from jaxdata.dataset.documents import Documents, Places, placed
from jaxdata.dataset.views.kept_documents import base_of
from jaxdata.rows.mixing.mixture import Mixture
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.reading import ranges_to_read
from jaxdata.rows.table import RowTable


class Touched(NamedTuple):
    """Ranges of bytes that rows are read from; int64 (ranges,) each."""

    step: Ints
    host: Ints
    source: Ints
    epoch: Ints
    """of the source"""
    document: Ints
    file: Ints
    """number among the files of all sources"""
    start: Ints
    stop: Ints
    home_stop: Ints
    """end of the segment that the document was dealt with, in which it begins; else of the file"""

    def take(self, chosen: Ints) -> Self:
        """The chosen ranges."""
        return type(self)(*(column[chosen] for column in self))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The ranges of all parts, end to end."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


class Files:
    """The files of all sources of a table, and the rows as bytes of them.

    Args:
        table: the rows.
        page_bytes: size of a page; a source has homes if its segments are of whole pages.
    """

    def __init__(self, table: RowTable, page_bytes: int) -> None:
        self._table = table
        sources = table.sources
        documents: Sequence[Documents] = [each.documents[0] for each in sources.values()]
        self._placed = [placed(base_of(each)) for each in documents or table.documents]
        self._homes = [home_bytes(each, page_bytes) for each in sources.values()]
        counts = [len(each.file_sizes) for each in self._placed]
        self._first_file = np.cumsum([0, *counts])
        self.sizes = np.concatenate([each.file_sizes for each in self._placed])
        """bytes of each file"""

    def bytes_of(self, source: int) -> int:
        """Bytes of all files of a source."""
        return int(self._placed[source].file_sizes.sum())

    def touched(self, rows: Ints, step: Ints, host: Ints) -> Touched:
        """The ranges that some rows are read from, each row in its step and by its host."""
        reads = ranges_to_read(self._table, self._table.segments(rows))
        ranges, row = self._table.origins(reads.ranges), reads.segments.row[reads.owner]
        epoch, parts = self._epochs(rows), list[Touched]()
        for source in np.unique(ranges.source).tolist():
            mine = np.flatnonzero((ranges.source == source) & (reads.tokens > 0))
            document = ranges.document[mine]
            found = self._placed[source].places(document, ranges.start[mine], reads.tokens[mine])
            of, document = row[mine][found.owner], document[found.owner]
            by = (step[of], host[of], np.full(len(of), source), epoch[of], document)
            parts.append(Touched(*by, *self._in_files(source, found, document)))
        return Touched.join(parts)

    def _in_files(self, source: int, found: Places, document: Ints) -> tuple[Ints, ...]:
        """The last four columns of `Touched`."""
        file = self._first_file[source] + found.file
        home = self._homes[source] if self._homes else 0
        if not home:
            return file, found.start, found.stop, self.sizes[file]
        own, first = self._placed[source].first_bytes(document)
        # Masks may have a file of their own.
        stop = np.where(own == found.file, (first // home + 1) * home, self.sizes[file])
        return file, found.start, found.stop, stop

    def _epochs(self, rows: Ints) -> Ints:
        """The epoch of its source that each row is of."""
        if not isinstance(self._table, Mixture):
            return rows // max(len(self._table), 1)
        _, source, rank = self._table.select(rows)
        lengths = np.array([max(len(each), 1) for each in self._table.tables.values()])
        epoch: Ints = rank // lengths[source]
        return epoch


def home_bytes(table: RowTable, page_bytes: int) -> int:
    """Bytes of the chunks by which a source is dealt; 0 without, or if pages straddle them."""
    if not isinstance(table, PackedRows) or not table.settings.shuffle:
        return 0
    size = table.settings.chunk_bytes or 0
    return 0 if size % page_bytes else size
