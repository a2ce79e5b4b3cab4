"""Columns of indexes over small lists, against walking through files byte by byte."""

from __future__ import annotations

import hashlib
import json
import pickle
import zlib
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError
from jaxdata.dataset import shards
from jaxdata.dataset.index import (
    MEMBER_COLUMNS,
    Member,
    MemberTable,
    SourceIndex,
    write_index,
)
from jaxdata.dataset.manifest import COLUMNS, Amount, ShardEntry, SideEntry, SourceEntry
from jaxdata.dataset.records import RecordSpec
from tests.storage.memory_store import MemoryStore


class Case(NamedTuple):
    lengths: list[int]
    shards: list[int]
    """documents of each"""
    spec: RecordSpec


def shard_entries(case: Case, name: str = "s") -> list[ShardEntry]:
    return [
        ShardEntry(
            name=f"{name}{n}", documents=documents, records=0, tokens=0, bytes=3 * n, sha256="f"
        )
        for n, documents in enumerate(case.shards)
    ]


def written(case: Case, keep: bool = False, side: bool = False, **given: Any) -> SourceIndex:
    """The index of a source, as it is read after it was written."""
    store, documents = MemoryStore(), len(case.lengths)
    arrays = {"w": ("int8", np.arange(9, dtype=np.uint32))} if side else {}
    checksums = write_index(
        store, "train", "web",
        lengths=np.array(case.lengths, np.int64),
        origin_file=np.arange(documents) % 3,
        origin_row=np.arange(documents) + 5,
        spec=case.spec,
        side_pages=arrays,
        **{"pages": np.zeros(0, np.uint32)} | given,
    )  # fmt: skip
    entry = SourceEntry(
        documents=documents, tokens=sum(case.lengths), shards=shard_entries(case), fingerprint="f",
        inputs=["a", "b", "c"], parameters={"keep": ["url"]} if keep else {}, statistics={},
        checksums=checksums, masked=case.spec.masked,
        side={"w": SideEntry(dtype="int8", shards=shard_entries(case, "w"))} if side else {},
    )  # fmt: skip
    return SourceIndex(store, "train/web", entry, case.spec)  # type: ignore[arg-type]


MORE = {"exact_hash": np.arange(6, dtype=np.uint64), "band_hash": np.arange(42, dtype=np.uint64)}
CASE = Case([4, 5, 6], [2, 1], RecordSpec("uint16", True, 4))


LINES = [{"url": "a" * n} for n in (3, 40, 0)]


def full() -> SourceIndex:
    """An index with every kind of column."""
    kept = np.frombuffer(b"".join(json.dumps(line).encode() + b"\n" for line in LINES), np.uint8)
    table = MemberTable()
    table.add(0, 5, Member("x", "row", 0))
    more = MORE | table.columns() | {"deleted": np.array([1], np.uint64)}
    return written(CASE, True, True, kept=kept, pages=np.array([7, 8]), more=more)


def test_what_is_written_is_read_by_its_name_type_and_size() -> None:
    found, plain = full(), written(CASE)
    store: Any = found.store
    assert {*store.arrays} == {f"train/web/index/{name}" for name in found.entry.checksums}
    for name, said in found.entry.checksums.items():
        array, (kind, size) = store.arrays[found.file(name)], found.columns[name]
        assert said == hashlib.sha256(array.tobytes()).hexdigest()
        assert array.dtype == kind
        assert size in (None, len(array)) or name in ("page", "w.page")
    unsaid = {name for name, (_, size) in found.columns.items() if size is None}
    assert unsaid == {"kept", "deleted", *MEMBER_COLUMNS}
    with mock.patch.object(shards, "PAGE_BYTES", 2):  # shards have 0 and 3 bytes
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


@pytest.mark.parametrize(
    ("column", "values"),
    [("kept", list(b"[1]\n" * 3)), ("kept_end", [9, 4, 12]), ("kept", list(b"{}\n" * 2))],
)
def test_lines_that_are_no_objects_are_damage(column: str, values: list[int]) -> None:
    found = full()
    store: Any = found.store
    kind = store.arrays[found.file(column)].dtype
    store.arrays[found.file(column)] = np.array(values, kind)
    with pytest.raises(DatasetError, match=r"the index of train/web is damaged at document 0 \("):
        found.kept(0, 3)


@pytest.mark.parametrize("name", ["length", "anchor", "deleted", "tokens", "of deleted", "fewer"])
def test_lengths_are_compared_with_what_was_written(name: str) -> None:
    found = full()
    sound: dict[str, Any] = {"deleted": Amount(documents=1, tokens=5)}
    changed: dict[str, Any] = {
        "tokens": {"tokens": 14},
        "of deleted": {"deleted": Amount(documents=1, tokens=4)},
        "fewer": {"deleted": Amount(documents=2, tokens=5)},
    }.get(name, {"checksums": found.entry.checksums | {name: "f" * 64}})
    replace(found, entry=found.entry.model_copy(update=sound)).check_lengths()
    with pytest.raises(DatasetError, match="the index of train/web is not what was written: jaxd"):
        replace(found, entry=found.entry.model_copy(update=sound | changed)).check_lengths()


@pytest.mark.parametrize("numbers", [[3], [1, 1], [1, 0]])
def test_numbers_of_deleted_documents_ascend_within_the_source(numbers: list[int]) -> None:
    found = full()
    found.store.arrays[found.file("deleted")] = np.array(numbers, np.uint64)  # type: ignore[attr-defined]
    with pytest.raises(DatasetError, match="is not what was written"):
        _ = found.lengths


def test_damaged_places_are_named() -> None:
    found = written(CASE)
    many = written(Case([1] * 24, [8, 16], CASE.spec))
    many.anchors.setflags(write=True)
    many.anchors[1:] = [900, 200]
    message = r"the index of train/web is damaged at document 16 \(ValueError\('its anchors fall'"
    with pytest.raises(DatasetError, match=message):
        many.locate(np.array([9, 16]))
    many.anchors[1:] = [900, 900]
    assert many.locate(np.array([8, 16]))[1].tolist() == [40, 40]
    fewer = found.entry.model_copy(update={"inputs": ["a"] * 2})
    with pytest.raises(DatasetError, match="is damaged at document 2 "):
        replace(found, entry=fewer).origin(2)


@given(st.binary(max_size=30), st.integers(1, 9))
def test_each_page_has_a_checksum(data: bytes, size: int) -> None:
    with mock.patch.object(shards, "PAGE_BYTES", size):
        found = shards.page_checksums(np.frombuffer(data, np.uint8))
        shard = ShardEntry(name="a", documents=0, records=0, tokens=0, bytes=len(data), sha256="")
        assert shards.page_count([shard, shard]) == 2 * len(found)
    pages = [zlib.crc32(data[at : at + size]) for at in range(0, len(data), size)]
    assert (found.tolist(), found.dtype) == (pages, np.uint32)
