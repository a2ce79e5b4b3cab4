"""The loader: batches for one process of a training run, from one small state."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import grain
import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.feed.accounting import local_bytes, trained_tokens
from jaxdata.feed.batches import (
    BatchMaker,
    DatasetBatches,
    HostPlacement,
    Placement,
    Share,
    TableBatches,
)
from jaxdata.feed.layouts import LaidOut, Layout, native
from jaxdata.feed.options import check_layout, is_on_host, lay_out, require_whole
from jaxdata.feed.report import RunReport, make_report
from jaxdata.feed.schedule import Schedule, Span, check_batch_size
from jaxdata.feed.skips import check_skips
from jaxdata.feed.state import check_state, make_state
from jaxdata.feed.streams import AheadStream, DirectStream, PlacedStream, Stream, WorkerStream
from jaxdata.rows.amounts import table_names
from jaxdata.rows.datasets import (
    row_table,
    section_starts,
    underlying_identity,
    underlying_table,
)
from jaxdata.rows.extras import check_extras, extra_dtype
from jaxdata.rows.table import section_at, sections

if TYPE_CHECKING:
    import jax

__all__ = ["Loader"]


class Loader(grain.DatasetIterator[Any]):
    """A one-pass iterator of global batches, each process getting its part.

    Args:
        rows: what `jaxdata.pack` or `mix` returns, or any `MapDataset` of rows.
        batch_size: rows of the global batch, whatever the number of hosts. Or a ramp
            `[(0, 256), (100_000, 512)]`: batches that begin at row 100,000 or later have 512.
        sharding: a `jax.sharding.Sharding` of (batch, seq): batches are global `jax.Array`s,
            and this process reads only the rows that its devices hold. Or:
        shard: `(i, n)`: numpy batches of the rows `[i B / n, (i + 1) B / n)` of each.
        num_workers: worker processes; 0 makes batches in this process.
        prefetch: batches made ahead by each worker, or by a background thread; 0 for none.
        drop_remainder: leave out a last batch that is not full, instead of completing it with
            rows that are all padding. Either way every host has the same number of steps.
        skip_rows: ranges `[(a, b), …]` of rows that are never delivered: a batch is the next
            rows that are not skipped. The state remembers them.
        expand: `"host"`, or with a sharding `"device"`: only tokens and segment lengths are made
            here and sent, an eighth of the bytes; a jitted function makes the same arrays there.
        layout: whose names and masks a batch has: `"jaxdata"`, `"maxtext"`, `"hf"`, `"megatron"`,
            or a function of a batch (see `jaxdata.feed.layouts`). Rows and state do not depend
            on it.
        extras: `"source"` and/or `"document"` add arrays of that name to every batch, int32
            (batch, seq_len): of each slot, the number of its source in `source_names` and of its
            document there (int64 where a source has more than 2^31 documents); -1 in padding.

    A delivered batch belongs to the caller. `get_state()` is small, plain JSON, the same on
    every host, and restores for any number of hosts, devices, workers, and any batch size.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> [batch["inputs"].shape for batch in jaxdata.Loader(rows, batch_size=2)]
    [(2, 2)]
    """

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
        expand: str = "host",
        layout: str | Layout = "jaxdata",
        extras: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._stream: Stream | None = None
        require_whole(num_workers=num_workers, prefetch=prefetch)
        if sharding is not None and shard is not None:
            raise InputError("give sharding= (jax arrays) or shard=(i, n) (numpy), not both")
        self._rows, self._table = rows, row_table(rows)
        self._on_host = is_on_host(expand, sharding is not None, self._table is not None)
        self._layout = check_layout(layout, self._on_host)
        self._extras = check_extras(extras, self._table)
        ramp, skipped = check_batch_size(batch_size), check_skips(skip_rows, len(rows))
        self._run, self._total = underlying_identity(rows), len(rows)
        self._num_workers, self._prefetch = num_workers, prefetch
        starts = section_starts(rows)
        self._schedule = Schedule(self._total, ramp, skipped, drop_remainder, starts)
        self._placements = {
            (size, section): self._placement(size, start, sharding, shard or (0, 1))
            for _, size in ramp
            for section, start in enumerate(starts)
        }
        self._offsets = {size: where.rows for (size, _), where in self._placements.items()}
        self._bytes: dict[tuple[int, int], int] = {}
        self._amendments: list[dict[str, Any]] = []
        self._ended = False
        self._finalizer: Any = None
        self.wait_seconds = 0.0
        """seconds that `next` has waited for batches, in all"""
        self.rows_read = 0
        """rows that this process has read for the batches delivered"""
        self.bytes_delivered = 0
        """bytes of them that this process has handed over: its rows, its devices' columns"""

    def _placement(
        self, size: int, row: int, sharding: jax.sharding.Sharding | None, shard: tuple[int, int]
    ) -> Placement:
        """Where batches of a size go, of rows like `row`."""
        if sharding is None:
            return HostPlacement(size, shard)
        from jaxdata.feed.device import CompactPlacement, DevicePlacement, check_wide

        if self._table is None:
            return DevicePlacement(sharding, size, len(next(iter(self._rows[row].values()))))
        check_wide({name: extra_dtype(self._table, name) for name in self._extras})
        table = section_at(self._table, row)
        if self._on_host:
            return DevicePlacement(sharding, size, table.seq_len)
        return CompactPlacement(sharding, size, table.seq_len, table.positions)

    @property
    def rows(self) -> Any:
        """The dataset of rows that it delivers."""
        return self._rows

    @property
    def source_names(self) -> list[str]:
        """What the numbers in a batch's `source` mean; empty for transformed rows."""
        return [] if self._table is None else table_names(self._table)

    @property
    def batch_sizes(self) -> list[tuple[int, int]]:
        """What it was asked for, as `[(row, batch size from there on), …]`."""
        return self._schedule.ramp

    @property
    def next_row(self) -> int:
        """The next row to deliver; the number of rows at the end."""
        return self._schedule.next_row

    @property
    def step(self) -> int:
        """Steps before the next row, by the batch sizes they had."""
        return self._schedule.step

    @property
    def skipped_rows(self) -> int:
        """Rows of this run that are left out, those still to come included."""
        return self._schedule.skips.before(self._total)

    def skipped_tokens(self) -> int:
        """Targets with loss in the skipped rows, from lengths alone: stored masks not counted."""
        return trained_tokens(self._rows, self._schedule.skips.skipped(self._total))

    def batch_rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the global batch of a step, past or to come: by the sizes and skips it had."""
        if not 0 <= step < len(self):
            raise InputError(f"there is no step {step}: the steps are 0 to {len(self) - 1}")
        return self._schedule.batch_rows(step)

    def step_of_row(self, row: int) -> tuple[int, int] | None:
        """The step that has a row, and its number in that batch; None where it is left out."""
        return self._schedule.find(row)

    def report(self) -> RunReport:
        """What was delivered so far by all hosts together, source by source, against the plan.

        Worked out from lengths up to the next row, so it is the same on every host, and whatever
        row the loader was restored or sought to. Raises InputError for transformed rows.
        """
        return make_report(self._table, self._schedule)

    def halt(self) -> SourceExhausted | None:
        """The error with which it ends, where a mixture halts before its budget is met."""
        end: Callable[[], SourceExhausted | None] = getattr(self._underlying, "end", _nothing)
        return end()

    @property
    def _underlying(self) -> Any:
        return underlying_table(self._rows)

    def _planned(self) -> list[dict[str, Any]]:
        return list(getattr(self._underlying, "amendments", []))

    def _first_dry(self) -> float:
        rows = (each.row for each in getattr(self._underlying, "exhaustions", []))
        return min(rows, default=math.inf)

    def __len__(self) -> int:
        """Steps from row 0 to the end."""
        return len(self._schedule)

    def __str__(self) -> str:
        return f"Loader({self._total} rows in {len(self)} batches, at row {self.next_row})"

    def __iter__(self) -> Self:
        if self._ended:
            raise InputError(
                "this loader is at its end: it passes over its rows once. To start again call "
                "reset(), or seek(step=…) or seek(row=…)"
            )
        return self

    def __next__(self) -> Any:
        self._assert_not_closed()
        started = time.perf_counter()
        try:
            span, batch = next(self._started_stream())
            self._schedule.advance(span)
        except StopIteration:
            self._ended = True
            raise self.halt() or StopIteration from None
        except BaseException:  # Ctrl-C, too: it may come when a batch is half on its way
            self._drop_stream()
            raise
        finally:
            self.wait_seconds += time.perf_counter() - started
        self._count(span, batch)
        return batch

    def _count(self, span: Span, batch: Any) -> None:
        shape = (span.size, span.section)
        if shape not in self._bytes:
            self._bytes[shape] = local_bytes(batch)  # the same for all batches of a shape
        self.bytes_delivered += self._bytes[shape]
        self.rows_read += self._share.count(span)

    def start_prefetch(self) -> None:
        """Begin to make batches before the first is asked for."""
        self._started_stream()

    def _started_stream(self) -> Stream:
        if self._stream is None:
            self._stream = self._open_stream()
            # The stream knows nothing of the loader: when that is gone, or Python ends, it closes.
            self._finalizer = weakref.finalize(self, self._stream.close)
        return self._stream

    def _open_stream(self) -> Stream:
        self._share = Share(self._offsets, self._schedule.skips, self._schedule.ends)
        maker, spans, placements = self._maker(), self._spans(), self._placements
        made: Stream = (
            WorkerStream(maker, spans, self._num_workers, self._prefetch)
            if self._num_workers
            else DirectStream(maker, spans)
        )
        placed = PlacedStream(
            made, lambda span, batch: placements[span.size, span.section].place(batch)
        )
        # Workers are ahead by themselves: a thread would only pass on what they have made.
        works = not self._num_workers or any(where.works for where in placements.values())
        return AheadStream(placed, self._prefetch) if self._prefetch and works else placed

    def _spans(self) -> Iterator[Span]:
        """The batches from here on that are made in this process."""
        return self._schedule.spans()

    def _maker(self) -> BatchMaker:
        maker: BatchMaker
        if self._table is None:
            maker = DatasetBatches(self._rows, self._share)
        else:
            tables = [part for _, part in sections(self._table)]
            maker = TableBatches(tables, self._share, lay_out(self._on_host, self._extras))
        return maker if self._layout is native else LaidOut(maker, self._layout)

    def get_state(self) -> dict[str, Any]:
        """Where the loader is, as plain JSON values: the same on every host."""
        at = self._schedule
        amendments = sorted([*self._planned(), *self._amendments], key=_row_of)
        return make_state(self._run, at.next_row, at.history, at.skips.ranges, amendments)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; raises StateMismatch naming every fact that differs.

        Rows that the state skips are skipped, and those that this loader was to skip. What this
        run amends at the state's row or later may be another than when the state was taken.
        """
        noted = check_state(state, self._run, self._planned(), self._first_dry())
        row, history = state["next_row"], state.get("batch_sizes") or []
        if not isinstance(row, int) or not 0 <= row <= self._total:
            raise StateMismatch(
                f"the loader state has next_row {row!r}: expected 0 to {self._total}"
            )
        self._move()
        self._amendments = noted
        self._schedule.restore(row, history, state.get("skips", ()))

    def seek(self, *, step: int | None = None, row: int | None = None) -> None:
        """Go to a step (by the batch sizes that steps had) or to a row; takes no time."""
        if (step is None) == (row is None):
            raise InputError("seek takes step=… or row=…, one of them")
        name, target, last = ("step", step, len(self)) if row is None else ("row", row, self._total)
        assert target is not None
        if not 0 <= target <= last:
            raise InputError(f"cannot seek to {name} {target}: the {name}s are 0 to {last}")
        self._move()
        (self._schedule.seek_step if row is None else self._schedule.seek)(target)

    def skip(self, first: int, stop: int) -> None:
        """Never deliver rows `[first, stop)` from here on; every host has to ask for it."""
        ranges = check_skips([(first, stop)], self._total)
        self._move()
        self._schedule.skip(ranges)

    def reset(self) -> None:
        """Go back to the first row."""
        self.seek(row=0)

    def _move(self) -> None:
        """Before the next row becomes another: let go of what was made ahead."""
        self._assert_not_closed()
        self._drop_stream()
        self._ended = False

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._finalizer()
            self._stream = None

    def close(self) -> None:
        """Stop threads and worker processes; the loader cannot be used afterwards."""
        if not self._closed:
            self._drop_stream()
        super().close()

    async def save(self, directory: Any) -> Any:
        """For Orbax's checkpointables: one file, by one process, with the state at this call."""
        from jaxdata.feed.checkpoint import save_later

        return save_later(directory, self.get_state())

    async def load(self, directory: Any) -> Any:
        """For Orbax's checkpointables: on any number of processes."""
        from jaxdata.feed.checkpoint import load_later

        return load_later(directory, self)


def _nothing() -> None:
    return None


def _row_of(amendment: Mapping[str, Any]) -> int:
    return int(amendment["row"])
