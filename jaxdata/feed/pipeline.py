"""The pipeline of a loader: a schedule, the streams that make its batches, their placements.

`BatchPipeline` opens streams at any row and closes them. Its faces are `BatchIterator`, and with it
`feed.loader.Loader` for grain and `torch.loader.Loader` for torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.feed.batches import (
    BatchMaker,
    DatasetBatches,
    DirectStream,
    LayoutBatches,
    OpenStream,
    PlacedStream,
    Placement,
    Stream,
    TableBatches,
)
from jaxdata.feed.layouts import Named, check_layout, native
from jaxdata.feed.report import RunReport, make_report
from jaxdata.feed.same_rows import Board, compare_states
from jaxdata.feed.schedule import Schedule, Share, Span, check_batch_size, check_skips
from jaxdata.feed.settings import LoaderSection
from jaxdata.feed.state import check_run, make_state, parse_state
from jaxdata.feed.streams.ahead import AheadStream, FarStream, FirstFill
from jaxdata.feed.streams.workers import WorkerStream
from jaxdata.feed.trees import check_rows, check_slots, is_on_host
from jaxdata.rows.extras import check_extras
from jaxdata.rows.map_datasets import (
    have_epochs,
    row_table,
    section_starts,
    underlying_identity,
    underlying_keyed,
    underlying_table,
)
from jaxdata.rows.table import Batch, RowTable, in_batch_order
from jaxdata.storage import ReadCounts, read_counts


class BatchPipeline:
    """Batches of rows, from any row on.

    Args:
        rows: the result of `jaxdata.pack` or `mix`, or any `MapDataset` of rows.
        placement_of: `(size, row)` -> where batches of a size go, if their rows are like `row`.
        on_devices: whether placements are on devices of JAX.
        board: where the processes of the run compare their states; None where nothing can be.

    The other arguments are those of `jaxdata.Loader`.
    """

    def __init__(
        self,
        rows: Any,
        placement_of: Callable[[int, int], Placement],
        *,
        batch_size: int | Sequence[tuple[int, int]],
        on_devices: bool = False,
        num_workers: int = 0,
        prefetch: int = 2,
        drop_remainder: bool = False,
        skip_rows: Iterable[tuple[int, int]] = (),
        expand: str = "host",
        layout: Named = "jaxdata",
        extras: Sequence[str] = (),
        reiterable: bool = False,
        board: Board | None = None,
    ) -> None:
        check_rows(rows)
        LoaderSection.checked(num_workers=num_workers, prefetch=prefetch)
        self.rows, self._table = rows, row_table(rows)
        self._underlying = underlying_table(rows)
        self._on_host = is_on_host(expand, on_devices, self._table is not None)
        self._layout = check_layout(layout, self._on_host)
        self._extras = check_extras(extras, self._table)
        self._num_workers, self._prefetch = num_workers, prefetch
        ramp, skipped = check_batch_size(batch_size), check_skips(skip_rows, len(rows))
        starts = section_starts(rows)
        self.schedule = Schedule(len(rows), ramp, skipped, drop_remainder, starts)
        self._placements = {
            (size, section): placement_of(size, start)
            for _, size in ramp
            for section, start in enumerate(starts)
        }
        _check_memory(self._placements.values(), self._underlying)
        self._keyed = list(underlying_keyed(rows))
        # A mixture has no rows beyond its end: every pass is the same.
        self._epoch_rows = len(rows) if have_epochs(rows) else 0
        self._choose: Callable[[Iterator[Span]], Iterator[Span]] = iter
        self._run = underlying_identity(rows)
        self._amendments: list[dict[str, Any]] = []
        self._stream = OpenStream(on_devices)
        self.ended = self.closed = self._delivered_all = False
        self.reiterable, self.passes = reiterable, 0
        self.wait_seconds, self._board = 0.0, board
        self._read_before: ReadCounts | None = None

    @property
    def source_names(self) -> list[str]:
        """Names of the sources; empty for transformed rows."""
        return [] if self._table is None else self._table.names

    @property
    def lock(self) -> Any:
        """Held by the thread that reads or moves: each batch comes once, whoever asks for it."""
        return self._stream.lock

    def next(self) -> Any:
        """The next batch; at the end raises StopIteration, or the error that halts the run."""
        with self.lock:
            self._check_open()
            started = time.perf_counter()
            try:
                if self.ended:
                    raise StopIteration
                if self._board is not None:
                    self._stream.get(self._open)  # makes the first batch meanwhile
                    compare_states(self._board, self.get_state())
                    self._board = None
                batch = self._stream.next(self._open, self.schedule.advance)
                self._delivered_all = self.schedule.at_end
                return batch
            except StopIteration:
                self._check_open()
                self.ended = True
                raise self.halt() or StopIteration from None
            except Exception:
                self._check_open()
                raise
            finally:
                self.wait_seconds += time.perf_counter() - started

    def begin(self) -> None:
        """Begin to iterate: at the end a new pass, where there may be one."""
        with self.lock:
            self._check_open()
            halted = self.halt() is not None
            if self.reiterable and self.schedule.at_end and not halted:
                self._go_to_pass(self.passes + 1)
            elif self.ended or (self._delivered_all and not halted):
                raise InputError(
                    "this loader is at its end: it iterates over its rows once. To start again "
                    "call reset(), or seek(step=…) or seek(row=…); or make it with reiterable=True"
                )

    def _go_to_pass(self, number: int) -> None:
        with self._moving():
            self.passes = number
            self.schedule.seek(0)

    def start(self) -> None:
        """Begin to make the next batches."""
        with self.lock:
            self._check_open()
            self._stream.get(self._open)

    def _open(self) -> Stream:
        placements, spans = self._placements, self._choose(self.schedule.spans())
        made = self._made(self.maker(), spans)
        placed = PlacedStream(
            made, lambda span, batch: placements[span.size, span.section].place(batch)
        )
        # Workers run ahead by themselves: a thread would only pass their batches on.
        works = not self._num_workers or any(where.works for where in placements.values())
        return AheadStream(placed, self._prefetch) if self._prefetch and works else placed

    def _made(self, maker: BatchMaker, spans: Iterator[Span]) -> Stream:
        before = self._read_before
        if maker.is_far and before is None:
            before = self._read_before = read_counts()
        stream: Stream
        if self._num_workers:
            stream = WorkerStream(maker, spans, self._num_workers, self._prefetch)
        else:
            stream = FarStream(maker, spans) if maker.is_far else DirectStream(maker, spans)
        return stream if before is None else FirstFill(stream, lambda: read_counts() - before)

    def maker(self) -> BatchMaker:
        """Makes this process's rows of batches."""
        offsets = {size: where.rows for (size, _), where in self._placements.items()}
        shift = self._epoch_rows * self.passes
        share = Share(offsets, self.schedule.skips, self.schedule.ends, self._keyed, shift)
        maker: BatchMaker
        if self._table is None:
            maker = DatasetBatches(self.rows, share)
        else:
            tables = [table for _, table in self._table.sections()]
            maker = TableBatches(tables, share, self._extras, self._on_host)
        return maker if self._layout is native else LayoutBatches(maker, self._layout)

    def sample(self) -> Batch:
        """The first batch, or this process's rows of it, in jaxdata's own layout."""
        maker = self.maker()
        maker = maker.maker if isinstance(maker, LayoutBatches) else maker
        return next(iter(maker.make([Span(0, self.schedule.ramp[0][1])])))

    def deliver(self, batch: Batch) -> Any:
        """A batch like `sample()`, laid out and placed as those of the loader are."""
        if not self._on_host:
            raise InputError("expand='device' delivers no arrays of your own: use expand='host'")
        return next(iter(self._placements.values())).place(self._layout(batch))

    def batch_rows(self, step: int) -> NDArray[np.int64]:
        rows = self.schedule.batch_rows(step)
        return in_batch_order(self._keyed[0], rows) if self._keyed else rows

    def find(self, row: int) -> tuple[int, int] | None:
        found = self.schedule.find(row)
        if found is None or not self._keyed or self._keyed[0].lanes == 1:
            return found
        return found[0], int(np.flatnonzero(self.batch_rows(found[0]) == row)[0])

    def report(self) -> RunReport:
        first = self._epoch_rows * self.passes
        return make_report(self._table, self.schedule, self.reads, self.passes, first)

    @property
    def reads(self) -> ReadCounts | None:
        """What was fetched from buckets here since it began; None where no row is in one."""
        return None if self._read_before is None else read_counts() - self._read_before

    def halt(self) -> SourceExhausted | None:
        return None if self._underlying is None else self._underlying.end()

    def _planned(self) -> list[dict[str, Any]]:
        """The amendments of this run."""
        return [] if self._underlying is None else self._underlying.amendments

    def get_state(self) -> dict[str, Any]:
        with self.lock:
            at = self.schedule
            amendments = sorted([*self._planned(), *self._amendments], key=itemgetter("row"))
            passes = self.passes if self.reiterable else None
            skips = at.skips.ranges
            return make_state(self._run, at.next_row, at.history, skips, amendments, passes)

    def set_state(self, state: Mapping[str, Any]) -> None:
        saved = parse_state(state)
        exhaustions = () if self._underlying is None else self._underlying.exhaustions
        first_dry = min((each.row for each in exhaustions), default=math.inf)
        noted = check_run(saved, self._run, self._planned(), first_dry)
        if saved.next_row > len(self.rows):
            raise StateMismatch(
                f"the loader state has next_row {saved.next_row}: expected 0 to {len(self.rows)}"
            )
        if saved.passes and not self.reiterable:
            raise StateMismatch(
                f"the loader state is in pass {saved.passes + 1} over the rows, and this loader "
                "has only one: make it with reiterable=True"
            )
        with self._moving():
            self._amendments, self.passes = noted, saved.passes
            self.schedule.restore(saved.next_row, saved.batch_sizes, saved.skips)

    def seek(self, *, step: int | None = None, row: int | None = None) -> None:
        if (step is None) == (row is None):
            raise InputError("seek takes step=… or row=…, one of them")
        target, last = (step, len(self.schedule)) if row is None else (row, len(self.rows))
        name = "step" if row is None else "row"
        assert target is not None
        if not 0 <= target <= last:
            raise InputError(f"cannot seek to {name} {target}: the {name}s are 0 to {last}")
        with self._moving():
            (self.schedule.seek_step if row is None else self.schedule.seek)(target)

    def reset(self) -> None:
        self._go_to_pass(0)

    def skip(self, first: int, stop: int) -> None:
        ranges = check_skips([(first, stop)], len(self.rows))
        with self._moving():
            self.schedule.skip(ranges)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Discard batches made ahead, before the next row changes."""
        with self.lock:
            self._check_open()
            self._stream.close()
            self.ended = self._delivered_all = False
            yield

    def become_copy(self, choose: Callable[[Iterator[Span]], Iterator[Span]]) -> None:
        """Continue in a copy of the process, without threads and workers.

        Of the next batches this copy makes those that `choose` picks.
        """
        self._choose, self._num_workers, self._prefetch = choose, 0, 0
        self._board = None

    def close(self) -> None:
        self.closed = True
        self._stream.close()  # a thread that waits for a batch lets go of the lock
        with self.lock:
            self._stream.close()

    def _check_open(self) -> None:
        if self.closed:
            raise InputError("this loader is closed: make another")


def _check_memory(placements: Iterable[Placement], table: RowTable | None) -> None:
    if table is not None:
        longest = max(each.seq_len for _, each in table.sections())
        check_slots(max(len(where.rows) for where in placements), longest)
