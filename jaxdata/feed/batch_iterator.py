"""An iterator of global batches: a schedule, the streams that make its batches, their placements.

`BatchIterator` opens streams at any row and closes them. The loaders for grain and for torch are
made of it; what they add is where batches go.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from jaxdata.base.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.base.numbers import validated
from jaxdata.base.wording import counted
from jaxdata.feed.balance import Balance, balance_of
from jaxdata.feed.batches import (
    BatchMaker,
    Change,
    DatasetBatches,
    DirectStream,
    OpenStream,
    PlacedStream,
    Placement,
    Stream,
    TableBatches,
    note_moved_rows,
    warn_of_downloads,
)
from jaxdata.feed.context_parallel import in_parts
from jaxdata.feed.layouts import Named, check_layout
from jaxdata.feed.report import RunReport, make_report
from jaxdata.feed.same_rows import Board, compare_states
from jaxdata.feed.schedule import Schedule, Share, Span, check_batch_size, check_skips
from jaxdata.feed.settings import LoaderSection
from jaxdata.feed.state import check_run, make_state, parse_state
from jaxdata.feed.steering import change_of, check_steered, replayed, reweighed
from jaxdata.feed.streams.ahead import AheadStream, FarStream, FirstFill
from jaxdata.feed.streams.workers import WorkerStream
from jaxdata.feed.trees import check_rows, check_slots, is_on_host
from jaxdata.rows.extras import check_extras
from jaxdata.rows.map_datasets import (
    have_epochs,
    identity_of,
    known_rows,
    row_table,
)
from jaxdata.rows.mixing.amended_rows import amendment_for
from jaxdata.rows.mixing.phases import Weights
from jaxdata.rows.table import Batch, RowTable, in_batch_order
from jaxdata.storage.pages.page_cache import read_counts
from jaxdata.storage.pages.read_counts import ReadCounts

B = TypeVar("B", default=dict[str, Any])
"""a batch: a dict of arrays, or what a layout of your own returns"""
_LOOKED_AT = 8
"""batches of which it is said how many rows change their host"""


class BatchIterator(Generic[B]):
    """An iterator of global batches: the members that every loader has.

    It passes over its rows once; with `reiterable`, an `iter()` at the end begins the next pass.
    Several threads may share one: each batch comes once, to one of them.

    Args:
        rows: the result of `jaxdata.pack` or `mix`, or any `MapDataset` of rows.
        placement_of: `(size, row)` -> where batches of a size go, if their rows are like `row`.
        on_devices: whether placements are on devices of JAX.
        board: where the processes of the run compare their states; None where nothing can be.

    The other arguments are those of `jaxdata.Loader`; `parts` are `balance`, `microbatches` and
    `context_parallel`.
    """

    rows: Any
    """the dataset of rows that it delivers"""
    schedule: Schedule
    """the steps of the run, and where it is"""
    board: Board | None
    """where the processes that share batches meet; None for one, and where nothing is compared"""
    reiterable: bool
    """whether an `iter()` at the end begins another pass"""
    context_parallel: int
    """devices that share a row"""
    passes = 0
    """whole passes over the rows before this one; 0 unless it is `reiterable`"""
    wait_seconds = 0.0
    """total seconds that `next` has waited for batches"""
    _ended = _is_closed = _delivered_all = False
    _amendments: Sequence[dict[str, Any]] = ()
    """noted in the state that it resumed from"""
    _read_before: ReadCounts | None = None
    _making: DirectStream | WorkerStream | None = None
    """the stream that makes batches, as the last one was opened"""
    _compared = False
    _starts: Sequence[int] = ()
    """first rows of the sections"""
    _choose: Callable[[Iterator[Span]], Iterator[Span]] = iter
    """which of the next batches are made here"""

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
        **parts: Any,
    ) -> None:
        super().__init__()
        check_rows(rows)
        given = LoaderSection.checked(num_workers=num_workers, prefetch=prefetch, **parts)
        self._given = self.rows = rows
        self._table = row_table(rows)
        known = known_rows(rows)
        self._underlying = known.table if known else None
        self._on_host = is_on_host(expand, on_devices, self._table is not None)
        checked = check_layout(layout, self._on_host)
        self._layout = in_parts(checked, given.context_parallel, self._underlying, self._on_host)
        self.context_parallel = given.context_parallel
        self._extras = check_extras(extras, self._table)
        self._num_workers, self._prefetch = num_workers, prefetch
        ramp, skipped = check_batch_size(batch_size), check_skips(skip_rows, len(rows))
        starts = known.section_starts if known else [0]
        self.schedule = Schedule(len(rows), ramp, skipped, drop_remainder, starts)
        self._placement_of, self._placements = placement_of, dict[tuple[int, int], Placement]()
        self._place(starts)
        _check_memory(self._placements.values(), self._underlying)
        shards = {size: where.shards for (size, _), where in self._placements.items()}
        self._balance = balance_of(self._underlying, given.balance, shards, given.microbatches)
        self._keyed = list(known.keyed) if known else []
        # A mixture has no rows beyond its end: every pass is the same.
        self._epoch_rows = len(rows) if have_epochs(rows) else 0
        self._run = identity_of(rows)
        self._stream = OpenStream(on_devices)
        self.reiterable, self.board = reiterable, board

    @property
    def lock(self) -> Any:
        """Held by a thread while it reads or moves; hold it to do several things at once."""
        return self._stream.lock

    @property
    def source_names(self) -> list[str]:
        """Names of the sources by their number in a batch's `source`; none for transformed rows."""
        return [] if self._table is None else self._table.names

    @property
    def batch_sizes(self) -> list[tuple[int, int]]:
        """The batch sizes asked for, as `[(row, batch size from there on), …]`."""
        return self.schedule.ramp

    @property
    def next_row(self) -> int:
        """The next row to deliver; the number of rows at the end."""
        return self.schedule.next_row

    @property
    def step(self) -> int:
        """Steps before the next row, by the batch sizes they had."""
        return self.schedule.step

    @property
    def hosts(self) -> int:
        """Processes that share a batch."""
        return next(iter(self._placements.values())).hosts

    def __len__(self) -> int:
        """Steps from row 0 to the end."""
        return len(self.schedule)

    def __repr__(self) -> str:
        rows, size = counted(len(self.rows), "row"), len(self)
        batches = f"{size:,} batch{'es' * (size != 1)}"
        return f"Loader({rows} in {batches}, at row {self.next_row:,})"

    def __next__(self) -> B:
        with self.lock:
            self._check_open()
            started = time.perf_counter()
            try:
                if self._ended:
                    raise StopIteration
                if self.board is not None and not self._compared:
                    self._stream.get(self._open)  # makes the first batch meanwhile
                    dealt_by = {} if self._balance is None else self._balance.facts()
                    compare_states(self.board, {**self.get_state(), **dealt_by})
                    self._compared = True
                batch: B = self._stream.next(self._open, self.schedule.advance)
                self._delivered_all = self.schedule.at_end
                return batch
            except StopIteration:
                self._check_open()
                self._ended = True
                raise self.halt() or StopIteration from None
            except Exception:
                self._check_open()
                raise
            finally:
                self.wait_seconds += time.perf_counter() - started

    def __iter__(self) -> Self:
        with self.lock:
            self._check_open()
            halted = self.halt() is not None
            if self.reiterable and self.schedule.at_end and not halted:
                self._go_to_pass(self.passes + 1)
            elif self._ended or (self._delivered_all and not halted):
                raise InputError(
                    "this loader is at its end: it iterates over its rows once. To start again "
                    "call reset(), or seek(step=…) or seek(row=…); or make it with reiterable=True"
                )
        return self

    def _go_to_pass(self, number: int) -> None:
        with self._moving():
            self.passes = number
            self.schedule.seek(0)

    def start_prefetch(self) -> None:
        """Start to make batches before the first is requested."""
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
            tables = [each for part in self._parts for each in part.sources.values()]
            warn_of_downloads(tables, self.hosts)
            if self._balance is not None and isinstance(maker, TableBatches):
                note_moved_rows(maker, list(islice(self.schedule.spans(), _LOOKED_AT)))
        stream: DirectStream | WorkerStream
        if self._num_workers:
            stream = WorkerStream(maker, spans, self._num_workers, self._prefetch)
        else:
            stream = FarStream(maker, spans) if maker.is_far else DirectStream(maker, spans)
        self._making = stream
        return stream if before is None else FirstFill(stream, lambda: read_counts() - before)

    @property
    def _parts(self) -> list[RowTable]:
        """The rows of each section, if they are not transformed."""
        return [] if self._table is None else [table for _, table in self._table.sections()]

    def maker(self) -> BatchMaker:
        """Makes this process's rows of batches."""
        offsets = {size: where.rows for (size, _), where in self._placements.items()}
        shift = self._epoch_rows * self.passes
        at = self.schedule
        share = Share(offsets, at.skips, at.ends, self._keyed, shift, self._dealing())
        if self._table is None:
            return DatasetBatches(self.rows, share, self._layout)
        return TableBatches(self._parts, share, self._extras, self._on_host, self._layout)

    def sample(self) -> Batch:
        """The first batch, or this process's rows of it: numpy arrays, in jaxdata's layout."""
        return next(self.maker().arrays([Span(0, self.schedule.ramp[0][1])]))

    def deliver(self, batch: Batch) -> Any:
        """A batch of your own arrays, laid out and placed as this loader's are; it does not move.

        Args:
            batch: the five arrays of rows, with as many rows as this process gets of a batch.
        """
        if not self._on_host:
            raise InputError("expand='device' delivers no arrays of your own: use expand='host'")
        return next(iter(self._placements.values())).place(self._layout(batch))

    @validated
    def batch_rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the global batch of a step, past or future, by the sizes and skips it had."""
        if not 0 <= step < len(self):
            raise InputError(f"there is no step {step}: the steps are 0 to {len(self) - 1}")
        rows = self._ordered_rows(step)
        return rows[rows >= 0]

    def _ordered_rows(self, step: int) -> NDArray[np.int64]:
        """The rows of a global batch as it holds them; -1 is padding between them."""
        span, rows = self.schedule.span(step), self.schedule.batch_rows(step)
        if self._keyed:
            rows = in_batch_order(self._keyed[span.section], rows)
        dealing = self._dealing()
        return rows if dealing is None else dealing(span.section, [rows], span.size)[0]

    def _dealing(self) -> Balance | None:
        """What deals rows to the parts of batches in this pass."""
        shift = self._epoch_rows * self.passes
        return self._balance and replace(self._balance, shift=shift)

    @validated
    def step_of_row(self, row: int) -> tuple[int, int] | None:
        """The step that has a row, and the row's number in that batch; None if it is skipped."""
        found = self.schedule.find(row)
        if found is None:
            return None
        return found[0], int(np.flatnonzero(self._ordered_rows(found[0]) == row)[0])

    def report(self) -> RunReport:
        """The report of all hosts together so far, source by source, against the plan.

        Computed from lengths up to the next row, so it is the same on every host and after any
        seek or resume; only `reads`, what was fetched from buckets, is this host's own. In a later
        pass it counts that pass. Raises InputError for transformed rows.
        """
        first = self._epoch_rows * self.passes
        return make_report(self._table, self.schedule, self.reads, self.passes, first)

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
        return None if self._read_before is None else read_counts() - self._read_before

    def halt(self) -> SourceExhausted | None:
        """The error that ends the run, if its mixture halts before the budget is met."""
        return None if self._underlying is None else self._underlying.end()

    def _planned(self) -> list[dict[str, Any]]:
        """The amendments of this run."""
        return [] if self._underlying is None else self._underlying.amendments

    def get_state(self) -> dict[str, Any]:
        """The loader's position as plain JSON values, the same on every host."""
        with self.lock:
            at = self.schedule
            amendments = sorted([*self._planned(), *self._amendments], key=itemgetter("row"))
            passes = self.passes if self.reiterable else None
            skips = at.skips.ranges
            return make_state(self._run, at.next_row, at.history, skips, amendments, passes)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume where a state was taken; raises StateMismatch naming every fact that differs.

        The skips of the state hold, and those of this loader. Amendments at the state's row or
        later may differ from those of the run that the state was taken in.
        """
        saved = parse_state(state)
        rows, refusal = replayed(self._given, saved.amendments)
        table = known.table if (known := known_rows(rows)) else None
        exhaustions, planned = (table.exhaustions, table.amendments) if table else ((), [])
        first_dry = min((each.row for each in exhaustions), default=math.inf)
        given = known.table if (known := known_rows(self._given)) else None
        amendment = partial(amendment_for, given, saved.run, saved.next_row)
        noted = check_run(saved, self._run, planned, first_dry, amendment=amendment)
        if refusal:
            raise StateMismatch(refusal)
        if saved.next_row > len(rows):
            raise StateMismatch(
                f"the loader state has next_row {saved.next_row}: expected 0 to {len(rows)}"
            )
        if saved.passes and not self.reiterable:
            raise StateMismatch(
                f"the loader state is in pass {saved.passes + 1} over the rows, and this loader "
                "has only one: make it with reiterable=True"
            )
        with self._moving():
            self._use(rows)
            self._amendments, self.passes = noted, saved.passes
            self.schedule.restore(saved.next_row, saved.batch_sizes, saved.skips)

    @validated
    def seek(self, *, step: int | None = None, row: int | None = None) -> None:
        """Go to a step (by the batch sizes that steps had) or to a row; takes no time."""
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
        """Go back to the first row, of the first pass."""
        self._go_to_pass(0)

    @validated
    def skip(self, first: int, stop: int) -> None:
        """Never deliver rows `[first, stop)` from here on; every host has to call it."""
        ranges = check_skips([(first, stop)], len(self.rows))
        with self._moving():
            self.schedule.skip(ranges)

    @validated
    def reweigh(self, weights: Weights) -> int:
        """Mix sources by other weights from the first row on that no process has begun.

        Batches that are made ahead (`prefetch`, `num_workers`) keep their rows: the change holds
        from the row after them, for the rest of the phase that is under way there. It is an
        amendment like others: the state has it, with the row at which it was asked for, and
        whatever resumes from the state has the same rows. Every process has to call it at the same
        step; those that share batches compare what they asked for.

        Args:
            weights: of the sources, as in `jaxdata.Phase`.

        Returns:
            The first row that is mixed by them; the number of rows if all have been begun.

        Raises:
            InputError: the weights are none, the rows are not a mixture, or another process asked
                for something else.
            SourceExhausted: a source would run dry, and the run refuses that: nothing changes.
        """
        with self.lock:
            self._check_open()
            check_steered(self.rows, weights)
            if self.passes:
                raise InputError(
                    f"reweigh in pass {self.passes + 1}: later passes repeat the rows of the first"
                )
            row = self.schedule.row_after(self._begun)
            if row < len(self.rows):
                self._change(row, weights)
            if self.board is not None:
                compare_states(self.board, self.get_state(), "where they were reweighed")
            return row

    @property
    def _begun(self) -> int:
        """Most batches after the next row that are made, or in the making, in any process."""
        return self._prefetch + self._num_workers * (max(self._prefetch, 1) + 1)

    def _change(self, row: int, weights: Weights) -> None:
        self._use(reweighed(self.rows, row, weights, self.next_row))
        if self._making is not None:
            ends = self.schedule.ends
            changes = change_of(weights, self.next_row)
            amend = partial(TableBatches.amended, row=row, changes=changes, ends=ends)
            spans = self._choose(self.schedule.spans())
            self._making.change(Change(amend, spans))

    def _place(self, starts: Sequence[int]) -> None:
        """Find where batches of each size go, in each section."""
        if starts != self._starts:
            self._starts = list(starts)
            for _, size in self.schedule.ramp:
                for section, start in enumerate(starts):
                    self._placements[size, section] = self._placement_of(size, start)

    def _use(self, rows: Any) -> None:
        """Have rows that are the same as before up to the next one, and of the same shapes."""
        known = known_rows(rows)
        if rows is self.rows or known is None:
            return
        self.rows, self._table, self._underlying = rows, row_table(rows), known.table
        self._keyed = list(known.keyed)
        if self._balance is not None and known.table is not None:
            self._balance = self._balance.of([each for _, each in known.table.sections()])
        self._place(known.section_starts)
        self.schedule.resize(len(rows), known.section_starts)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Discard batches made ahead, before the next row changes."""
        with self.lock:
            self._check_open()
            self._stream.close()
            self._ended = self._delivered_all = False
            yield

    def become_copy(self, choose: Callable[[Iterator[Span]], Iterator[Span]]) -> None:
        """Continue in a copy of the process, without threads and workers.

        Of the next batches this copy makes those that `choose` picks.
        """
        self._choose, self._num_workers, self._prefetch = choose, 0, 0
        self.board = None

    def close(self) -> None:
        """Stop threads and worker processes; the loader cannot be used afterwards."""
        self._is_closed = True
        self._stream.close()  # a thread that waits for a batch lets go of the lock
        with self.lock:
            self._stream.close()

    async def save(self, directory: Any) -> Any:
        """For Orbax's checkpointables: one process writes the state of now to the `directory`."""
        from jaxdata.feed.checkpoint import save_later

        return save_later(directory, self.get_state())

    async def load(self, directory: Any) -> Any:
        """For Orbax's checkpointables: from the `directory`, on any number of processes."""
        from jaxdata.feed.checkpoint import load_later

        return load_later(directory, self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InputError("this loader is closed: make another")


def _check_memory(placements: Iterable[Placement], table: RowTable | None) -> None:
    if table is not None:
        longest = max(each.seq_len for _, each in table.sections())
        check_slots(max(len(where.rows) for where in placements), longest)
