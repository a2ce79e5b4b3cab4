"""Reports of runs, against adding up the delivered rows one by one."""

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.report import RunReport, SourceReport
from jaxdata.storage.pages.read_counts import ReadCounts
from jaxdata.testing import distinct_documents

READS = ReadCounts(gets=3, bytes=700)


def test_a_report_is_a_table_of_its_sources_and_numbers_by_name() -> None:
    names = ("rows", "documents_begun", "documents_finished", "tokens", "padding")
    web = dict(zip(names, (1200, 50, 49, 1_234_567, 100), strict=True))
    other = dict(zip(names, (1, 5, 4, 0, 23), strict=True))
    sources = {"web": SourceReport(**web, epochs=1.25, share=0.75, planned=0.7)}
    sources["encyclopedia"] = SourceReport(**other, epochs=0.5, share=0.25, planned=None)
    of_run = {"step": 9, "next_row": 1300, "slots": 40_000, "passes": 3, "sources": sources}
    found = RunReport(**web, **of_run)
    lines = [
        "1,200 rows, 1,234,567 tokens, 0.25 % padding",
        "beginnings of 50 documents, ends of 49; parts come in any order",
        "source                 tokens      share    planned     begins       ends   epochs",
        "web                 1,234,567   75.000 %   70.000 %         50         49    1.250",
        "encyclopedia                0   25.000 %                     5          4    0.500",
    ]
    assert str(found).splitlines() == lines
    with_reads = replace(found, reads=READS)
    assert str(with_reads).splitlines() == [*lines, f"this host fetched from buckets: {READS}"]
    assert str(replace(found, slots=0)).startswith("1,200 rows, 1,234,567 tokens, 0.00 % padding")
    scalars = with_reads.scalars()
    assert len(found.scalars()) == len(scalars) - 8 == 7 + 6
    some = {"row": 1300, "pass": 3, "padding_share": 0.0025, "reads/gets": 3}
    some |= {"tokens/web": 1_234_567, "share/web": 0.75, "epochs/encyclopedia": 0.5}
    assert {name: scalars[name] for name in some} == some
    told = json.loads(json.dumps(with_reads.as_dict()))
    assert (told["sources"]["web"]["planned"], told["reads"]["bytes"]) == (0.7, 700)


WEB = jaxdata.ArrayDocuments(distinct_documents([5, 9, 3] * 30), name="web")
CODE = jaxdata.ArrayDocuments(distinct_documents([12, 1, 8] * 20, first=9_000), name="code")


SKIPS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=2)


@settings(max_examples=15)
@given(st.sampled_from([1, 8]), st.integers(5, 20), st.integers(0, 5), SKIPS)
def test_a_report_adds_up_the_delivered_rows(lanes: int, size: int, steps: int, skips: Any) -> None:
    """No document here is longer than a row: each segment is one, begun and finished."""
    pools = {"lanes": lanes, "chunk_bytes": 400, "block_bytes": 1600}
    rows = {each.name: jaxdata.pack(each, seq_len=16, **pools) for each in (WEB, CODE)}
    phases = [jaxdata.Phase(rows=24, weights={"web": 0.6, "code": 0.4})]
    phases += [jaxdata.Phase(weights={"web": 0.2, "code": 0.8})]
    mixed = jaxdata.mix(rows, phases=phases, on_exhaustion="renormalize")
    skipped = [(a, min(a + n, len(mixed))) for a, n in skips if a < len(mixed)]
    given_ = {"batch_size": size, "skip_rows": skipped, "extras": ("source",), "prefetch": 0}
    loader = jaxdata.Loader(mixed, **given_)
    batches = list(islice(loader, steps))
    found = loader.report()
    numbers = [int(row) for step in range(loader.step) for row in loader.batch_rows(step)]
    assert (found.step, found.next_row, found.rows) == (loader.step, loader.next_row, len(numbers))
    filled = [(batch["segment_ids"] > 0).any(axis=1) for batch in batches]
    counts = mixed.counts(loader.next_row)
    asked = Counter[str]()
    for each in mixed.intervals:
        for row in range(each.start, min(each.start + each.rows, loader.next_row)):
            trained = int(mixed[row]["loss_mask"].sum())
            asked.update({name: share * trained for name, share in each.shares.items()})
    for number, name in enumerate(loader.source_names):
        own = [batch["source"] == number for batch in batches]
        one = found.sources[name]
        both = [*zip(batches, own, strict=True)]
        assert one.tokens == sum(batch["loss_mask"][mine].sum() for batch, mine in both)
        assert one.rows == sum(mine.any(axis=1).sum() for mine in own)
        begun = sum(((batch["positions"] == 0) & mine).sum() for batch, mine in both)
        assert one.documents_begun == one.documents_finished == begun
        assert one.epochs == pytest.approx(counts[name] / len(rows[name]))
        assert one.share == (one.tokens / found.tokens if found.tokens else 0)
        if loader.next_row:
            assert one.planned == pytest.approx(asked[name] / sum(asked.values()))
    of_rows = [batch["segment_ids"][rows_] for batch, rows_ in zip(batches, filled, strict=True)]
    assert found.slots == 16 * len(numbers)
    assert found.padding == sum(int((ids == 0).sum()) for ids in of_rows)
    other = jaxdata.Loader(mixed, batch_size=3 * size, shard=(2, 3))
    other.set_state(loader.get_state())
    assert other.report() == found, "it is the same on every host and after any resume"
    assert loader.scalars()["tokens"] == found.tokens


def test_a_later_pass_is_reported_by_itself_and_mapped_rows_by_their_place() -> None:
    rows = jaxdata.pack(WEB, seq_len=16)
    loader = jaxdata.Loader(rows, batch_size=8, reiterable=True)
    whole = sum(int(batch["loss_mask"].sum()) for batch in loader)
    first = next(iter(loader))
    assert (loader.report().passes, loader.report().rows) == (1, 8)
    assert loader.report().tokens == int(first["loss_mask"].sum()) < whole
    mapped = jaxdata.Loader(rows.map(dict), batch_size=8)
    with pytest.raises(InputError, match="not transformed ones"):
        mapped.report()
    assert mapped.scalars() == {"row": 0, "pass": 0, "wait_seconds": 0}
