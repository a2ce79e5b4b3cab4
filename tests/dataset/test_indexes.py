"""Records of shards, and columns of indexes: where each document lies, and where it came from."""

import hashlib
import json
import pickle
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import example, given, settings, strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset import index
from jaxdata.dataset.index import Member, ShardWriter, SourceIndex, find_member, line_ends
from jaxdata.dataset.manifest import COLUMNS, Amount, ShardEntry, SideEntry, SourceEntry
from jaxdata.dataset.records import MAX_RECORD_TOKENS, RecordSpec
from jaxdata.storage import open_store, zarr
from jaxdata.testing import write_dataset

SPEC = RecordSpec("uint16", True, 4)


def shard_entries(documents: list[int], name: str = "s") -> list[ShardEntry]:
    some: dict[str, Any] = {"records": 0, "tokens": 0, "sha256": "f"}
    return [
        ShardEntry(name=f"{name}{n}", documents=count, bytes=3 * n, **some)
        for n, count in enumerate(documents)
    ]


def written(
    folder: Path, lengths: list[int], shards: list[int], side: bool = False, **given: Any
) -> SourceIndex:
    """The index of a source of shards of so many documents, as it is read after it was written."""
    store, numbers = open_store(folder), np.arange(len(lengths), dtype=np.uint32)
    columns = {
        "length": np.array(lengths, np.uint32), "origin_file": numbers % np.uint32(3),
        "origin_row": numbers.astype(np.uint64) + np.uint64(5), "page": np.zeros(0, np.uint32),
    } | ({"w.page": np.arange(9, dtype=np.uint32)} if side else {}) | given  # fmt: skip
    sides = {"w": "int8"} if side else {}
    checksums = index.write_index(store, "train/web/index", columns, SPEC, sides)
    entry = SourceEntry(
        documents=len(lengths), tokens=sum(lengths), shards=shard_entries(shards), masked=True,
        fingerprint="f", inputs=["a", "b", "c"], parameters={}, statistics={}, checksums=checksums,
        side={"w": SideEntry(dtype="int8", shards=shard_entries(shards, "w"))} if side else {},
    )  # fmt: skip
    return SourceIndex(store, "train/web", entry, SPEC)


MORE = {"exact_hash": np.arange(6, dtype=np.uint64), "band_hash": np.arange(42, dtype=np.uint64)}
LINES = [{"url": "a" * n} for n in (3, 40, 0)]


def full(folder: Path) -> SourceIndex:
    """An index with every kind of column."""
    kept = np.frombuffer(b"".join(json.dumps(line).encode() + b"\n" for line in LINES), np.uint8)
    members = Member("x", "row", 0).columns(0, 5)
    pages = np.array([7, 8], np.uint32)
    more = MORE | members | {"deleted": np.array([1], np.uint64), "kept": kept, "page": pages}
    return written(folder, [4, 5, 6], [2, 1], True, **more)


def test_what_is_written_is_read_by_its_name_type_and_size(tmp_path: Path) -> None:
    found, plain = full(tmp_path / "a"), written(tmp_path / "b", [4, 5, 6], [2, 1])
    for name, said in found.entry.checksums.items():
        assert found.file(name) == f"train/web/index/{name}"
        array, (kind, size) = found.store.read_array(found.file(name)), found.columns[name]
        assert said == hashlib.sha256(array.tobytes()).hexdigest()
        assert array.dtype == kind
        assert size in (None, len(array)) or name in ("page", "w.page")
    unsaid = {name for name, (_, size) in found.columns.items() if size is None}
    assert unsaid == {"kept", "deleted", "member", "member_end", "member_file", "member_row"}
    with mock.patch.object(index, "PAGE_BYTES", 2):  # shards have 0 and 3 bytes
        assert found.columns["page"] == found.columns["w.page"] == (np.uint32, 2)
    assert {*plain.columns} == {*plain.entry.checksums} == {*COLUMNS}
    assert [found.kept(a, b) for a, b in ((0, 3), (1, 2), (2, 2))] == [LINES, LINES[1:2], []]
    assert (plain.kept(1, 3), plain.origin(0), plain.hashed) == ([{}, {}], ("a", 5, None), [])
    assert found.hashed == [*MORE]
    assert found.hashes("exact_hash").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert found.hashes("band_hash")[1].tolist() == [*range(14, 28)]
    assert found.lengths.tolist() == [4, 0, 6]
    side = found.sides["w"]
    assert (side.lengths.tolist(), side.spec) == ([4, 0, 6], RecordSpec("int8", False, 4))
    assert side.locate(np.array([1]))[1].tolist() == [40 + 40 + 3 + 4]
    origins = [("a", 5, Member("x", "row", 0)), ("b", 6, None), ("c", 7, None)]
    assert [found.origin(n) for n in range(3)] == origins
    assert side.file("page") == "train/web/index/w.page"
    assert pickle.loads(pickle.dumps(side.entry)) == side.entry


def changed(folder: Path, column: str, values: Any) -> SourceIndex:
    """The full one, of which a column is another."""
    found = full(folder)
    zarr.write(found.store, found.file(column), np.array([*values], found.columns[column][0]))
    return found


def test_lines_that_are_no_objects_are_damage(tmp_path: Path) -> None:
    for column, values in [("kept", b"[1]\n" * 3), ("kept_end", [9, 4, 12]), ("kept", b"{}\n" * 2)]:
        with pytest.raises(DatasetError, match=r"index of train/web is damaged at document 0 \("):
            changed(tmp_path, column, values).kept(0, 3)


@pytest.mark.parametrize("name", ["length", "anchor", "deleted", "tokens", "of deleted", "fewer"])
def test_lengths_are_compared_with_what_was_written(tmp_path: Path, name: str) -> None:
    found = full(tmp_path)
    sound: dict[str, Any] = {"deleted": Amount(documents=1, tokens=5)}
    other: dict[str, Any] = {
        "tokens": {"tokens": 14},
        "of deleted": {"deleted": Amount(documents=1, tokens=4)},
        "fewer": {"deleted": Amount(documents=2, tokens=5)},
    }.get(name, {"checksums": found.entry.checksums | {name: "f" * 64}})
    replace(found, entry=found.entry.model_copy(update=sound)).check_lengths()
    with pytest.raises(DatasetError, match="the index of train/web is not what was written: jaxd"):
        replace(found, entry=found.entry.model_copy(update=sound | other)).check_lengths()


def test_numbers_of_deleted_documents_ascend_within_the_source(tmp_path: Path) -> None:
    for numbers in ([1, 3], [1, 1], [1, 0]):
        with pytest.raises(DatasetError, match="is not what was written"):
            _ = changed(tmp_path, "deleted", numbers).lengths


def test_damaged_places_are_named(tmp_path: Path) -> None:
    found, many = full(tmp_path / "a"), written(tmp_path / "b", [1] * 24, [8, 16])
    zarr.write(many.store, many.file("anchor"), np.array([0, 900, 200], np.uint64))
    message = r"the index of train/web is damaged at document 16 \(ValueError\('its anchors fall'"
    with pytest.raises(DatasetError, match=message):
        many.locate(np.array([9, 16]))
    zarr.write(many.store, many.file("anchor"), np.array([0, 900, 900], np.uint64))
    assert replace(many).locate(np.array([8, 16]))[1].tolist() == [40, 40]
    fewer = found.entry.model_copy(update={"inputs": ["a"] * 2})
    with pytest.raises(DatasetError, match="is damaged at document 2 "):
        replace(found, entry=fewer).origin(2)


@given(st.binary(max_size=30), st.integers(1, 9))
def test_each_page_has_a_checksum(data: bytes, size: int) -> None:
    with mock.patch.object(index, "PAGE_BYTES", size):
        found = index.page_checksums(np.frombuffer(data, np.uint8))
        shard = ShardEntry(name="a", documents=0, records=0, tokens=0, bytes=len(data), sha256="")
        assert index.page_count([shard, shard]) == 2 * len(found)
    pages = [zlib.crc32(data[at : at + size]) for at in range(0, len(data), size)]
    assert (found.tolist(), found.dtype) == (pages, np.uint32)


# Records of these many bytes end just before, at and after a varint or a block boundary.
EDGES = [1, 2, 63, 64, 127, 128, 8_191, 8_192, 16_383, 16_384, 32_714, 32_736, 65_404, 65_500]


class Shards(NamedTuple):
    lengths: list[int]
    record_tokens: int
    shard_documents: int
    largest: int
    """id: it decides the type of all"""
    masked: bool


@st.composite
def cases(draw: st.DrawFn) -> Shards:
    record_tokens = draw(st.sampled_from([1, 3, 26, 100, 16_384, 70_000]))
    most = 400 if record_tokens < 100 else 70_000
    lengths = draw(st.lists(st.integers(1, 400) | st.sampled_from(EDGES), min_size=1, max_size=12))
    lengths = [min(n, most) for n in lengths] + draw(st.lists(st.integers(1, 9), max_size=30))
    some, largest = draw(st.sampled_from([1, 4, 9, 100])), draw(st.sampled_from([65_535, 70_000]))
    return Shards(lengths, record_tokens, some, largest, draw(st.booleans()))


@settings(deadline=None, max_examples=25)
@given(cases(), st.data())
@example(Shards([65_404, 65_500, 3], 70_000, 2, 65_535, True), None)
@example(Shards([MAX_RECORD_TOKENS, 3, MAX_RECORD_TOKENS - 1, 5], 2**20, 9, 70_000, False), None)
def test_records_are_those_of_the_official_reader_and_any_range_of_them_is_read(
    tmp_path_factory: pytest.TempPathFactory, case: Shards, data: st.DataObject | None
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
            if masks is not None:
                record += masks[number][at : at + every].astype(np.uint8).tobytes()
            expected.append(record)
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


def test_a_layout_unlike_array_record_s_is_noticed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(index, "WRITER_OPTIONS", "group_size:1,zstd")
    with ShardWriter(tmp_path / "shard", RecordSpec("uint16")) as writer:
        with pytest.raises(InputError, match="a document must have tokens"):
            writer.extend([np.empty(0, np.uint16)])
        writer.extend([np.arange(1000)])
    with pytest.raises(DatasetError, match="is not as expected"):
        writer.entry("shard")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)), max_size=9))
def test_a_member_is_found_by_counting_the_records_of_its_archive(runs: Any) -> None:
    """Runs of records of one member each: of which file, after a gap, so many."""
    entries, known, row, of = [], dict[tuple[int, int], Member](), 0, -1
    for number, (file, gap, count) in enumerate(sorted(runs, key=lambda run: run[0])):
        row, of = gap + (row if file == of else 0), file
        entries.append((first := Member(f"m\n{number}", "line", number)).columns(file, row))
        for n in range(count):
            known[file, row + n] = first._replace(number=number + n)
        row += count
    names = ("member", "member_file", "member_row")
    columns = {n: np.concatenate([np.empty(0, np.uint8), *(e[n] for e in entries)]) for n in names}
    find = {**columns, "member_end": line_ends(columns["member"].astype(np.uint8))}.__getitem__
    for (file, at), member in known.items():
        assert find_member(find, file, at) == member
    for file in {file for file, _ in known}:
        first_row = min(at for of, at in known if of == file)
        assert first_row == 0 or find_member(find, file, first_row - 1) is None
    assert find_member(find, 3, 0) is None
