"""The recipe after an amendment: its sources, what remains of each, and where it goes on.

What remains of an epoch is repacked; a cursor finds a source's rows across repackings.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.facts import brief
from jaxdata.base.ragged import Ints
from jaxdata.dataset.documents import DerivedDocuments, Documents
from jaxdata.rows.mixing.mixture import MixedRows, mix_tables
from jaxdata.rows.mixing.phases import Phase, Recipe, size_of
from jaxdata.rows.mixing.timeline import SourceBudget
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.table import Key, RowTable, Segments, TokenCounts, joint_key


class RemainingDocuments(DerivedDocuments):
    """The untrained part of an epoch, from row `first` on (see `Documents`).

    Each is a range of tokens of a document: its first token is context, the others are targets
    that were not trained before. The ranges in the rest of a begun block come first, then whole
    documents of the other blocks, which are located on demand and take no memory.
    """

    def __init__(self, rows: PackedRows, first: int) -> None:
        super().__init__(rows.documents[0])
        rest, spans = rows.remaining(first)
        segments = rows.segments(rest)
        drops_rest = not STRATEGIES[rows.settings.strategy].keeps_all
        self._ranges = _ranges(segments, self.source, drops_rest)
        self._order, self._first = rows.planner.order, spans[:, 0]
        self._ends = np.cumsum(spans[:, 1]) + len(self._ranges)
        self._begins = self._ends - spans[:, 1]
        self.name = f"{self.source.name}@{first}"
        # Lanes decide which rows come before `first`.
        facts = {**rows.planner.key(), "first": first, "lanes": rows.lanes}
        self.fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        self.lengths: Any = _Lengths(self)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else len(self._ranges)

    def locate(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """The documents of the source, and the tokens `[start, stop)` of them."""
        found = np.zeros((3, len(numbers)), np.int64)
        begun = np.flatnonzero(numbers < len(self._ranges))
        found[:, begun] = self._ranges[numbers[begun]].T
        later = np.flatnonzero(numbers >= len(self._ranges))
        block = np.searchsorted(self._ends, numbers[later], side="right")
        positions = self._first[block] + numbers[later] - self._begins[block]
        found[0, later] = self._order.documents_at(positions)
        found[2, later] = self.source.lengths[found[0, later]]
        return found[0], found[1], found[2]

    def in_source(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        document, start, _ = self.locate(documents)
        return document, start + starts

    def numbers_of(self, document: int) -> list[int]:
        """The ranges of a document of the source."""
        begun = np.flatnonzero(self._ranges[:, 0] == document).tolist()
        position = self._order.position(document)
        block = int(np.searchsorted(self._first, position, side="right")) - 1
        if block >= 0:
            number = int(self._begins[block]) + position - int(self._first[block])
            begun += [number] if number < self._ends[block] else []
        return begun


class _Lengths:
    """`lengths[numbers]` and `np.asarray(lengths)` of an array that is computed on demand."""

    def __init__(self, documents: RemainingDocuments) -> None:
        self.source = documents

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, numbers: ArrayLike) -> NDArray[np.uint32]:
        given = np.asarray(numbers)
        _, start, stop = self.source.locate(given.reshape(-1).astype(np.int64))
        return (stop - start).astype(np.uint32).reshape(given.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[np.arange(len(self))].astype(dtype or np.uint32, copy=bool(copy))


def numbers_of(documents: Documents, number: int) -> list[int]:
    """All remaining ranges of a document of the source, however often it was repacked."""
    if not isinstance(documents, RemainingDocuments):
        return [number]
    inner = numbers_of(documents.source, number)
    return [each for one in inner for each in documents.numbers_of(one)]


def _ranges(segments: Segments, documents: Documents, drops_rest: bool) -> Ints:
    """(ranges, 3): document, start and stop of untrained tokens; adjacent segments are merged."""
    lengths = documents.lengths[segments.document].astype(np.int64)
    start = segments.start + segments.context
    stop = lengths if drops_rest else np.minimum(segments.start + segments.slots + 1, lengths)
    order = np.lexsort((start, segments.document))
    order = order[start[order] + 1 < stop[order]]
    document, start, stop = segments.document[order], start[order], stop[order]
    goes_on = (document[1:] == document[:-1]) & (start[1:] == stop[:-1] - 1)
    first = np.append(0, np.flatnonzero(~goes_on) + 1)[: len(order)]
    last = np.append(first[1:], len(order))[: len(first)] - 1
    return np.stack([document[first], start[first], stop[last]], axis=1)


class SourceCursor(RowTable):
    """A source's rows: the repacked remainder of an epoch, then whole epochs.

    Args:
        whole: rows of an epoch.
        remainder: the untrained rest of an epoch, repacked when the packing changed; comes first.
        epoch: the epoch of `whole` that follows it.
        read: epochs read before both.
    """

    def __init__(
        self,
        whole: PackedRows,
        remainder: PackedRows | None = None,
        epoch: int = 0,
        read: Fraction = Fraction(0),
    ) -> None:
        self.whole, self.remainder, self.epoch, self.read = whole, remainder, epoch, read
        self.seq_len, self.positions = whole.seq_len, whole.positions
        self.documents = [*whole.documents, *(() if remainder is None else remainder.documents)]
        self._first = 0 if remainder is None else len(remainder)  # rows of the remainder
        # From the number of a row after the remainder to that of `whole`:
        self._shift = epoch * len(whole) - self._first

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def sources(self) -> Mapping[str, PackedRows]:
        return self.whole.sources

    def identity(self) -> dict[str, Any]:
        """See `RowTable`; that of its whole epochs."""
        return self.whole.identity()

    def segments(self, rows: Ints) -> Segments:
        if self.remainder is None:
            return self.whole.segments(rows + self._shift)
        early, late = np.flatnonzero(rows < self._first), np.flatnonzero(rows >= self._first)
        remainder = self.remainder.segments(rows[early])
        whole = self.whole.segments(rows[late] + self._shift)
        remainder = replace(remainder, row=early[remainder.row], source=remainder.source + 1)
        return Segments.join([remainder, replace(whole, row=late[whole.row])])

    @property
    def lanes(self) -> int:
        return max(self.whole.lanes, 1 if self.remainder is None else self.remainder.lanes)

    @property
    def lane_cycle(self) -> tuple[int, int] | None:
        return self.whole.lane_cycle if self.remainder is None else None

    def batch_key(self, rows: Ints) -> Key:
        def find(late: int, mine: Ints) -> Key:
            if late or self.remainder is None:
                return self.whole.batch_key(mine + self._shift)
            return self.remainder.batch_key(mine)

        return joint_key(rows >= self._first, rows, find)

    def rows_with(self, name: str, document: int, rows: int | None = None) -> list[int]:
        stop, found = len(self) if rows is None else rows, list[int]()
        if self.remainder is not None:
            remainder = self.remainder.documents[0]
            for number in numbers_of(remainder, document):
                found += self.remainder.rows_with(remainder.name, number)
        last = max(stop + self._shift, 0)
        later = (row - self._shift for row in self.whole.rows_with(name, document, last))
        found += [row for row in later if row >= self._first]
        return sorted({row for row in found if row < stop})

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        before = self.epoch * len(self.whole)
        late = max(rows - self._first, 0)
        found = self.whole.total(before + late) - self.whole.total(before)
        if self.remainder is not None:
            found += self.remainder.total(min(rows, self._first))
        return {self.names[0]: found}

    def epochs(self, rows: int) -> dict[str, Fraction]:
        """See `RowTable`; includes epochs read before."""
        late = max(rows - self._first, 0)
        epochs = self.epoch + Fraction(late, max(len(self.whole), 1))
        if self._first > rows:
            epochs -= (self.epoch - self.read) * Fraction(self._first - rows, self._first)
        return {self.names[0]: epochs}

    def budget(self, name: str, recipe: Recipe, used: int) -> SourceBudget:
        """Rows and density available by a recipe, of which some may be read already."""
        epochs = recipe.epochs_of(name)
        tokens_per_row = self._tokens_per_row(epochs, recipe.weigh_by)
        return SourceBudget(name, self._rows_in(epochs), tokens_per_row, used)

    def _rows_in(self, epochs: Fraction) -> int:
        """Rows available within `epochs` epochs in all."""
        if self.remainder is None:
            return max(math.ceil((epochs - self.epoch) * len(self.whole)), 0)
        part = self.epoch - self.read  # the part of an epoch that the remainder is
        early = min(epochs - self.read, part) / part * self._first
        late = max(epochs - self.epoch, Fraction(0)) * len(self.whole)
        return max(math.ceil(early + late), 0)

    def _tokens_per_row(self, epochs: Fraction, weigh_by: str) -> Fraction:
        """Tokens per row over all rows of `epochs` epochs; 1 if there are none."""
        remainder, late = 0, len(self.whole)
        if self.remainder:
            remainder = size_of(self.remainder, weigh_by)
            late = max(self._rows_in(epochs) - self._first, 0)
        whole = Fraction(size_of(self.whole, weigh_by) * late, max(len(self.whole), 1))
        tokens = remainder + whole
        return tokens / (self._first + late) if tokens else Fraction(1)

    def repacked(self, used: int, whole: PackedRows) -> SourceCursor:
        """The source after `used` of its rows, with the remainder repacked like `whole`."""
        read = self.epochs(used)[self.names[0]]
        if self.remainder and used < self._first:
            table, row, epoch = self.remainder, used, self.epoch
        else:
            table, row = self.whole, used + self._shift
            epoch, within = divmod(row, max(len(self.whole), 1))
            if not within:
                return SourceCursor(whole, epoch=epoch, read=read)
            epoch += 1
        remainder = PackedRows(RemainingDocuments(table, row), whole.settings)
        return SourceCursor(whole, remainder, epoch, read)


_MOST = 80  # characters of a fact in the state


class Amendment(NamedTuple):
    """A change of the recipe; None for what stays."""

    tables: Mapping[str, PackedRows]
    """sources that are new or repacked"""
    phases: Sequence[Phase] | None
    epochs: Mapping[str, float] | None
    on_exhaustion: str | None

    def joined(self, later: Amendment) -> Amendment:
        """Both in one; the later one wins where both change the same."""
        return Amendment(
            {**self.tables, **later.tables},
            self.phases if later.phases is None else later.phases,
            {**(self.epochs or {}), **(later.epochs or {})} or None,
            later.on_exhaustion or self.on_exhaustion,
        )


class Revision(NamedTuple):
    """The rows of one recipe of a run, and the amendment that it begins with."""

    rows: MixedRows
    changes: Amendment | None
    """None for the first recipe"""
    facts: Mapping[str, Any]
    """the changes as plain JSON values, for the state"""

    @property
    def row(self) -> int:
        """The row at which it begins."""
        return self.rows.timeline.start

    @property
    def end(self) -> int:
        """The row after its last."""
        return self.row + len(self.rows)


def until(mixed: MixedRows, row: int) -> MixedRows:
    """The same rows up to `row`."""
    whole = mixed.timeline
    intervals = [
        replace(interval, rows=min(interval.rows, row - interval.start))
        for interval in whole.intervals
        if interval.start < row
    ]
    met = [exhaustion for exhaustion in whole.exhaustions if exhaustion.row < row]
    timeline = replace(whole, intervals=intervals, exhaustions=met, halted=None)
    return MixedRows(mixed.tables, mixed.recipe, timeline, mixed.seq_len, mixed.positions)


def revise(last: MixedRows, row: int, changes: Amendment) -> Revision:
    """The revision that begins at `row`, where `last` ends."""
    used, tables = last.used(row), dict(last.tables)
    for name, table in changes.tables.items():
        tables[name] = _following(name, tables.get(name), used.get(name, 0), table)
        if tables[name] is not last.tables.get(name):
            used = {**used, name: 0}
    first_phase, phases = _following_phases(last, row, changes.phases)
    recipe = Recipe(
        phases,
        {**last.recipe.epochs, **(changes.epochs or {})},
        changes.on_exhaustion or last.recipe.on_exhaustion,
        last.recipe.weigh_by,
    )
    recipe.check(list(tables))
    cursors = {name: _cursor(table) for name, table in tables.items()}
    mixed = mix_tables(
        tables,
        recipe,
        {name: size_of(cursor.whole, recipe.weigh_by) for name, cursor in cursors.items()},
        [c.budget(name, recipe, used.get(name, 0)) for name, c in cursors.items()],
        row,
        first_phase,
    )
    return Revision(mixed, changes, _facts(mixed, changes))


def _cursor(table: RowTable) -> SourceCursor:
    if isinstance(table, SourceCursor):
        return table
    assert isinstance(table, PackedRows)
    return SourceCursor(table)


def _following(name: str, was: RowTable | None, used: int, table: PackedRows) -> RowTable:
    """The rows of a source after `used` of its rows, packed like `table` from then on."""
    if was is None:
        return table
    cursor = _cursor(was)
    if cursor.whole.documents[0].fingerprint != table.documents[0].fingerprint:
        raise InputError(
            f"source {name!r} has other documents than before, so its untrained remainder is "
            "unknown; give the new documents another name"
        )
    return was if cursor.whole.settings == table.settings else cursor.repacked(used, table)


def _following_phases(
    last: MixedRows, row: int, given: Sequence[Phase] | None
) -> tuple[int, list[Phase]]:
    """The number of the next phase, and the phases that follow: those given or those remaining."""
    if given is None:
        first_phase, phases = _remaining_phases(last, row)
    else:
        begun = [i.phase + 1 for i in last.timeline.intervals if i.start < row]
        first_phase, phases = begun[-1] if begun else last.timeline.first_phase, list(given)
    if not phases:
        raise InputError(f"no phase is left at row {row}; pass the phases to follow")
    return first_phase, phases


def _remaining_phases(last: MixedRows, row: int) -> tuple[int, list[Phase]]:
    """The phases from `row` on, the first without its consumed rows, and their first number."""
    phases, begin = list(last.recipe.phases), last.timeline.start
    for number, (phase, budget) in enumerate(zip(phases, last.timeline.budgets, strict=True)):
        if budget is None or row < begin + budget:
            first = phase.after(max(row - begin, 0), last.seq_len)
            return last.timeline.first_phase + number, [first, *phases[number + 1 :]]
        begin += budget
    return last.timeline.first_phase + len(phases), []


def _facts(mixed: MixedRows, changes: Amendment) -> dict[str, Any]:
    """The changes of an amendment, for the state."""
    facts = {
        "phases": mixed.timeline.asked,
        "epochs": dict(mixed.recipe.epochs),
        "on_exhaustion": mixed.recipe.on_exhaustion,
    }
    found = {
        name: brief(fact, _MOST)
        for name, fact in facts.items()
        if getattr(changes, name) is not None
    }
    sources = {
        name: [table.documents[0].fingerprint[:8], table.settings.facts()]
        for name, table in changes.tables.items()
    }
    if sources:
        found |= {"seq_len": mixed.seq_len, "sources": brief(sources, _MOST)}
    return found
