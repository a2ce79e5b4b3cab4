"""Records of shards and of archives: where each lies, and which one a place is in."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset import index, shards
from jaxdata.dataset.index import Member, MemberTable, find_member
from jaxdata.dataset.records import MAX_RECORD_TOKENS, RecordSpec
from jaxdata.dataset.shards import ShardWriter
from jaxdata.testing import write_dataset

# Records of these many bytes end just before, at and after a varint or a block boundary.
EDGES = [1, 2, 63, 64, 127, 128, 8_191, 8_192, 16_383, 16_384, 32_714, 32_736, 65_404, 65_500]


class Case(NamedTuple):
    lengths: list[int]
    record_tokens: int
    shard_documents: int
    largest: int
    """id: it decides the type of all"""
    masked: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    record_tokens = draw(st.sampled_from([1, 3, 26, 100, 16_384, 70_000]))
    most = 400 if record_tokens < 100 else 70_000
    lengths = draw(st.lists(st.integers(1, 400) | st.sampled_from(EDGES), min_size=1, max_size=12))
    more = draw(st.lists(st.integers(1, 9), max_size=30))
    some = draw(st.sampled_from([1, 4, 9, 100]))
    largest = draw(st.sampled_from([65_535, 70_000]))
    return Case(
        [min(n, most) for n in lengths] + more, record_tokens, some, largest, draw(st.booleans())
    )


@settings(deadline=None, max_examples=25)
@given(cases(), st.data())
@example(Case([65_404, 65_500, 3], 70_000, 2, 65_535, True), None)
@example(Case([MAX_RECORD_TOKENS, 3, MAX_RECORD_TOKENS - 1, 5], 2**20, 9, 70_000, False), None)
def test_records_are_those_of_the_official_reader_and_any_range_of_them_is_read(
    tmp_path_factory: pytest.TempPathFactory, case: Case, data: st.DataObject | None
) -> None:
    rng = np.random.default_rng(sum(case.lengths))
    tokens = [rng.integers(0, case.largest + 1, n) for n in case.lengths]
    tokens[0][0] = case.largest
    masks = [rng.integers(0, 2, n) for n in case.lengths] if case.masked else None
    folder, sizes = tmp_path_factory.mktemp("dataset"), case._asdict()
    sizes = {name: sizes[name] for name in ("record_tokens", "shard_documents")}
    write_dataset(folder, {"train/a": tokens}, masks and {"train/a": masks}, **sizes)
    docs, dtype = jaxdata.open_dataset(folder)["a"], f"<u{2 if case.largest < 2**16 else 4}"
    assert docs.entry is not None
    expected, every = [], case.record_tokens
    for number, document in enumerate(tokens):
        for at in range(0, len(document), every):
            record = document[at : at + every].astype(dtype).tobytes()
            mask = (
                b"" if masks is None else masks[number][at : at + every].astype(np.uint8).tobytes()
            )
            expected.append(record + mask)
    found = list[bytes]()
    for shard in docs.entry.shards:
        reader = ArrayRecordReader(str(folder / shard.name))
        assert reader.num_records() == shard.records
        assert shard.bytes == (folder / shard.name).stat().st_size
        found += reader.read(0, shard.records)
    assert found == expected
    assert docs.lengths.tolist() == case.lengths
    places = st.integers(0, len(tokens) - 1)
    asked = data.draw(st.lists(places, max_size=6)) if data else range(len(tokens))
    for number in asked:
        length = case.lengths[number]
        start = data.draw(st.integers(0, length)) if data else length // 3
        stop = data.draw(st.integers(start, length)) if data else length
        assert docs.read(number, start, start).tolist() == [], "and nothing before anything else"
        assert docs.read(number, start, stop).tolist() == tokens[number][start:stop].tolist()
        if masks is not None:
            assert docs[number]["loss_mask"].tolist() == masks[number].astype(bool).tolist()


def test_a_layout_that_array_record_does_not_write_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "WRITER_OPTIONS", "group_size:1,zstd")
    with ShardWriter(tmp_path / "shard", RecordSpec("uint16")) as writer:
        with pytest.raises(InputError, match="a document must have tokens"):
            writer.extend([np.empty(0, np.uint16)])
        writer.extend([np.arange(1000)])
    with pytest.raises(DatasetError, match="is not as expected"):
        writer.entry("shard")


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)), max_size=9),
    st.integers(0, 9),
)
def test_a_member_is_found_by_counting_the_records_of_its_archive(
    runs: list[tuple[int, int, int]], saved: int
) -> None:
    """Runs of records of one member each: of which file, after a gap, so many.

    After some of them the table goes on as a copy.
    """
    table, known, row, of = MemberTable(), dict[tuple[int, int], Member](), 0, -1
    for number, (file, gap, count) in enumerate(sorted(runs, key=lambda run: run[0])):
        if number == saved:
            columns, table = table.columns(), MemberTable()
            table.begin_with(columns)
        row, of = gap + (row if file == of else 0), file
        table.add(file, row, first := Member(f"m{number}", "line", number))
        for n in range(count):
            known[file, row + n] = first._replace(number=number + n)
        row += count
    columns = table.columns()
    assert {name: kind.dtype for name, kind in columns.items()} == index.MEMBER_COLUMNS
    assert len(table) == len(runs)
    for (file, at), member in known.items():
        assert find_member(columns, file, at) == member
    for file in {file for file, _ in known}:
        first_row = min(at for of, at in known if of == file)
        assert first_row == 0 or find_member(columns, file, first_row - 1) is None
    assert find_member(columns, 3, 0) is None
