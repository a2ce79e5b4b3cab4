"""Packed rows of small sources of any kind, against what counting their segments one by one gives.

Blocks are tiny here, so that a few dozen documents make many of them.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.packing import planner
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import TokenCounts
from jaxdata.testing import write_dataset


class Piece(NamedTuple):
    document: int
    start: int
    slots: int
    context: int


Row = list[Piece]
Draw = st.DrawFn
Data = st.DataObject


class Case(NamedTuple):
    lengths: list[int]
    settings: dict[str, Any]
    masks: list[list[bool]] | None

    @property
    def table(self) -> PackedRows:
        documents = [[1] * length for length in self.lengths]
        source = jaxdata.ArrayDocuments(documents, self.masks, name="train/web")
        return jaxdata.pack(source, **self.settings).table


STRATEGIES = ("best_fit", "concat", "pad", "crop")


shapes = st.sampled_from([1, 1, 2, 3, 8]).flatmap(
    lambda multiple: st.integers(1, 24 // multiple).map(lambda n: (n * multiple, multiple))
)
"""`seq_len` and `multiple`"""


@st.composite
def packings(draw: Draw, strategies: Any = STRATEGIES, shape: Any = None) -> dict[str, Any]:
    """The arguments of `pack`."""
    strategy = draw(st.sampled_from(strategies))
    seq_len, multiple = shape or draw(shapes)
    overlap = draw(st.integers(0, seq_len // 2)) if strategy in ("best_fit", "pad") else 0
    given = {"seq_len": seq_len, "strategy": strategy, "overlap": overlap, "multiple": multiple}
    return given | {
        "reshuffle": draw(st.sampled_from(["rows", "documents"])),
        "seed": draw(st.integers(0, 9)),
        "max_segments": draw(st.none() | st.integers(1, 5)),
        "chunk_bytes": draw(st.sampled_from([0, 16, 64, 10_000])),
        "block_bytes": draw(st.sampled_from([64, 256, 10_000])),
        "lanes": draw(st.sampled_from([1, 2, 8])),
    }


@st.composite
def cases(draw: Draw, strategies: tuple[str, ...] = STRATEGIES) -> Case:
    lengths = draw(st.lists(st.integers(1, 40) | st.just(1), min_size=1, max_size=40))
    masks = [[bool((at * 7 + n) % 3) for at in range(n)] for n in lengths]
    return Case(lengths, draw(packings(strategies)), masks if draw(st.booleans()) else None)


def epoch_of(table: PackedRows, epoch: int) -> range:
    """The rows of an epoch."""
    return range(table.first_row(epoch), table.first_row(epoch + 1))


def rows_of(table: PackedRows, rows: Iterable[int]) -> list[Row]:
    """The segments of each row, as lists."""
    numbers = np.array([*rows], np.int64)
    found = table.segments(numbers)
    listed: list[Row] = [[] for _ in numbers]
    columns = (found.row, found.document, found.start, found.slots, found.context)
    for row, *piece in zip(*(column.tolist() for column in columns), strict=True):
        listed[row].append(Piece(*piece))
    assert (np.diff(found.row) >= 0).all()
    assert not found.source.any()
    return listed


def targets_of(piece: Piece, lengths: list[int]) -> list[int]:
    """The tokens that a segment trains: the one after each slot that is no masked context."""
    first, stop = piece.start + piece.context + 1, piece.start + piece.slots + 1
    return [token for token in range(first, stop) if token < lengths[piece.document]]


def counted(rows: list[Row], case: Case) -> TokenCounts:
    """Totals of some rows, segment by segment."""
    pieces = [piece for row in rows for piece in row]
    slots = sum(piece.slots for piece in pieces)
    return TokenCounts(
        rows=len(rows),
        slots=len(rows) * case.settings["seq_len"],
        padding=len(rows) * case.settings["seq_len"] - slots,
        overlap_tokens=sum(piece.context for piece in pieces),
        trained_tokens=sum(len(targets_of(piece, case.lengths)) for piece in pieces),
        begun=sum(piece.start == 0 for piece in pieces),
        finished=sum(_ends(piece, case.lengths[piece.document]) for piece in pieces),
    )


def _ends(piece: Piece, length: int) -> bool:
    """Whether the last token of its document is a target here, or the only slot of it."""
    slots = range(piece.start, piece.start + piece.slots)
    return 0 in slots if length == 1 else length - 2 in slots


@given(cases(), st.integers(0, 2))
@example(Case([9, 5, 3], {"seq_len": 8, "strategy": "crop"}, [[True] * n for n in (9, 5, 3)]), 0)
def test_every_target_is_trained_once_by_rows_within_their_measure(case: Case, epoch: int) -> None:
    table, lengths, asked = case.table, case.lengths, case.settings
    times: Counter[tuple[int, int]] = Counter()
    for row in rows_of(table, epoch_of(table, epoch)):
        assert row, "no row is empty"
        multiple = asked.get("multiple", 1)
        assert sum(-(-piece.slots // multiple) * multiple for piece in row) <= asked["seq_len"]
        assert len(row) <= (asked.get("max_segments") or asked["seq_len"])
        for piece in row:
            times.update((piece.document, token) for token in targets_of(piece, lengths))
    every = {(n, token) for n, length in enumerate(lengths) for token in range(1, length)}
    dropped = every - times.keys()
    assert times.keys() <= every
    assert set(times.values()) <= {1}
    assert asked["strategy"] == "crop" or not dropped
    if epoch == 0:
        assert table.summary.dropped_tokens == len(dropped)
    summed = table.total(table.first_row(epoch + 1)) - table.total(table.first_row(epoch))
    assert (summed.rows, summed.trained_tokens) == (len(epoch_of(table, epoch)), len(times))


@given(cases())
@example(Case([5], {"seq_len": 2, "strategy": "pad", "overlap": 1}, None))
def test_windows_begin_where_the_one_before_leaves_its_overlap(case: Case) -> None:
    by_document = defaultdict(list)
    for row in rows_of(table := case.table, range(len(table))):
        for piece in row:
            by_document[piece.document].append(piece)
    overlap = case.settings["overlap"]
    for document, pieces in by_document.items():
        pieces.sort(key=lambda piece: piece.start)
        assert (pieces[0].start, pieces[0].context) == (0, 0)
        for one, other in pairwise(pieces):
            assert (other.context, other.start) == (overlap, one.start + one.slots - overlap)
        if case.settings["strategy"] in ("best_fit", "pad"):
            assert all(piece.slots == case.settings["seq_len"] for piece in pieces[:-1])
            assert pieces[-1].start + pieces[-1].slots == case.lengths[document] - 1


@given(cases(), st.integers(1, 3))
def test_every_epoch_has_the_same_rows_unless_it_is_dealt_anew(case: Case, epoch: int) -> None:
    table = case.table
    assert table.first_row(1) == len(table)
    rows = Counter(map(tuple, rows_of(table, epoch_of(table, epoch))))
    if case.settings["reshuffle"] == "rows":
        assert table.first_row(epoch) == epoch * len(table)
        assert rows == Counter(map(tuple, rows_of(table, range(len(table)))))
        return
    as_rows = case._replace(settings=case.settings | {"reshuffle": "rows"}).table
    first, same = (rows_of(each, range(len(each))) for each in (table, as_rows))
    assert first == same, "the first epoch is that of rows"


@given(cases(), st.data())
def test_any_rows_in_any_order_are_those_rows_and_know_their_lanes(case: Case, data: Data) -> None:
    table = case.table
    if not len(table):
        return
    end = table.first_row(3)
    every = rows_of(table, range(end))
    rows = data.draw(st.lists(st.integers(0, end - 1), max_size=12))
    assert rows_of(case.table, rows) == [every[row] for row in rows]
    turns = [table.place_of(row)[1] % table.lanes if table.lanes > 1 else row for row in rows]
    keys = table.batch_key(np.array(rows, np.int64)).tolist()
    assert keys == [int(f"{turn:064b}"[::-1], 2) for turn in turns], "its lane comes first"
    if table.cycle:
        assert turns == [row % table.cycle[0] % table.cycle[1] for row in rows]
    window = data.draw(st.integers(1, 9))
    slots = [[slot for piece in every[row] for slot in range(piece.slots)] for row in rows]
    work = [sum(min(2 * slot + 1, 2 * window) for slot in row) for row in slots]
    assert table.row_work(np.array(rows, np.int64), window).tolist() == work


@given(cases(), st.data())
def test_totals_of_the_first_rows_are_those_of_their_segments(case: Case, data: Data) -> None:
    table, summary = case.table, case.table.summary
    whole = counted(rows_of(table, range(len(table))), case)
    for name in ("rows", "slots", "trained_tokens", "overlap_tokens", "padding"):
        assert getattr(summary, name) == getattr(whole, name), name
    used = summary.trained_tokens + summary.overlap_tokens + summary.boundary_tokens
    assert used + summary.padding == summary.slots
    assert summary.fill * summary.slots == pytest.approx(used)
    starts = [table.first_row(epoch) for epoch in range(5)]
    rows = data.draw(st.integers(0, starts[3]))
    assert table.token_counts(rows) == {"train/web": counted(rows_of(table, range(rows)), case)}
    epoch = sum(start <= rows for start in starts[1:]) if starts[1] else rows
    part = Fraction(rows - starts[epoch], starts[epoch + 1] - starts[epoch] or 1) if rows else 0
    assert table.epochs(rows)["train/web"] == epoch + part
    for epochs in (Fraction(0), epoch + Fraction(part), Fraction(1, 3), Fraction(5, 3)):
        whole, rest = int(epochs), epochs % 1
        wanted = starts[whole] + math.ceil(rest * (starts[whole + 1] - starts[whole]))
        assert table.rows_in(epochs) == wanted


@given(cases(), st.data())
def test_what_an_epoch_has_left_is_rows_of_begun_blocks_and_all_of_the_others(
    case: Case, data: Data
) -> None:
    table = case.table
    row = data.draw(st.integers(0, max(table.first_row(2) - 1, 0)))
    epoch = table.place_of(row)[0]
    deal, (rest, spans) = table.deal(epoch), table.remaining(row)
    every = np.arange(*map(table.first_row, (epoch, epoch + 1)))
    found, order = table.segments(every), deal.planner.order
    places = [order.position(document) for document in found.document.tolist()]
    block = np.searchsorted(deal.table.first, places, side="right") - 1
    blocks = [every[np.unique(found.row[block == each])].tolist() for each in range(len(deal))]
    begun = [rows for rows in blocks if any(each < row for each in rows)]
    assert rest.tolist() == sorted(each for rows in begun for each in rows if each >= row)
    left = [document for a, n in spans for document in order.documents_at(np.arange(a, a + n))]
    untouched, touched = (
        {piece.document for rows in some for row in rows_of(table, rows) for piece in row}
        for some in ([rows for rows in blocks if rows not in begun], begun)
    )
    assert untouched <= {*left}
    assert not touched & {*left}
    assert len({*left}) == len(left)


@given(cases(), st.data())
def test_the_rows_of_a_document_are_found(case: Case, data: Data) -> None:
    table = case.table
    document = data.draw(st.integers(0, len(case.lengths) - 1))
    rows = data.draw(st.none() | st.integers(0, table.first_row(3)))
    every = rows_of(table, range(len(table) if rows is None else rows))
    holding = [at for at, row in enumerate(every) if any(p.document == document for p in row)]
    assert table.rows_with("train/web", document, rows) == holding


CHUNKS = {"chunk_bytes": 200, "block_bytes": 900}
POOLS = {"chunk_bytes": 64, "block_bytes": 640}
ROWS: dict[str, dict[str, Any]] = {
    "403e35a5e7cb6562": {},
    "c096550e71f01fc1": {**CHUNKS, "lanes": 8, "seed": 7},
    "8ff5e72725f253b6": {**POOLS, "lanes": 1, "overlap": 5},
    "a28848538cf466e8": {**CHUNKS, "strategy": "concat"},
    "83d6bb663b7c35cb": {**CHUNKS, "strategy": "crop", "lanes": 2},
    "bebe6422a24c7d09": {"strategy": "pad", "overlap": 3, "max_segments": 2},
    "8f04d3512f45b9ab": {"reshuffle": "documents"},
    "31ca1971a38b0bd8": {**POOLS, "reshuffle": "documents", "lanes": 2},
    "24af9c13dd9f5036": {"multiple": 8, "overlap": 5},
    "133b8d0895108201": {"multiple": 4, "strategy": "concat"},
    "fff904e1626ba9b9": {"multiple": 4, "strategy": "crop"},
}
"""What comes, for ever, of some settings."""


@pytest.mark.parametrize("digest", ROWS)
def test_rows_of_any_epoch_stay_the_same(digest: str) -> None:
    """States of runs go on with them."""
    lengths = [1 + n * n * 31 % 83 for n in range(200)]
    table = Case(lengths, {"seq_len": 32, **ROWS[digest]}, None).table
    found = table.segments(np.append(np.arange(2 * len(table)), [5 * len(table) + 3, 1]))
    content = hashlib.sha256(b"".join(column.astype("<i8").tobytes() for column in found.columns))
    assert content.hexdigest()[:16] == digest


def test_epochs_are_planned_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[*range(1, 2 + n * n % 23), 0] for n in range(60)]
    dataset = write_dataset(tmp_path / "d", {"train/web": documents})
    planned: list[int] = []
    table = planner.Planner.table
    noted = lambda *given: planned.append(1) or table(*given)  # noqa: E731
    monkeypatch.setattr(planner.Planner, "table", noted)

    def mixed(**more: Any) -> Any:
        rows = jaxdata.pack(dataset.source("train", "web"), seq_len=16, reshuffle="documents")
        return jaxdata.mix({"web": rows}, epochs={"web": 2.5}, **more)

    first = mixed()
    assert len(planned) == 3
    assert len(mixed()) == len(first)
    assert [*first.epochs().values()] == [2.5]
    assert first.table.rows_with("web", 3)
    assert len(planned) == 3
    same = jaxdata.pack(dataset.source("train", "web"), seq_len=16)
    assert len(planned) == 3, "the first epoch is that of rows that are dealt once"
    assert len(same) == first.sources["web"].table.first_row(1)


def test_too_many_epochs_to_plan_are_refused() -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2]]), seq_len=64, reshuffle="documents")
    for asked in (
        lambda: rows.table.segments(np.array([2**62])),
        lambda: jaxdata.mix({"web": rows}, epochs={"web": 10_001.5}),
        lambda: rows.repeat(10_001),
    ):
        with pytest.raises(InputError, match="every epoch is planned, and at most 10,000; use res"):
            asked()
