"""What is untrained of an epoch, and a source's rows across repackings, against sets of targets."""

from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings as examples, strategies as st

import jaxdata
from jaxdata.rows.mixing.phases import Phase, Recipe
from jaxdata.rows.mixing.remaining import RemainingDocuments, SourceCursor
from jaxdata.rows.mixing.timeline import SourceBudget
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import Segments
from tests.rows.packing.test_evaluation import listed
from tests.rows.packing.test_packed_rows import STRATEGIES, packings

Target = tuple[int, int]
"""document, token"""


class Case(NamedTuple):
    documents: jaxdata.ArrayDocuments
    packed: list[PackedRows]
    """the same documents, packed in several ways"""
    where: list[float]

    @property
    def tokens(self) -> list[list[int]]:
        return [self.documents[n]["tokens"].tolist() for n in range(len(self.documents))]

    @property
    def targets(self) -> set[Target]:
        return {(n, at) for n, each in enumerate(self.tokens) for at in range(1, len(each))}


@st.composite
def cases(draw: st.DrawFn, strategies: tuple[str, ...] = STRATEGIES[:3]) -> Case:
    lengths = draw(st.lists(st.integers(1, 25), min_size=1, max_size=12))
    first = np.cumsum([1, *lengths]).tolist()
    tokens = [[*range(a, a + n)] for a, n in zip(first, lengths, strict=False)]
    masks = [[token % 3 > 0 for token in each] for each in tokens] if draw(st.booleans()) else None
    weights = [[token / 2 for token in each] for each in tokens]
    documents = jaxdata.ArrayDocuments(tokens, masks, name="web", side={"weight": weights})
    several = [draw(packings(strategies)) | {"block_bytes": 64} for _ in range(3)]
    packed = [jaxdata.pack(documents, **each).table for each in several]
    where = st.floats(0, 0.99) | st.just(1)
    return Case(documents, packed, [draw(where), draw(where)])


def targets_of(found: Segments, tokens: list[list[int]]) -> list[Target]:
    return [
        (document, at)
        for _, _, document, start, slots, context in listed(found)
        for at in range(start + context + 1, start + slots + 1)
        if at < len(tokens[document])
    ]


@examples(max_examples=20)
@given(cases(STRATEGIES))
def test_ranges_hold_what_the_rows_before_have_not_trained(case: Case) -> None:
    table = case.packed[0]
    first = int(case.where[0] % 1 * table.first_row(2))  # some row of the first two epochs
    rest, epoch = RemainingDocuments(table, first), int(first >= len(table))
    begin, end = table.first_row(epoch), table.first_row(epoch + 1)
    parts = np.arange(begin, first), np.arange(first, end)
    before, after = (targets_of(table.segments(rows), case.tokens) for rows in parts)
    ranges = [*zip(*(column.tolist() for column in rest.locate(np.arange(len(rest)))), strict=True)]
    told = [(document, at) for document, a, b in ranges for at in range(a + 1, b)]
    assert len({*told}) == len(told), "no target is there twice"
    assert not {*told} & {*before}
    assert {*after} <= {*told} <= case.targets
    if table.settings.strategy == "crop":
        assert all(stop == len(case.tokens[document]) for document, _, stop in ranges)
    else:
        assert {*told} == case.targets - {*before}
    long = [each for each in ranges if each[2] > each[1] + 1]
    assert all(each[:2] == (each[0], 0) and each[2] == 1 for each in {*ranges} - {*long})
    stops = {(document, stop - 1) for document, _, stop in long}
    assert not stops & {(document, start) for document, start, _ in long}, "neighbours are merged"
    assert rest.base is case.documents
    assert [*np.asarray(rest.lengths)] == [stop - start for _, start, stop in ranges]
    for number, (document, start, stop) in enumerate(ranges):
        whole, item = case.documents[document], rest[number]
        assert {*item} == {*whole}
        assert all(item[name].tolist() == whole[name][start:stop].tolist() for name in whole)


def test_remainders_have_names_of_their_own() -> None:
    documents = jaxdata.ArrayDocuments([[1] * 9] * 40, name="web")
    small = {"chunk_bytes": 16, "block_bytes": 64, "seq_len": 6}
    tables = [jaxdata.pack(documents, lanes=lanes, **small).table for lanes in (1, 4)]
    rests = [RemainingDocuments(table, first) for table in tables for first in (3, 5)]
    assert [rest.name for rest in rests] == ["web@3", "web@5"] * 2
    assert len({rest.fingerprint for rest in rests}) == 4


def cursors_of(case: Case) -> list[tuple[SourceCursor, int]]:
    """A source packed anew twice on the way, and the rows that each packing gave."""
    cursor, found = SourceCursor(case.packed[0]), []
    for table, where in zip(case.packed[1:], case.where, strict=True):
        some = int(where * 1.5 * (len(cursor.whole) + cursor.first))
        used = cursor.first if where == 1 else some  # all of what remained, and no more
        found.append((cursor, used))
        cursor = cursor.repacked(used, table)
    return [*found, (cursor, cursor.first + 2 * len(cursor.whole))]


def one_by_one(cursor: SourceCursor, row: int) -> tuple[PackedRows, int]:
    """The table of a row, and its number there."""
    first = len(cursor.remainder) if cursor.remainder is not None else 0
    if cursor.remainder is not None and row < first:
        return cursor.remainder, row
    return cursor.whole, cursor.whole.first_row(cursor.epoch) + row - first


@examples(max_examples=15)
@given(cases(), st.data())
def test_rows_of_a_cursor_are_the_remainder_and_then_whole_epochs(case: Case, data: Any) -> None:
    for cursor, _ in cursors_of(case):
        if not len(cursor.whole):
            continue
        row = data.draw(st.integers(0, cursor.first + 2 * len(cursor.whole)))
        counts = cursor.total(row + 1) - cursor.total(row)
        table, number = one_by_one(cursor, row)
        assert counts == table.total(number + 1) - table.total(number)
        held = defaultdict(set)
        for row in range(cursor.first + 1):
            table, number = one_by_one(cursor, row)
            there = table.segments(np.array([number]))
            for each in table.documents[0].in_base(there.document, there.start)[0].tolist():
                held[each].add(row)
        for document in range(len(case.documents)):
            assert cursor.rows_with(document, cursor.first + 1) == sorted(held[document])


@examples(max_examples=15)
@given(cases(), st.sampled_from([0, 0.5, 1, 1.25, 2, 3.5]))
def test_epochs_and_budgets_go_on_across_repackings(case: Case, epochs: float) -> None:
    read = Fraction(0)
    recipe = Recipe([Phase(weights={"web": 1})], {"web": epochs}, "halt")
    for cursor, used in cursors_of(case):
        rest, whole, table = cursor.first, len(cursor.whole), cursor.whole
        begun = -(-read // 1) if cursor.remainder is not None else read
        assert (cursor.read, cursor.epoch) == (read, begun)
        times = [read + (begun - read) * Fraction(row, rest) for row in range(rest)]
        for epoch in range(int(begun), int(begun) + 6):
            rows = table.first_row(epoch + 1) - table.first_row(epoch)
            times += [epoch + Fraction(row, rows) for row in range(rows)]
        assert [cursor.epochs(row) for row in range(len(times))] == times
        available = next((row for row, each in enumerate(times) if each >= epochs), 0)
        tokens, rows = cursor.whole.summary.trained_tokens, whole
        if rest:
            late = max(available - rest, 0)
            tokens = cursor.remainder.summary.trained_tokens + Fraction(tokens * late, whole)
            rows = rest + late
        density = Fraction(tokens) / rows if tokens else Fraction(1)
        assert cursor.budget("web", recipe, 5) == SourceBudget("web", available, density, 5)
        read = times[used] if times else read


@examples(max_examples=15)
@given(cases())
def test_every_target_is_trained_once_an_epoch_however_often_it_is_packed(case: Case) -> None:
    times: Counter[Target] = Counter()
    *_, (last, _) = cursors = cursors_of(case)
    epochs = last.epoch + 1
    for cursor, used in cursors:
        whole = [cursor.whole.first_row(each) for each in (cursor.epoch, epochs)]
        rows = used if cursor is not last else cursor.first + whole[1] - whole[0]
        placed = [one_by_one(cursor, row) for row in range(rows)]
        for table in cursor.tables:
            numbers = [number for one, number in placed if one is table]
            mine, [documents] = table.segments(np.array(numbers, np.int64)), table.documents
            document, start = documents.in_base(mine.document, mine.start)
            there = Segments(mine.row, mine.source, document, start, mine.slots, mine.context)
            times.update(targets_of_ranges(there, mine, documents))
    assert times == Counter(dict.fromkeys(case.targets, epochs))


def targets_of_ranges(there: Segments, here: Segments, documents: Any) -> list[Target]:
    """Targets in terms of the source, as far as the range that holds them goes."""
    pairs = zip(listed(there), listed(here), strict=True)
    return [
        (document, start + along)
        for (_, _, document, start, slots, context), (_, _, number, first, _, _) in pairs
        for along in range(context + 1, slots + 1)
        if first + along < int(documents.lengths[number])
    ]
