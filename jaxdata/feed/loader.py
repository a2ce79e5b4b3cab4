"""The loader: batches for one process of a training run, from one small state.

Every loader has the members of `BatchIterator`: where it is, what makes its batches, its state.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Self

import grain
import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from jaxdata.base.errors import InputError, SourceExhausted, StateMismatch, counted
from jaxdata.base.numbers import validated
from jaxdata.dataset.opening import Dataset
from jaxdata.feed import batches
from jaxdata.feed.ahead import fetched_ahead, made_ahead, with_first_fill
from jaxdata.feed.layouts import Named, in_parts, layout
from jaxdata.feed.report import RunReport, make_report
from jaxdata.feed.schedule import (
    Balanced,
    Schedule,
    Span,
    balance_of,
    check_batch_size,
    check_skips,
)
from jaxdata.feed.settings import LoaderSection
from jaxdata.feed.state import check_run, make_state, parse_state
from jaxdata.feed.steering import Board, check_steered, compare_states, replayed
from jaxdata.feed.workers import WorkerStream
from jaxdata.rows.map_datasets import MixedDataset, have_epochs, identity_of, known_rows, row_table
from jaxdata.rows.mixing.amended_rows import amended, amendment_for
from jaxdata.rows.mixing.phases import Amendment, Weights
from jaxdata.rows.objectives import Objective
from jaxdata.rows.reading import check_extras
from jaxdata.rows.table import Batch, RowTable, in_batch_order
from jaxdata.storage.pages.page_cache import read_counts
from jaxdata.storage.pages.read_counts import ReadCounts

if TYPE_CHECKING:
    import jax

B = TypeVar("B", default=dict[str, Any])
"""a batch: a dict of arrays, or what a layout of your own returns"""


class BatchIterator(batches.StreamReader, Generic[B]):
    """An iterator of global batches: the members that every loader has.

    It passes over its rows once; with `reiterable`, an `iter()` at the end begins the next pass.
    Several threads may share one: each batch comes once, to one of them.

    Args:
        rows: the result of `jaxdata.pack` or `mix`, or any `MapDataset` of rows.
        settings: see `jaxdata.Loader`.
        placement_of: `(size, row)` -> where batches of a size go, if their rows are like `row`.
        on_devices: whether placements are on devices of JAX.
        board: where the processes that share batches compare their states; None for one, and where
            nothing can be compared.
    """

    rows: Any
    """the dataset of rows that it delivers"""
    schedule: Schedule
    """the steps of the run, and where it is"""
    passes = 0
    """whole passes over the rows before this one; 0 unless it is `reiterable`"""
    wait_seconds = 0.0
    """total seconds that `next` has waited for batches"""
    _amendments: Sequence[dict[str, Any]] = ()
    """noted in the state that it resumed from"""
    _read_before: ReadCounts | None = None
    _compared = False
    _ahead, _every = 0, 1
    """each `_every`-th of the next batches is made here, after `_ahead` that other copies make"""

    def __init__(
        self,
        rows: Any,
        settings: LoaderSection,
        placement_of: Callable[[int, int], batches.Placement],
        *,
        on_devices: bool = False,
        board: Board | None = None,
    ) -> None:
        super().__init__(on_devices)
        _check_rows(rows)
        self._given, self.board = rows, board
        self.reiterable, self.context_parallel = settings.reiterable, settings.context_parallel
        self._workers, self._prefetch = settings.num_workers, settings.prefetch
        self._objective: Objective | None = settings.objective
        self._run = identity_of(rows) | (self._objective.facts() if self._objective else {})
        # A mixture has no rows beyond its end: every pass is the same.
        self._epoch_rows = len(rows) if have_epochs(rows) else 0
        self._placements = dict[tuple[int, int], batches.Placement]()
        self._placement_of = placement_of
        ramp = check_batch_size(settings.batch_size)
        check_skips(settings.skip_rows, len(rows))
        self.schedule = Schedule(len(rows), ramp, settings.skip_rows, settings.drop_remainder)
        self._use(rows)
        if self._objective is not None:
            self._objective.check([] if self._underlying is None else self._underlying.documents)
        self._extras = check_extras(settings.extras, self._table)
        parts = settings.context_parallel
        self._layout = in_parts(layout(settings.layout), parts, self._underlying)
        shards = {size: where.shards for (size, _), where in self._placements.items()}
        parts = settings.microbatches
        self._balance = balance_of(self._underlying, settings.balance, shards, parts)

    def _use(self, rows: Any) -> None:
        """Have rows that are the same as before up to the next one, and of the same shapes."""
        known = known_rows(rows)
        self.rows, self._table, self._underlying = rows, row_table(rows), _known_table(rows)
        sections = known.sections() if known else [(0, None)]
        self._keyed = [keyed for _, keyed in sections if keyed is not None]
        starts = [start for start, _ in sections]
        self.schedule.resize(len(rows), starts)
        for _, size in self.schedule.ramp:
            for section, start in enumerate(starts):
                self._placements[size, section] = self._placement_of(size, start)

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
        started = time.perf_counter()
        try:
            if self.board is not None and not self._compared:
                self._compare(self.board)
            batch: B = super().__next__()
            return batch
        finally:
            self.wait_seconds += time.perf_counter() - started

    def _compare(self, board: Board) -> None:
        with self.lock:
            self.start_prefetch()  # makes the first batch meanwhile
            dealt_by = {} if self._balance is None else self._balance.facts()
            compare_states(board, {**self.get_state(), **dealt_by})
            self._compared = True

    def _advance(self, span: Span) -> None:
        self.schedule.advance(span)
        self._ended = self.schedule.at_end

    def _end(self) -> BaseException:
        return self.halt() or StopIteration()

    def __iter__(self) -> Self:
        with self.lock:
            self._check_open()
            halted = self.halt() is not None
            if self.reiterable and self.schedule.at_end and not halted:
                self._go_to_pass(self.passes + 1)
            elif self._ended and not halted:
                raise InputError(
                    "this loader is at its end: it iterates over its rows once. To start again "
                    "call reset(), or seek(step=…) or seek(row=…); or make it with reiterable=True"
                )
        return self

    def _go_to_pass(self, number: int) -> None:
        with self._moving():
            self.passes = number
            self.schedule.seek(0)

    def _open(self) -> batches.Batches:
        maker, placements = self.maker(), self._placements
        if maker.is_far and self._read_before is None:
            self._read_before = read_counts()
            assert self._table is not None  # of rows that are read one by one nothing is far
            batches.warn_of_downloads(self._table, self.hosts, self.schedule.ramp[0][1])
        made: batches.Batches
        if self._workers:
            made = WorkerStream(maker, self.schedule, self._workers, self._prefetch)
        else:
            spans = self.schedule.spans(self._ahead, self._every)
            made = fetched_ahead(maker, spans, processes=self._every)
        if (before := self._read_before) is not None:
            made = with_first_fill(made, lambda: read_counts() - before)

        def placed(pair: tuple[Span, Any]) -> tuple[Span, Any]:
            span, batch = pair
            return span, placements[span.size, span.section].place(batch)

        # Nothing may hold a batch while the next is made: its memory is used again at once.
        stream = batches.Stream(map(placed, made), made.close)
        # Workers run ahead by themselves: a thread would only pass their batches on.
        works = not self._workers or any(where.works for where in placements.values())
        return made_ahead(stream, self._prefetch) if self._prefetch and works else stream

    @property
    def _first_row(self) -> int:
        """The number in the dataset of this pass' first row."""
        return self._epoch_rows * self.passes

    def maker(self) -> batches.BatchMaker:
        """Makes this process's rows of batches."""
        offsets = {size: where.rows for (size, _), where in self._placements.items()}
        at, first = self.schedule, self._first_row
        share = batches.Share(offsets, at.skips, at.ends, self._keyed, first, self._balance)
        rows = [self.rows] * len(at.ends)
        if self._table is not None:
            rows = [table for _, table in self._table.sections()]
        return batches.BatchMaker(rows, share, self._extras, self._layout, self._objective)

    def sample(self) -> Batch:
        """The first batch, or this process's rows of it: numpy arrays, in jaxdata's layout."""
        return next(self.maker().arrays([Span(0, self.schedule.ramp[0][1])]))

    def deliver(self, batch: Batch) -> Any:
        """A batch of your own arrays, laid out and placed as this loader's are; it does not move.

        Args:
            batch: the five arrays of rows, with as many rows as this process gets of a batch.
        """
        return next(iter(self._placements.values())).place(self._layout(batch))

    @validated
    def batch_rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the global batch of a step, past or future, by the sizes and skips it had."""
        if not 0 <= step < len(self):
            raise InputError(f"there is no step {step}: the steps are 0 to {len(self) - 1}")
        rows = self.ordered_rows(step)
        return rows[rows >= 0]

    @validated
    def ordered_rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the global batch of a step, in its order; -1 is padding between them."""
        span, rows = self.schedule.span(step), self.schedule.batch_rows(step)
        if self._keyed:
            rows = in_batch_order(self._keyed[span.section], rows)
        if self._balance is not None:
            table = self._keyed[span.section]
            [rows] = self._balance.deal(table, [rows], span.size, self._first_row)
        return rows

    @validated
    def step_of_row(self, row: int) -> tuple[int, int] | None:
        """The step that has a row, and the row's number in that batch; None if it is skipped."""
        step = self.schedule.find(row)
        if step is None:
            return None
        return step, int(np.flatnonzero(self.ordered_rows(step) == row)[0])

    def report(self) -> RunReport:
        """The report of all hosts together so far, source by source, against the plan.

        Computed from lengths up to the next row, so it is the same on every host and after any
        seek or resume; only `reads`, what was fetched from buckets, is this host's own. In a later
        pass it counts that pass. Raises InputError for transformed rows.
        """
        return make_report(self._table, self.schedule, self.reads, self.passes, self._first_row)

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

    def get_state(self) -> dict[str, Any]:
        """The loader's position as plain JSON values, the same on every host."""
        with self.lock:
            at = self.schedule
            planned = [] if self._underlying is None else self._underlying.amendments
            amendments = sorted([*planned, *self._amendments], key=itemgetter("row"))
            return make_state(
                self._run,
                at.next_row,
                batch_sizes=at.history,
                passes=self.passes if self.reiterable else None,
                skips=at.skips.ranges,
                amendments=amendments,
            )

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume where a state was taken; raises StateMismatch naming every fact that differs.

        The skips of the state hold, and those of this loader. Amendments at the state's row or
        later may differ from those of the run that the state was taken in.
        """
        saved = parse_state(state)
        rows, refusal = replayed(self._given, saved.amendments)
        offer = partial(amendment_for, _known_table(self._given), saved.run, saved.next_row)
        noted = check_run(saved, self._run, _known_table(rows), amendment=offer)
        if not refusal and saved.next_row > len(rows):
            refusal = f"the loader state has next_row {saved.next_row}: expected 0 to {len(rows)}"
        if not refusal and saved.passes and not self.reiterable:
            refusal = (
                f"the loader state is in pass {saved.passes + 1} over the rows, and this loader "
                "has only one: make it with reiterable=True"
            )
        if refusal:
            raise StateMismatch(refusal)
        with self._moving():
            if rows is not self.rows:
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
            self.schedule.seek(self.schedule.first_row(target) if row is None else target)

    def reset(self) -> None:
        """Go back to the first row, of the first pass."""
        self._go_to_pass(0)

    @validated
    def skip(self, first: int, stop: int) -> None:
        """Never deliver rows `[first, stop)` from here on; every host has to call it."""
        check_skips([(first, stop)], len(self.rows))
        with self._moving():
            self.schedule.skip([(first, stop)])

    @validated
    def reweigh(self, weights: Weights) -> int:
        """Mix sources by other weights from the first row on that no process has begun.

        Batches that are made ahead (`prefetch`, `num_workers`) keep their rows, and are made again:
        the change holds from the row after them, for the rest of the phase that is under way there.
        It is an amendment like others: the state has it, with the row at which it was asked for,
        and whatever resumes from the state has the same rows. Every process has to call it at the
        same step; those that share batches compare what they asked for.

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
            mixed = check_steered(self.rows, weights).table
            if self.passes:
                raise InputError(
                    f"reweigh in pass {self.passes + 1}: later passes repeat the rows of the first"
                )
            begun = self._prefetch + self._workers * (max(self._prefetch, 1) + 1)
            row = self.schedule.first_row(self.step + begun)
            if row < len(self.rows):
                change = Amendment({}, weights=weights, asked_at=self.next_row)
                rows = MixedDataset(amended(mixed, row, change))
                with self._moving():
                    self._use(rows)
            if self.board is not None:
                compare_states(self.board, self.get_state(), "where they were reweighed")
            return row

    def _become_copy(self, number: int, copies: int) -> None:
        """Continue in a copy of the process, without threads and workers.

        Of the next batches it makes those of copy `number`, of so many `copies` that take turns.
        """
        self._ahead, self._every = number, copies
        self._workers, self._prefetch, self.board = 0, 0, None

    async def load(self, directory: Any) -> Any:
        """For Orbax's checkpointables: from the `directory`, on any number of processes."""
        from jaxdata.feed.checkpoint import load_later

        return load_later(directory, self)


def _known_table(rows: Any) -> RowTable | None:
    known = known_rows(rows)
    return known.table if known else None


def _check_rows(rows: Any) -> None:
    """Refuse what is not rows: a dataset, a source, a folder."""
    if isinstance(rows, str | PathLike | Dataset) or hasattr(rows, "lengths"):
        raise InputError(
            f"a loader is given rows, not a {type(rows).__name__}: pack a source first, "
            "jaxdata.pack(dataset.source(split, name), seq_len=…), or mix several"
        )


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
        layout: the trainer whose names and masks a batch has: `"jaxdata"`, `"maxtext"`, `"hf"`,
            `"megatron"`; one of them with options, `{"megatron": {"cu_seqlens": True}}`; one of
            yours, `"module:function"`; or a function of a batch, which may return any structure of
            arrays (see `jaxdata.feed.layouts`). Rows and state do not depend on it.
        extras: `"source"` and/or `"document"` add arrays of that name to every batch, int32
            (batch, seq_len): the number of each slot's source in `source_names`, and of its
            document there (int64 if a source has more than 2^31 documents); -1 in padding. The
            name of a side array of the documents adds the value of each slot's input,
            `"target_<name>"` that of its target; of the stored dtype, 0 where there is none.
        balance: `"attention"` makes the sum of squared segment lengths even over the parts of a
            batch: hosts (`shard=`) or the data shards of a sharding; `{"attention": window}` for a
            sliding window of so many tokens. Which part gets a row changes, not the rows of a step.
        microbatches: consecutive parts that a trainer cuts the rows of each such part into: they
            are made even, too; without `balance` no row goes to another part for it.
        context_parallel: number of devices that share a row. Part *i* of *n* of the sequence axis
            of every array holds chunks *i* and *2n - 1 - i* of *2n*; `positions` are the true ones.
            `jaxdata.feed.layouts.in_row_order` undoes it.
        objective: what a model learns but the next token, by name with its settings:
            `{"mtp": 3}` the next tokens, `{"fim": …}`, `{"span": …}`, `{"mask": …}` (see
            `jaxdata.rows.objectives`). A function of each row and its number; the state names it.
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

    @validated
    def __init__(
        self,
        rows: Any,
        *,
        batch_size: int | Sequence[tuple[int, int]],
        sharding: "jax.sharding.Sharding | None" = None,
        shard: tuple[int, int] | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        drop_remainder: bool = False,
        skip_rows: Iterable[tuple[int, int]] = (),
        layout: Named | Callable[[Batch], B] = "jaxdata",
        extras: Sequence[str] = (),
        balance: Balanced | None = None,
        microbatches: int = 1,
        context_parallel: int = 1,
        objective: Any = None,
        reiterable: bool = False,
    ) -> None:
        if sharding is not None and shard is not None:
            raise InputError("give sharding= (jax arrays) or shard=(i, n) (numpy), not both")

        ramp = check_batch_size(batch_size)  # a config takes 5e9 as well
        settings, board = LoaderSection.among({**locals(), "batch_size": ramp}), None
        if sharding is not None:
            from jaxdata.feed.device import board_of, placement

            board = board_of(sharding)

        def placement_of(size: int, row: int) -> batches.Placement:
            if sharding is None:
                return batches.HostPlacement(size, shard or (0, 1))
            return placement(rows, sharding, settings, size, row)

        super().__init__(rows, settings, placement_of, on_devices=sharding is not None, board=board)
