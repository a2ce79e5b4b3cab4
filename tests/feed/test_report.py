"""Reports of runs, against adding up the delivered rows one by one."""

from __future__ import annotations

import json
from collections import Counter
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
from jaxdata.errors import InputError
from jaxdata.feed.report import RunReport, SourceReport, make_report
from jaxdata.feed.schedule import Schedule
from jaxdata.format.storage import ReadCounts
from jaxdata.ragged import Ints
from jaxdata.rows.counts import TokenCounts
from jaxdata.rows.intervals import Interval
from jaxdata.rows.table import RowTable, Segments
from jaxdata.testing import distinct_documents


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
    assert found.documents == found.documents_begun == sum(row.begun for row in rows)
    assert found.documents_finished == sum(row.finished for row in rows)
    assert found.tokens == sum(row.tokens for row in rows)
    assert found.padding == sum(row.padding for row in rows)


def report(reads: ReadCounts | None = None, **fields: Any) -> RunReport:
    sources = {
        "web": SourceReport(1200, 50, 49, 1_234_567, 100, 1.25, 0.75, 0.7),
        "encyclopedia": SourceReport(34, 5, 4, 411_522, 23, 0.5, 0.25, None),
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
    expected = {
        "row": 1300,
        "pass": 3,
        "rows": 1234,
        "documents_begun": 1055,
        "documents_finished": 1053,
        "tokens": 1_646_089,
        "padding_share": 123 / 40_000,
        "tokens/web": 1_234_567,
        "share/web": 0.75,
        "epochs/web": 1.25,
        "tokens/encyclopedia": 411_522,
        "share/encyclopedia": 0.25,
        "epochs/encyclopedia": 0.5,
    }
    assert report(passes=3).scalars() == expected
    found = report(READS, passes=3).scalars()
    reads = {name: found.pop(name) for name in [*found] if name.startswith("reads/")}
    assert found == expected
    assert (reads["reads/gets"], reads["reads/bytes"], reads["reads/hits"]) == (3, 700, 0)
    assert len(reads) == 8
    told = json.loads(json.dumps(report(READS).as_dict()))
    assert (told["sources"]["web"]["planned"], told["reads"]["bytes"]) == (0.7, 700)


RNG = np.random.default_rng(5)
NAMES = ("web", "code", "wiki")
DOCUMENTS = {
    name: jaxdata.ArrayDocuments(
        distinct_documents(RNG.integers(1, 150, count)), name=f"train/{name}"
    )
    for name, count in zip(NAMES, (400, 250, 90), strict=True)
}


def mixed(strategy: str, overlap: int, lanes: int) -> Any:
    pools = {"lanes": lanes, "segment_bytes": 400, "pool_bytes": 1600}
    order: Any = pools if lanes else {"order": 1, "block": 64}
    rows = {
        name: jaxdata.pack(documents, seq_len=32, strategy=strategy, overlap=overlap, **order)
        for name, documents in DOCUMENTS.items()
    }
    phases = [
        jaxdata.Phase(rows=350, weights={"web": 0.6, "code": 0.3, "wiki": 0.1}),
        jaxdata.Phase(rows=450, weights={"web": 0.3, "code": 0.3, "wiki": 0.4}),
    ]
    epochs = {"web": 1, "code": 2, "wiki": 3.5}
    return jaxdata.mix(rows, phases=phases, epochs=epochs, on_exhaustion="renormalize")


class Count:
    """What batches hold by source, looked up in them slot by slot."""

    def __init__(self) -> None:
        self.tokens, self.begun, self.finished = (Counter() for _ in range(3))
        self.slots, self.rows = Counter(), Counter()

    def add(self, batch: Any) -> None:
        for row in range(len(batch["inputs"])):
            source = batch["source"][row]
            if source[0] < 0:
                continue  # completes the last batch
            name = NAMES[source[0]]
            begins = (batch["positions"][row] == 0) & (batch["segment_ids"][row] > 0)
            first = batch["inputs"][row][begins]
            starts = [
                DOCUMENTS[name].lengths.cumsum()[d - 1] + 1 if d else 1
                for d in batch["document"][row][begins].tolist()
            ]
            self.rows[name] += 1
            self.begun[name] += int((first == starts).sum())
            self.finished[name] += self._finished(batch, row, DOCUMENTS[name])
            self.tokens[name] += int(batch["loss_mask"][row].sum())
            self.slots[name] += int((batch["segment_ids"][row] > 0).sum())

    def _finished(self, batch: Any, row: int, documents: Any) -> int:
        """Documents whose last token is a target, or that are one token, which is an input."""
        there = batch["segment_ids"][row] > 0
        number = batch["document"][row][there]
        lasts = np.array([documents[int(d)]["tokens"][-1] for d in number])
        alone = (documents.lengths[number] == 1) & (batch["inputs"][row][there] == lasts)
        ends = (batch["targets"][row][there] == lasts) & batch["loss_mask"][row][there]
        return int((ends | alone).sum())


def check_sources(report: RunReport, count: Count) -> None:
    for name, source in report.sources.items():
        assert source.tokens == count.tokens[name]
        assert source.documents_begun == count.begun[name]
        assert source.documents_finished == count.finished[name]
        assert source.rows == count.rows[name]
        assert source.padding == 32 * count.rows[name] - count.slots[name]


@pytest.mark.parametrize(
    ("strategy", "overlap", "lanes"),
    [
        *(("best_fit", 9, 0), ("pad", 5, 0)),  # no lanes are order 1
        *(("best_fit", 9, 8), ("concat", 0, 512), ("crop", 0, 8)),
    ],
)
def test_it_is_what_was_delivered_at_every_step(strategy: str, overlap: int, lanes: int) -> None:
    rows = mixed(strategy, overlap, lanes)
    loader = jaxdata.Loader(rows, batch_size=30, extras=("source", "document"))
    count = Count()
    check_sources(loader.report(), count)
    for batch in loader:
        count.add(batch)
        check_sources(loader.report(), count)
    report = loader.report()
    assert (report.step, report.next_row, report.rows) == (len(loader), 800, 800)
    assert report.slots == 800 * 32
    for name, source in report.sources.items():
        assert source.epochs == pytest.approx(source.rows / loader.rows.sources[name].plan.rows)
    assert sum(source.planned or 0 for source in report.sources.values()) == pytest.approx(1)
    other = jaxdata.Loader(rows, batch_size=48, shard=(2, 3))
    other.set_state(loader.get_state())
    assert other.report() == report, "it is the same on every host and after any resume"
    with pytest.raises(InputError, match="not transformed ones"):
        jaxdata.Loader(rows.map(dict), batch_size=8).report()
