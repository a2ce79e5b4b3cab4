"""The loader: batches for one process of a training run, from one small state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

import grain
import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.base.numbers import validated
from jaxdata.base.wording import counted
from jaxdata.feed.batches import HostPlacement, Placement
from jaxdata.feed.layouts import Named
from jaxdata.feed.pipeline import BatchPipeline
from jaxdata.feed.report import RunReport
from jaxdata.feed.same_rows import Board
from jaxdata.feed.trees import of_rows, refuse_copy
from jaxdata.rows.extras import check_extras, extra_dtype
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.table import Batch
from jaxdata.storage import ReadCounts

if TYPE_CHECKING:
    import jax


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

    @validated
    def batch_rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the global batch of a step, past or future, by the sizes and skips it had."""
        if not 0 <= step < len(self):
            raise InputError(f"there is no step {step}: the steps are 0 to {len(self) - 1}")
        return self._pipeline.batch_rows(step)

    @validated
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

    @validated
    def seek(self, *, step: int | None = None, row: int | None = None) -> None:
        """Go to a step (by the batch sizes that steps had) or to a row; takes no time."""
        self._pipeline.seek(step=step, row=row)

    @validated
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


class Loader(BatchIterator[B], grain.DatasetIterator[B]):
    """An iterator of global batches, of which each process gets its rows.

    It passes over its rows once, unless it is `reiterable`; a `for` after the end raises.

    Args:
        rows: the result of `jaxdata.pack` or `mix`, or any `MapDataset` of rows.
        batch_size: rows of the global batch, over all hosts. Or a ramp
            `[(0, 256), (100_000, 512)]`: batches that begin at row 100,000 or later have 512.
        sharding: a `jax.sharding.Sharding` of (batch, seq): batches are global `jax.Array`s,
            and this process reads only the rows that its devices hold. Or:
        shard: `(i, n)`: numpy batches of the rows `[i B / n, (i + 1) B / n)` of each.
        num_workers: worker processes; 0 makes batches in this process.
        prefetch: batches made ahead by each worker, or by a background thread; 0 for none.
        drop_remainder: drop a last batch that is not full, instead of completing it with padding
            rows. Either way every host has the same number of steps.
        skip_rows: ranges `[(a, b), …]` of rows that are never delivered: a batch is the next
            rows that are not skipped. The state remembers them.
        expand: `"host"`, or with a sharding `"device"`: the host sends only tokens and segment
            lengths, an eighth of the bytes, and a jitted function makes the same arrays there.
        layout: the trainer whose names and masks a batch has: `"jaxdata"`, `"maxtext"`, `"hf"`,
            `"megatron"`; one of them with options, `{"megatron": {"cu_seqlens": True}}`; one of
            yours, `"module:function"`; or a function of a batch, which may return any structure of
            arrays (see `jaxdata.feed.layouts`). Rows and state do not depend on it.
        extras: `"source"` and/or `"document"` add arrays of that name to every batch, int32
            (batch, seq_len): the number of each slot's source in `source_names`, and of its
            document there (int64 if a source has more than 2^31 documents); -1 in padding. The
            name of a side array of the documents adds the value of each slot's input,
            `"target_<name>"` that of its target; of the stored dtype, 0 where there is none.
        reiterable: at the end, `iter()` begins the next pass, as trainers that count epochs expect;
            in the middle of a pass it gives the rest. Packed rows have another order in each pass,
            that of `rows.repeat()`; a mixture repeats its rows. The state counts `passes`.

    A delivered batch belongs to the caller. `get_state()` is small, plain JSON, the same on
    every host, and restores with any number of hosts, devices and workers, and any batch size.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> [batch["inputs"].shape for batch in jaxdata.Loader(rows, batch_size=2)]
    [(2, 2)]
    """

    @of_rows
    @validated
    def __init__(
        self,
        rows: Any,
        *,
        batch_size: int | Sequence[tuple[int, int]],
        sharding: jax.sharding.Sharding | None = None,
        shard: tuple[int, int] | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        drop_remainder: bool = False,
        skip_rows: Iterable[tuple[int, int]] = (),
        expand: Literal["host", "device"] = "host",
        layout: Named | Callable[[Batch], B] = "jaxdata",
        extras: Sequence[str] = (),
        reiterable: bool = False,
    ) -> None:
        super().__init__()
        if sharding is not None and shard is not None:
            raise InputError("give sharding= (jax arrays) or shard=(i, n) (numpy), not both")

        def placement_of(size: int, row: int) -> Placement:
            if sharding is None:
                return HostPlacement(size, shard or (0, 1))
            return _device_placement(rows, sharding, size, row, expand, extras)

        self._pipeline = BatchPipeline(
            rows,
            placement_of,
            batch_size=batch_size,
            on_devices=sharding is not None,
            num_workers=num_workers,
            prefetch=prefetch,
            drop_remainder=drop_remainder,
            skip_rows=skip_rows,
            expand=expand,
            layout=layout,
            extras=extras,
            reiterable=reiterable,
            board=None if sharding is None else _board(sharding),
        )

    __reduce__ = refuse_copy

    def __del__(self) -> None:
        """Do nothing, unlike grain: a pipeline closes its stream when nothing refers to it."""


def _board(sharding: jax.sharding.Sharding) -> Board | None:
    from jaxdata.feed.device import board_of

    return board_of(sharding)


def _device_placement(
    rows: Any,
    sharding: jax.sharding.Sharding,
    size: int,
    row: int,
    expand: str,
    extras: Sequence[str],
) -> Placement:
    """The placement on devices for batches of `size` rows like `row`."""
    from jaxdata.feed.device import CompactPlacement, DevicePlacement, check_wide

    table = row_table(rows)
    if table is None:
        return DevicePlacement(sharding, size, len(next(iter(rows[row].values()))))
    check_wide({name: extra_dtype(table, name) for name in check_extras(extras, table)})
    section = table.section_at(row)
    if expand == "host":
        return DevicePlacement(sharding, size, section.seq_len)
    return CompactPlacement(sharding, size, section.seq_len, section.positions)
