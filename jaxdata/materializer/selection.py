"""Which rows are written, and making them in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.batches import BatchMaker, DatasetBatches, DirectStream, TableBatches
from jaxdata.feed.schedule import Share, Span
from jaxdata.feed.skips import Skips, check_skips
from jaxdata.map_datasets.underlying import row_table, section_starts, underlying_keyed
from jaxdata.rows.table import Batch


@dataclass(frozen=True)
class Selection:
    """The rows `[first, stop)` of a dataset of rows, less those that are skipped.

    Raises InputError if that leaves nothing.
    """

    rows: Any
    first: int
    stop: int
    skip_rows: list[tuple[int, int]]
    extras: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop <= len(self.rows):
            raise InputError(
                f"rows {self.first}:{self.stop}: expected a range with 0 <= first < stop <= "
                f"{len(self.rows)}, the number of rows there are"
            )
        for start in section_starts(self.rows):
            if self.first < start < self.stop:
                raise InputError(
                    f"rows {self.first}:{self.stop}: an amendment changes their shape at row "
                    f"{start}; export the rows before it and from it on separately"
                )
        check_skips(self.skip_rows, len(self.rows))
        if not len(self):
            raise InputError(
                f"all rows of {self.first}:{self.stop} are skipped: nothing is left to write"
            )

    @property
    def _skips(self) -> Skips:
        return Skips(self.skip_rows)

    def __len__(self) -> int:
        return self._skips.ordinal(self.stop) - self._skips.ordinal(self.first)

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` of the selection, at most `size` at a time."""
        first = self._skips.ordinal(self.first)
        spans = [Span(first + at, min(size, stop - at)) for at in range(start, stop, size)]
        stream = DirectStream(self._maker({span.size for span in spans}), iter(spans))
        for _ in spans:
            yield next(stream)[1]

    @property
    def lanes(self) -> int:
        """See `KeyedRows`."""
        keyed = underlying_keyed(self.rows)
        return keyed[0].lanes if keyed else 1

    def batch_key(self) -> NDArray[np.uint64]:
        """See `KeyedRows`; of all rows."""
        first = self._skips.ordinal(self.first)
        numbers = self._skips.rows(np.arange(first, first + len(self)))
        return underlying_keyed(self.rows)[0].batch_key(numbers)

    def _maker(self, sizes: Iterable[int]) -> BatchMaker:
        offsets = {size: np.arange(size) for size in sizes}
        share = Share(offsets, self._skips, [self._skips.ordinal(self.stop)])
        table = row_table(self.rows)
        if table is None:
            return DatasetBatches(self.rows, share)
        return TableBatches([table.section_at(self.first)], share, self.extras)
