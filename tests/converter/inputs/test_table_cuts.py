"""Where tables are cut, how much of one is in memory, and what their columns are."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.files import FilePart, FileType, InputFile, ReadSettings
from jaxdata.converter.inputs.formats import tables
from jaxdata.converter.inputs.formats.base import reader_of
from jaxdata.converter.inputs.formats.tables import TableFormat, check_columns, in_slices, list_type

READ = ReadSettings(None)
FREE = tables.FREE
PARQUET: Any = reader_of(FileType("parquet"))
ARROW: Any = reader_of(FileType("arrow"))


def batch_of(bytes_: int) -> Any:
    return pa.record_batch({"a": np.arange(bytes_).astype(np.uint8)})


class Told(TableFormat):
    """A table of groups of so many bytes, each one batch."""

    name = "told"

    def __init__(self, sizes: list[int], most: int = FREE) -> None:
        self.told, self.most = sizes, most

    @contextmanager
    def open(self, file: InputFile) -> Iterator[Any]:
        yield None

    def schema(self, opened: Any) -> Any:
        return pa.schema([])

    def sizes(self, opened: Any, columns: Any) -> list[int]:
        return self.told

    def read(self, opened: Any, groups: range, columns: Any, most: int) -> Iterator[Any]:
        assert (columns, most) == (None, self.most)
        yield from (batch_of(self.told[group]) for group in groups)


def spans(sizes: list[int], unit: int) -> list[tuple[int, int | None, int]]:
    """Where each block begins and ends, and its bytes; None for one that has its rows in it."""
    found: list[tuple[int, int | None, int]] = []
    group = 0
    while group < len(sizes):
        start, held = group, 0
        if sizes[group] >= 2 * unit:
            whole, rest = divmod(sizes[group], unit)
            found += [(group, None, size) for size in [unit] * whole + [rest] * bool(rest)]
            group += 1
            continue
        while group < len(sizes) and held < unit and sizes[group] < 2 * unit:
            held += sizes[group]
            group += 1
        found.append((start, group, held))
    return found


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 15), st.integers(0, 200))
@settings(max_examples=150)
def test_groups_are_joined_to_units_and_huge_ones_are_read(
    sizes: list[int], unit: int, on_disk: int
) -> None:
    file = InputFile("/none", "a", on_disk, FileType("told"), "", 0)
    blocks = [*Told(sizes).cut(3, file, READ, unit)]
    assert [
        (part.file, part.start, None if part.data else part.stop, text_bytes)
        for (part,), _, text_bytes in blocks
    ] == [(3, *span) for span in spans(sizes, unit)]
    total = max(1, sum(sizes))
    for (part,), size, text_bytes in blocks:
        assert size == int(text_bytes * (on_disk / total))
        if part.data:
            kept = [*PARQUET.records(io.BytesIO(part.data), READ)]  # type: ignore[arg-type]
            assert len(kept) == text_bytes
    assert len([*Told(sizes).read_part(file, FilePart(3), READ)]) == sum(sizes)
    if len(sizes) > 1:
        assert len([*Told(sizes).read_part(file, FilePart(3, 1, 2), READ)]) == sizes[1]


@pytest.mark.parametrize("cut", [False, True])
def test_a_table_may_be_as_large_as_the_limit(monkeypatch: pytest.MonkeyPatch, cut: bool) -> None:
    file = InputFile("/none", "a", 10, FileType("told"), "", 0)
    read = ReadSettings(None, expansion=5)
    for free, size, good in ((60, 60, True), (60, 61, False), (0, 50, True), (0, 51, False)):
        monkeypatch.setattr(tables, "FREE", free)
        table = Told([20, size - 20], max(free, 50))
        made = table.cut(0, file, read, 1_000) if cut else table.read_part(file, FilePart(0), read)
        if good:
            assert len([*made]) > 0
        else:
            with pytest.raises(InputError, match=r"^/none/a expands to more than 5 times its size"):
                list(made)


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 15))
def test_the_groups_of_an_object_are_read_once_in_the_units_of_a_file(
    sizes: list[int], unit: int
) -> None:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch_of(0).schema) as writer:
        for size in sizes:
            writer.write_batch(batch_of(size))
    file = InputFile("s3://b", "a", 9, FileType("arrow"), "", 0, version="1")
    with mock.patch.object(InputFile, "open", return_value=io.BytesIO(sink.getvalue())):
        blocks: list[Any] = [*ARROW.cut(2, file, READ, unit)]
    assert [(part.start, size, text_bytes) for (part,), size, text_bytes in blocks] == [
        (start, held, held) for start, _, held in spans(sizes, unit)
    ]
    rows = [row for ((part,), *_) in blocks for row in ARROW.records(io.BytesIO(part.data), READ)]
    assert [row["a"] for row in rows] == [n for size in sizes for n in range(size)]


def test_a_key_names_a_column_or_a_field_in_one_and_lists_of_numbers_are_kept(
    tmp_path: Path,
) -> None:
    inner = pa.struct([("b", pa.struct([("c", pa.int8())])), ("x.y", pa.int16())])
    others = {"b": pa.list_(pa.bool_()), "n": pa.int8(), "a": inner, "a.z": pa.string()}
    lists = {
        "i": (pa.list_(pa.int16()), "int16"),
        "f": (pa.large_list(pa.float32()), "float32"),
        "x": (pa.list_(pa.uint8(), 1), "uint8"),
    }
    kinds = {name: kind for name, (kind, _) in lists.items()} | others
    table = pa.table({name: pa.array([], kind) for name, kind in kinds.items()})
    pq.write_table(table, tmp_path / "a.parquet")
    (file,) = find_inputs(tmp_path)
    assert [list_type(file, name) for name in lists] == [kind for _, kind in lists.values()]
    for name in others:
        with pytest.raises(InputError, match=f"^column '{name}' of .*; expected lists of num"):
            list_type(file, name)
    assert [str(kind) for kind in check_columns(file, ["a.z", "a.b.c"])] == ["string", "int8"]
    for key in ("a.b.c.d", "a.q", "q", "z"):
        with pytest.raises(InputError, match=rf"no column '{key}'; it has 'i', .* with --text-key"):
            check_columns(file, ["i", key])


def test_slices_are_of_about_a_size() -> None:
    wide = pa.record_batch({"a": pa.array([b"x" * 100] * 3, pa.binary(100))})
    for most, lengths in ((50, [1, 1, 1]), (199, [1, 1, 1]), (200, [2, 1]), (300, [3])):
        assert [one.num_rows for one in in_slices(wide, most)] == lengths
    assert [one.num_rows for one in in_slices(batch_of(2_500), 2**20)] == [1_024, 1_024, 452]


def test_only_what_is_read_of_a_table_is_measured(tmp_path: Path) -> None:
    rows = 3_000
    table = pa.table({"a": [*range(rows)], "ab": ["x"] * rows, "s": [{"a": 1, "b": 2}] * rows})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2_000)
    (file,) = find_inputs(tmp_path)
    with PARQUET.open(file) as opened:
        each = [PARQUET.sizes(opened, [name]) for name in ("a", "ab", "s.a", "s.b")]
        assert PARQUET.sizes(opened, []) == [0, 0]
        assert PARQUET.sizes(opened, ["s"]) == [*map(sum, zip(*each[2:], strict=True))]
        assert PARQUET.sizes(opened, None) == [*map(sum, zip(*each, strict=True))]
        size = each[0][0]
        for most, longest in ((FREE, 1_024), (size * 7, 7), (1, 1)):
            batches = [*PARQUET.read(opened, range(1), ["a"], most)]
            assert max(one.num_rows for one in batches) == longest
            assert sum(one.num_rows for one in batches) == 2_000
            assert batches[0].schema.names == ["a"]
