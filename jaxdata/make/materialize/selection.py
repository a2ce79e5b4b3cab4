"""Which rows are written down, and making them in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdata.errors import InputError
from jaxdata.feed.batches import BatchMaker, DatasetBatches, Share, TableBatches
from jaxdata.feed.schedule import Span
from jaxdata.feed.skips import Skips, check_skips
from jaxdata.feed.streams import DirectStream
from jaxdata.rows.datasets import row_table, section_starts
from jaxdata.rows.table import Batch, section_at

__all__ = ["Selection"]


@dataclass(frozen=True)
class Selection:
    """The rows `[first, stop)` of a dataset of rows, less those that are skipped.

    Raises InputError where that is nothing.
    """

    rows: Any
    first: int
    stop: int
    skip_rows: list[tuple[int, int]]

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
                    f"{start}; write those before it and those from it on apart"
                )
        check_skips(self.skip_rows, len(self.rows))
        if not len(self):
            raise InputError(
                f"every row of {self.first}:{self.stop} is skipped: nothing is left to write"
            )

    @property
    def _skips(self) -> Skips:
        return Skips(self.skip_rows)

    def __len__(self) -> int:
        return self._skips.place(self.stop) - self._skips.place(self.first)

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """The selected rows number `start` to `stop`, at most `size` at a time."""
        first = self._skips.place(self.first)
        spans = [Span(first + at, min(size, stop - at)) for at in range(start, stop, size)]
        stream = DirectStream(self._maker({span.size for span in spans}), iter(spans))
        for _ in spans:
            yield next(stream)[1]

    def _maker(self, sizes: Iterable[int]) -> BatchMaker:
        offsets = {size: np.arange(size) for size in sizes}
        share = Share(offsets, self._skips, [self._skips.place(self.stop)])
        table = row_table(self.rows)
        if table is None:
            return DatasetBatches(self.rows, share)
        return TableBatches([section_at(table, self.first)], share)
