"""Records of shards and of archives: where each lies, and which one a place is in."""

from __future__ import annotations

from collections.abc import Iterator
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
from jaxdata.dataset.records import (
    MAX_RECORD_TOKENS,
    RecordSpec,
)
from jaxdata.dataset.shards import ShardWriter
from tests.builders import dataset

# Records of these many bytes end just before, at and after a varint or a block boundary.
EDGES = [1, 2, 63, 64, 127, 128, 8_191, 8_192, 16_383, 16_384, 32_714, 32_736, 65_404, 65_500]


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[int], int, bool]:
    lengths = draw(st.lists(st.one_of(st.integers(1, 400), st.sampled_from(EDGES)), max_size=12))
    record_tokens = draw(st.sampled_from([1, 3, 100, 16_384, 70_000]))
    return (
        [min(n, 2_000) if record_tokens < 100 else n for n in lengths],
        record_tokens,
        draw(st.booleans()),
    )


@given(documents(), st.integers(0, 2**32 - 1), st.sampled_from(["uint16", "uint32"]))
@example(([65_404, 65_500, 3], 70_000, True), 0, "uint16")
def test_the_official_reader_and_the_arithmetic_agree(
    tmp_path_factory: pytest.TempPathFactory,
    given_documents: tuple[list[int], int, bool],
    seed: int,
    dtype: str,
) -> None:
    lengths, record_tokens, masked = given_documents
    rng = np.random.default_rng(seed)
    spec = RecordSpec(dtype, masked, record_tokens)
    tokens = [rng.integers(0, 65_536, n).astype(dtype) for n in lengths]
    masks = [rng.integers(0, 2, n).astype(np.uint8) for n in lengths]
    path = tmp_path_factory.mktemp("shard") / "shard"
    with ShardWriter(path, spec) as writer:
        for document, mask in zip(tokens, masks, strict=True):
            writer.extend([document], [mask] if masked else None)
    entry = writer.entry("shard")  # raises where a record lies elsewhere
    expected = [
        document[start : start + record_tokens].tobytes()
        + (mask[start : start + record_tokens].tobytes() if masked else b"")
        for document, mask in zip(tokens, masks, strict=True)
        for start in range(0, len(document), record_tokens)
    ]
    reader = ArrayRecordReader(str(path))
    assert reader.num_records() == entry.records == len(expected)
    assert (reader.read(0, len(expected)) if expected else []) == expected
    assert (entry.documents, entry.tokens) == (len(lengths), sum(lengths))
    assert entry.bytes == path.stat().st_size


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


@settings(max_examples=25)
@given(st.data())
def test_any_range_of_a_stored_document_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 3_000), min_size=1, max_size=12))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    tokens = [rng.integers(0, 70_000, n) for n in lengths]
    masks = [rng.integers(0, 2, n) for n in lengths]
    sizes = {
        "record_tokens": data.draw(st.sampled_from([7, 500, 16_384])),
        "shard_documents": data.draw(st.sampled_from([1, 4, 100])),
    }
    folder = tmp_path_factory.mktemp("dataset")
    dataset(folder, {"a": tokens}, masks={"a": masks}, **sizes)
    docs = jaxdata.open_dataset(folder)["a"]
    assert docs.lengths.tolist() == lengths
    for number, (document, mask) in enumerate(zip(tokens, masks, strict=True)):
        start = data.draw(st.integers(0, lengths[number]))
        stop = data.draw(st.integers(start, lengths[number]))
        assert docs.read(number, start, start).tolist() == [], "and nothing before anything else"
        assert np.array_equal(docs.read(number, start, stop), document[start:stop])
        assert np.array_equal(docs[number]["loss_mask"], mask.astype(bool))


class Record(NamedTuple):
    """A record in the stream of a file."""

    document: int
    first: int
    """its first token"""
    tokens: int
    chunk: int
    """where its chunk's header begins"""
    begin: int
    """where its tokens do"""
    size: int


def walk(lengths: list[int], spec: RecordSpec) -> Iterator[Record]:
    """The records of a file, one after the other."""
    at = 40
    for document, length in enumerate(lengths):
        for first in range(0, length, spec.record_tokens):
            tokens = min(spec.record_tokens, length - first)
            size = tokens * {"uint16": 2, "uint32": 4, "int8": 1}[spec.dtype]
            size += tokens if spec.masked else 0
            varint, left = 1, size
            while left >= 128:
                varint, left = varint + 1, left // 128
            begin = at + 40 + 1 + 1 + varint
            yield Record(document, first, tokens, at, begin, size)
            at = begin + size


specs = st.builds(
    RecordSpec,
    st.sampled_from(["uint16", "uint32"]),
    st.booleans(),
    st.sampled_from([1, 3, 25, 26, 32, 63, 64, 100, 8_191, 16_384, MAX_RECORD_TOKENS]),
)


@given(st.lists(st.integers(1, 300) | st.just(9_000), min_size=1, max_size=6), specs)
def test_records_lie_where_walking_finds_them(lengths: list[int], spec: RecordSpec) -> None:
    lengths = [min(length, 40 * spec.record_tokens) for length in lengths]
    lengths += [spec.record_tokens] * (spec.record_tokens == MAX_RECORD_TOKENS)
    found = [*walk(lengths, spec)]
    of = [[each for each in found if each.document == n] for n in range(len(lengths))]
    assert spec.records(lengths).tolist() == list(map(len, of))
    assert spec.record_lengths(lengths).tolist() == [each.tokens for each in found]
    starts, sizes = spec.record_spans(lengths)
    assert starts.tolist() == [each.begin for each in found]
    assert sizes.tolist() == [each.size for each in found]
    whole = [each[-1].begin + each[-1].size - each[0].chunk for each in of]
    assert spec.stream_bytes(lengths).tolist() == whole
    item = 2 if spec.dtype == "uint16" else 4
    tokens = [(each, n) for each in found for n in {0, each.tokens // 2, each.tokens - 1}]
    asked = ([lengths[each.document] for each, _ in tokens], [each.first + n for each, n in tokens])
    before = [of[each.document][0].chunk for each, _ in tokens]
    of_tokens = [each.begin + n * item for each, n in tokens]
    of_masks = [each.begin + each.tokens * item + n for each, n in tokens]
    assert (spec.token_offset(*asked) + before).tolist() == of_tokens
    assert (spec.mask_offset(*asked) + before).tolist() == of_masks
    fields, sizes = spec.size_field(*asked)
    assert (fields + before).tolist() == [each.chunk + 32 for each, _ in tokens]
    assert sizes.tolist() == [each.size for each, _ in tokens]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4), st.booleans()),
        max_size=9,
    ),
    st.integers(0, 9),
)
def test_a_member_is_found_by_counting_the_records_of_its_archive(
    runs: list[tuple[int, int, int, bool]], saved: int
) -> None:
    """Runs of records of one member each: of which file, after a gap, so many, or as it goes on.

    After some of them the table goes on as a copy.
    """
    table, known, row, last = MemberTable(), dict[tuple[int, int], Member](), 0, None
    for number, (file, gap, count, goes_on) in enumerate(sorted(runs, key=lambda run: run[0])):
        if number == saved:
            columns, table = table.columns(), MemberTable()
            table.begin_with(columns)
        if last is not None and last[0] != file:
            row, last = 0, None
        member = Member(f"m{number}", "line", 1)
        if goes_on and last is not None:
            member = last[1]._replace(number=last[1].number + gap)
        row += gap
        for n in range(count):
            at = member._replace(number=member.number + n)
            table.add(file, row, at)
            known[file, row] = at
            row, last = row + 1, (file, at._replace(number=at.number + 1))
    columns = table.columns()
    assert {name: kind.dtype for name, kind in columns.items()} == index.MEMBER_COLUMNS
    assert len(table) == len(columns["member_row"]) <= len(runs) + 1
    for (file, at), member in known.items():
        assert find_member(columns, file, at) == member
    for file in {file for file, _ in known}:
        first = min(at for of, at in known if of == file)
        assert first == 0 or find_member(columns, file, first - 1) is None
    assert find_member(columns, 3, 0) is None
