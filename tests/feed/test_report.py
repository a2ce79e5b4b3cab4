"""Reports of runs, against adding up the delivered rows one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.feed.report import RunReport, SourceReport, make_report
from jaxdata.feed.schedule import Schedule
from jaxdata.rows.table import Interval, RowTable, Segments, TokenCounts
from jaxdata.storage.pages.read_counts import ReadCounts
from tests.builders import documents


class Row(NamedTuple):
    """A row of one source, as a report counts it."""

    source: str
    begun: int
    finished: int
    tokens: int
    overlap: int
    padding: int

    @property
    def slots(self) -> int:
        return self.tokens + self.overlap + self.padding


class CountedRows(RowTable):
    """Rows of which only the counts are known; those of a further epoch are the same."""

    def __init__(self, rows: list[Row], starts: dict[int, dict[str, float]]) -> None:
        self.rows, self.starts = rows, starts
        self.documents = []

    def __len__(self) -> int:
        return len(self.rows)

    def identity(self) -> dict[str, Any]:
        return {}

    def segments(self, rows: Ints) -> Segments:
        raise AssertionError("no row is read to count it")

    @property
    def sources(self) -> Mapping[str, Any]:
        return {"web": range(4), "code": range(6)}

    @property
    def intervals(self) -> Sequence[Interval]:
        edges = [*self.starts, len(self.rows)]
        return [
            Interval(start, stop - start, 0, self.starts[start]) for start, stop in pairwise(edges)
        ]

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        found = dict.fromkeys(self.sources, TokenCounts())
        for number in range(rows):
            row = self.rows[number % len(self.rows)]
            one = TokenCounts(
                1, row.begun, row.slots, row.tokens, row.overlap, row.padding, row.finished
            )
            found[row.source] = TokenCounts(
                *(a + b for a, b in zip(astuple(found[row.source]), astuple(one), strict=True))
            )
        return found


FEW = st.integers(0, 3)
ROWS = st.lists(
    st.builds(Row, st.sampled_from(["web", "code"]), FEW, FEW, st.integers(0, 900), FEW, FEW),
    min_size=1,
    max_size=25,
)
SHARES = st.sampled_from([{"web": 0.25, "code": 0.75}, {"web": 1.0}, {"code": 0.5, "web": 0.5}])


@st.composite
def tables(draw: st.DrawFn) -> CountedRows:
    rows = draw(ROWS)
    later = {at for at in draw(st.sets(st.integers(1, 25), max_size=2)) if at < len(rows)}
    mixes = draw(st.booleans())
    return CountedRows(rows, {at: draw(SHARES) for at in sorted({0, *later})} if mixes else {})


def planned(table: CountedRows, row: int) -> dict[str, float]:
    """Of all tokens before a row, the parts that the weights in force gave each source."""
    asked = {"web": 0.0, "code": 0.0}
    for at in range(row):
        if not table.starts:
            return {}
        shares = [shares for start, shares in table.starts.items() if start <= at][-1]
        for name, share in shares.items():
            asked[name] += share * table.rows[at].tokens
    whole = sum(asked.values())
    return {name: tokens / whole if whole else 0.0 for name, tokens in asked.items()} if row else {}


@given(
    tables(),
    st.integers(1, 6),
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 24), st.integers(1, 6)), max_size=2),
    st.integers(0, 2),
)
def test_a_report_adds_up_the_rows_that_were_delivered(
    table: CountedRows, size: int, steps: int, skips: list[tuple[int, int]], passes: int
) -> None:
    total = len(table)
    schedule = Schedule(total, [(0, size)], [(a, a + n) for a, n in skips])
    delivered = []
    for span, _ in zip(schedule.spans(), range(steps), strict=False):
        delivered += schedule.batch_rows(schedule.step).tolist()
        schedule.advance(span)
    late = [(schedule.next_row, min(schedule.next_row + 2, total))]
    if late[0][0] < total:
        schedule.skip(late)
    row = schedule.next_row
    reads = ReadCounts(gets=passes)
    first = passes * total
    report = make_report(table, schedule, reads, passes, first)
    rows = [table.rows[number] for number in delivered]
    assert (report.step, report.next_row, report.rows) == (schedule.step, row, len(rows))
    assert (report.passes, report.reads) == (passes, reads)
    check(report, rows)
    whole = sum(each.tokens for each in rows)
    asked = planned(table, row)
    every = table.rows[:row]
    for name, source in report.sources.items():
        own = [each for each in rows if each.source == name]
        assert source.rows == len(own)
        check(source, own)
        assert source.share == sum(each.tokens for each in own) / (whole or 1)
        read = sum(each.source == name for each in every)
        assert source.epochs == float(Fraction(read, len(table.sources[name])))
        assert source.planned == (pytest.approx(asked[name]) if asked else None)
    slots = sum(each.slots for each in rows)
    assert report.slots == slots
    padding = sum(each.padding for each in rows)
    assert report.padding_share == (padding / slots if slots else 0.0)


def check(found: RunReport | SourceReport, rows: list[Row]) -> None:
    assert found.documents_begun == sum(row.begun for row in rows)
    assert found.documents_finished == sum(row.finished for row in rows)
    assert found.tokens == sum(row.tokens for row in rows)
    assert found.padding == sum(row.padding for row in rows)


def source(*values: Any) -> SourceReport:
    names = ["rows", "documents_begun", "documents_finished", "tokens", "padding"]
    return SourceReport(**dict(zip([*names, "epochs", "share", "planned"], values, strict=True)))


def report(reads: ReadCounts | None = None, **fields: Any) -> RunReport:
    sources = {
        "web": source(1200, 50, 49, 1_234_567, 100, 1.25, 0.75, 0.7),
        "encyclopedia": source(34, 5, 4, 411_522, 23, 0.5, 0.25, None),
    }
    numbers = {
        "step": 9,
        "next_row": 1300,
        "rows": 1234,
        "documents_begun": 1055,
        "documents_finished": 1053,
        "tokens": 1_646_089,
        "padding": 123,
        "slots": 40_000,
    }
    return RunReport(**(numbers | fields), sources=sources, reads=reads)


READS = ReadCounts(gets=3, bytes=700)


def test_a_report_is_a_table_of_its_sources() -> None:
    lines = [
        "1,234 rows, 1,646,089 tokens, 0.31 % padding",
        "beginnings of 1,055 documents, ends of 1,053; parts come in any order",
        "source                 tokens      share    planned     begins       ends   epochs",
        "web                 1,234,567   75.000 %   70.000 %         50         49    1.250",
        "encyclopedia          411,522   25.000 %                     5          4    0.500",
    ]
    assert str(report()).splitlines() == lines
    told = str(report(READS)).splitlines()
    assert told == [*lines, f"this host fetched from buckets: {READS}"]
    assert str(report(rows=1, tokens=1, documents_begun=1, slots=0)).splitlines()[:2] == [
        "1 row, 1 token, 0.00 % padding",
        "beginnings of 1 document, ends of 1,053; parts come in any order",
    ]


def test_scalars_are_numbers_by_name() -> None:
    found = report(READS, passes=3).scalars()
    assert {name: found[name] for name in ("row", "pass", "rows", "padding_share")} == {
        **{"row": 1300, "pass": 3, "rows": 1234, "padding_share": 123 / 40_000}
    }
    assert (found["tokens/web"], found["share/web"], found["epochs/encyclopedia"]) == (
        *(1_234_567, 0.75, 0.5),
    )
    assert (found["reads/gets"], found["reads/bytes"], len(found)) == (3, 700, 7 + 6 + 8)
    assert len(report().scalars()) == 7 + 6
    told = json.loads(json.dumps(report(READS).as_dict()))
    assert (told["sources"]["web"]["planned"], told["reads"]["bytes"]) == (0.7, 700)


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_loader_reports_what_it_delivered(lanes: int) -> None:
    lengths = np.random.default_rng(5).integers(1, 150, 300).tolist()
    pools = {"lanes": lanes, "chunk_bytes": 400, "block_bytes": 1600}
    rows = {
        name: jaxdata.pack(
            jaxdata.ArrayDocuments(documents(part), name=name), seq_len=32, overlap=9, **pools
        )
        for name, part in {"web": lengths[:220], "code": lengths[220:]}.items()
    }
    mixed = jaxdata.mix(rows, weights={"web": 0.6, "code": 0.4}, on_exhaustion="renormalize")
    loader = jaxdata.Loader(mixed, batch_size=30, extras=("source",))
    found = dict.fromkeys(rows, 0)
    for batch in loader:
        for number, name in enumerate(loader.source_names):
            found[name] += int(batch["loss_mask"][batch["source"] == number].sum())
        sources = loader.report().sources
        assert {name: source.tokens for name, source in sources.items()} == found
    other = jaxdata.Loader(mixed, batch_size=48, shard=(2, 3))
    other.set_state(loader.get_state())
    assert other.report() == loader.report(), "it is the same on every host and after any resume"
    assert loader.scalars()["tokens"] == sum(found.values())
    mapped = jaxdata.Loader(mixed.map(dict), batch_size=8)
    with pytest.raises(InputError, match="not transformed ones"):
        mapped.report()
    assert mapped.scalars() == {"row": 0, "pass": 0, "wait_seconds": 0}
