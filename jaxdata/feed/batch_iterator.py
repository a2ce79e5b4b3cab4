"""The members that all loaders share, whatever they deliver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from jaxdata.errors import InputError, SourceExhausted
from jaxdata.feed.pipeline import BatchPipeline
from jaxdata.feed.report import RunReport
from jaxdata.format.storage import ReadCounts
from jaxdata.rows.table import Batch
from jaxdata.scalars import takes_numpy
from jaxdata.wording import counted

B = TypeVar("B", default=dict[str, Any])
"""a batch: a dict of arrays, or what a layout of your own returns"""


class BatchIterator(Generic[B]):
    """An iterator of global batches: the members that every loader has.

    It passes over its rows once; with `reiterable`, an `iter()` at the end begins the next pass.

    Several threads may share one: each batch comes once, to one of them.
    """

    _pipeline: BatchPipeline

    @property
    def lock(self) -> Any:
        """Held by a thread while it reads or moves; hold it to do several things at once."""
        return self._pipeline.lock

    @property
    def rows(self) -> Any:
        """The dataset of rows that it delivers."""
        return self._pipeline.rows

    @property
    def source_names(self) -> list[str]:
        """Names of the sources by their number in a batch's `source`; none for transformed rows."""
        return self._pipeline.source_names

    @property
    def batch_sizes(self) -> list[tuple[int, int]]:
        """The batch sizes asked for, as `[(row, batch size from there on), …]`."""
        return self._pipeline.schedule.ramp

    @property
    def next_row(self) -> int:
        """The next row to deliver; the number of rows at the end."""
        return self._pipeline.schedule.next_row

    @property
    def step(self) -> int:
        """Steps before the next row, by the batch sizes they had."""
        return self._pipeline.schedule.step

    @property
    def reiterable(self) -> bool:
        """Whether an `iter()` at the end begins another pass."""
        return self._pipeline.reiterable

    @property
    def passes(self) -> int:
        """Whole passes over the rows before this one; 0 unless it is `reiterable`."""
        return self._pipeline.passes

    @property
    def wait_seconds(self) -> float:
        """Total seconds that `next` has waited for batches."""
        return self._pipeline.wait_seconds

    @takes_numpy
    def batch_rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the global batch of a step, past or future, by the sizes and skips it had."""
        if not 0 <= step < len(self):
            raise InputError(f"there is no step {step}: the steps are 0 to {len(self) - 1}")
        return self._pipeline.batch_rows(step)

    @takes_numpy
    def step_of_row(self, row: int) -> tuple[int, int] | None:
        """The step that has a row, and the row's number in that batch; None if it is skipped."""
        return self._pipeline.find(row)

    def report(self) -> RunReport:
        """The report of all hosts together so far, source by source, against the plan.

        Computed from lengths up to the next row, so it is the same on every host and after any
        seek or resume; only `reads`, what was fetched from buckets, is this host's own. In a later
        pass it counts that pass. Raises InputError for transformed rows.
        """
        return self._pipeline.report()

    def scalars(self) -> dict[str, float]:
        """The report as flat numbers for a trainer's logger, and `wait_seconds`, this process's.

        Of rows whose tokens cannot be counted, as transformed ones, only the position.
        """
        try:
            found = self.report().scalars()
        except InputError:
            found = {"row": self.next_row, "pass": self.passes}
        return {**found, "wait_seconds": self.wait_seconds}

    @property
    def reads(self) -> ReadCounts | None:
        """What this process and its running workers have fetched from buckets since it began.

        None where rows are local, and before the first batch is asked for.
        """
        return self._pipeline.reads

    def halt(self) -> SourceExhausted | None:
        """The error that ends the run, if its mixture halts before the budget is met."""
        return self._pipeline.halt()

    def __len__(self) -> int:
        """Steps from row 0 to the end."""
        return len(self._pipeline.schedule)

    def __repr__(self) -> str:
        rows, size = counted(len(self.rows), "row"), len(self)
        batches = f"{size:,} batch{'es' * (size != 1)}"
        return f"Loader({rows} in {batches}, at row {self.next_row:,})"

    def __iter__(self) -> Self:
        self._pipeline.begin()
        return self

    def __next__(self) -> B:
        batch: B = self._pipeline.next()
        return batch

    def deliver(self, batch: Batch) -> Any:
        """A batch of your own arrays, laid out and placed as this loader's are; it does not move.

        Args:
            batch: the five arrays of rows, with as many rows as this process gets of a batch.
        """
        return self._pipeline.deliver(batch)

    def sample(self) -> Batch:
        """The first batch, or this process's rows of it: numpy arrays, in jaxdata's layout."""
        return self._pipeline.sample()

    def start_prefetch(self) -> None:
        """Start to make batches before the first is requested."""
        self._pipeline.start()

    def get_state(self) -> dict[str, Any]:
        """The loader's position as plain JSON values, the same on every host."""
        return self._pipeline.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume where a state was taken; raises StateMismatch naming every fact that differs.

        The skips of the state hold, and those of this loader. Amendments at the state's row or
        later may differ from those of the run that the state was taken in.
        """
        self._pipeline.set_state(state)

    @takes_numpy
    def seek(self, *, step: int | None = None, row: int | None = None) -> None:
        """Go to a step (by the batch sizes that steps had) or to a row; takes no time."""
        self._pipeline.seek(step=step, row=row)

    @takes_numpy
    def skip(self, first: int, stop: int) -> None:
        """Never deliver rows `[first, stop)` from here on; every host has to call it."""
        self._pipeline.skip(first, stop)

    def reset(self) -> None:
        """Go back to the first row, of the first pass."""
        self._pipeline.reset()

    def close(self) -> None:
        """Stop threads and worker processes; the loader cannot be used afterwards."""
        self._pipeline.close()

    async def save(self, directory: Any) -> Any:
        """For Orbax's checkpointables: one process writes the state of now to the `directory`."""
        from jaxdata.feed.checkpoint import save_later

        return save_later(directory, self.get_state())

    async def load(self, directory: Any) -> Any:
        """For Orbax's checkpointables: from the `directory`, on any number of processes."""
        from jaxdata.feed.checkpoint import load_later

        return load_later(directory, self)
