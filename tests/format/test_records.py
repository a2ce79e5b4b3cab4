from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import example, given
from hypothesis import strategies as st

import jaxdata
from jaxdata.errors import DatasetError, InputError
from jaxdata.format import index, records, shards
from jaxdata.format.bounds import MAX_RECORD_TOKENS
from jaxdata.format.records import BLOCK, RecordSpec, file_offset, without_headers
from jaxdata.format.shards import ShardWriter
from jaxdata.testing import write_dataset
from tests.format.strangers import little_memory

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
            writer.add(document, mask if masked else None)
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


def test_stream_offsets_leave_out_the_headers_of_all_blocks() -> None:
    place = np.arange(3 * BLOCK)  # of each byte in the file; what is no header is the stream
    stream = without_headers(place)
    assert len(stream) == 3 * (BLOCK - 24)
    assert np.array_equal(file_offset(np.arange(len(stream))), stream)


def test_a_layout_that_array_record_does_not_write_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "WRITER_OPTIONS", "group_size:1,zstd")
    with ShardWriter(tmp_path / "shard", RecordSpec("uint16")) as writer:
        writer.add(np.arange(1000))
    with pytest.raises(DatasetError, match="is not as expected"):
        writer.entry("shard")


def test_a_document_of_no_tokens_is_refused(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shard", RecordSpec("uint16")) as writer:
        with pytest.raises(InputError, match="a document must have tokens"):
            writer.add([])
        writer.add([1])


@given(st.data())
def test_any_range_of_a_stored_document_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 3_000), min_size=1, max_size=30))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    tokens = [rng.integers(0, 70_000, n) for n in lengths]
    masks = [rng.integers(0, 2, n) for n in lengths]
    dataset = write_dataset(
        tmp_path_factory.mktemp("dataset"),
        {"train/a": tokens},
        {"train/a": masks},
        record_tokens=data.draw(st.sampled_from([7, 500, 16_384])),
        shard_documents=data.draw(st.sampled_from([1, 4, 100])),
    )
    docs = dataset.source("train", "a")
    assert docs.lengths.tolist() == lengths
    for number, (document, mask) in enumerate(zip(tokens, masks, strict=True)):
        item = docs[number]
        assert np.array_equal(item["tokens"], document)
        assert np.array_equal(item["loss_mask"], mask.astype(bool))
        start = data.draw(st.integers(0, lengths[number]))
        stop = data.draw(st.integers(start, lengths[number]))
        assert np.array_equal(docs.read(number, start, stop), document[start:stop])


@given(
    st.lists(st.integers(1, 4_000), min_size=1, max_size=20),
    st.sampled_from([1, 7, 500, 2**16]),
    st.sampled_from(["uint16", "uint32"]),
    st.booleans(),
)
def test_sizes_of_large_records_are_computed_as_those_of_small_ones_are_looked_up(
    lengths: list[int], record_tokens: int, dtype: str, masked: bool
) -> None:
    spec = RecordSpec(dtype, masked, record_tokens)
    last = np.array(lengths) - 1
    looked_up = spec.stream_bytes(lengths), spec.token_offset(lengths, last)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_MOST_TABLED", 0)
        computed = spec.stream_bytes(lengths), spec.token_offset(lengths, last)
    assert np.array_equal(looked_up, computed)


def test_the_largest_records_take_no_memory() -> None:
    spec = RecordSpec("uint32", masked=True, record_tokens=MAX_RECORD_TOKENS)
    with little_memory():
        whole, rest = spec.stream_bytes([MAX_RECORD_TOKENS, MAX_RECORD_TOKENS + 1])
    assert (whole, rest) == (5 * 2**29 + 42 + 5, 5 * 2**29 + 42 + 5 + 5 + 42 + 1)


def test_nothing_of_a_document_may_be_read_first(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", {"train/a": [[1, 2, 3, 0], [3, 0]]}, record_tokens=2)
    for number, place in ((0, 0), (0, 2), (0, 4), (1, 2)):
        docs = dataset.source("train", "a")
        assert docs.read(number, place, place).tolist() == []
        assert docs[0]["tokens"].tolist() == [1, 2, 3, 0]


def test_documents_are_a_sequence(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", {"train/a": [[1, 2, 0], [3, 0]]})
    docs = dataset.source("train", "a")
    assert len(docs) == 2
    assert docs[-1]["tokens"].tolist() == [3, 0]
    assert docs.read(0, -2).tolist() == [2, 0]
    with pytest.raises(IndexError):
        docs[2]


@given(st.lists(st.integers(1, 400), max_size=60))
def test_anchors_do_not_depend_on_how_many_documents_are_taken_at_a_time(
    lengths: list[int],
) -> None:
    spec = RecordSpec("uint16", masked=True, record_tokens=100)
    before = np.cumsum([0, *spec.stream_bytes(lengths)])[:-1].tolist()
    with pytest.MonkeyPatch.context() as patch:
        for documents in (8, 16, 2**20):
            patch.setattr(index, "_CHUNK_DOCUMENTS", documents)
            assert index.anchors(np.array(lengths, np.uint32), spec).tolist() == before[::8]


def test_a_damaged_dataset_is_named(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", {"train/a": [list(range(1, 500))] * 900})
    shard = next((tmp_path / "d/train/a").glob("*.array_record"))
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    docs = dataset.source("train", "a")
    with pytest.raises(DatasetError, match=r"array_record ends before byte .* truncated"):
        docs[899]
    shard.unlink()
    with pytest.raises(DatasetError, match=r"array_record is missing: the dataset is incomplete"):
        jaxdata.open_dataset(tmp_path / "d").source("train", "a")[0]
