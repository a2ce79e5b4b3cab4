"""Where tables are cut, how much of one is in memory, and what their columns are."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.files import FilePart, FileType, InputFile, ReadSettings
from jaxdata.converter.inputs.formats import arrow, tables
from jaxdata.converter.inputs.formats.base import format_named
from jaxdata.converter.inputs.formats.tables import (
    Table,
    TableFormat,
    check_columns,
    column_of,
    cut_batches,
    in_slices,
    list_type,
)
from jaxdata.converter.inputs.parsing import Unreadable

READ = ReadSettings(None)
FREE = tables.FREE


def batch_of(bytes_: int) -> Any:
    return pa.record_batch({"a": np.arange(bytes_).astype(np.uint8)})


class Told(TableFormat):
    """A table of groups of so many bytes, each one batch."""

    name = "told"
    magic = b"TOLD"

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    @contextmanager
    def open(self, file: InputFile) -> Iterator[Table]:
        def read(groups: range, columns: Any, most: int) -> Iterator[Any]:
            assert (columns, most) == (None, FREE)
            yield from (batch_of(self.sizes[group]) for group in groups)

        yield Table(pa.schema([]), lambda _: self.sizes, read)


def spans(sizes: list[int], unit: int, per_slice: int) -> list[tuple[int, int | None, int]]:
    """Where each block begins and ends, and its bytes; None for one that has its rows in it."""
    found: list[tuple[int, int | None, int]] = []
    group = 0
    while group < len(sizes):
        start, held = group, 0
        if sizes[group] >= 2 * unit:
            rows = [min(per_slice, sizes[group] - n) for n in range(0, sizes[group], per_slice)]
            for size in rows:
                held += size
                if held >= unit:
                    found.append((group, None, held))
                    held = 0
            if held:
                found.append((group, None, held))
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
    found = []
    for (part,), _, text_bytes in blocks:
        assert part.file == 3
        found.append((part.start, None if part.data else part.stop, text_bytes))
    assert found == spans(sizes, unit, unit)
    total = max(1, sum(sizes))
    for (part,), size, text_bytes in blocks:
        assert size == int(text_bytes * (on_disk / total))
        if part.data:
            kept = [*format_named("parquet").read_data(part.data, READ)]
            assert len(kept) == text_bytes
    again = Told(sizes).read_part(file, FilePart(3, 0, None), READ)
    assert len([*again]) == sum(sizes)
    if len(sizes) > 1:
        assert len([*Told(sizes).read_part(file, FilePart(3, 1, 2), READ)]) == sizes[1]


@pytest.mark.parametrize("cut", [False, True])
def test_a_table_may_be_as_large_as_the_limit(monkeypatch: pytest.MonkeyPatch, cut: bool) -> None:
    file = InputFile("/none", "a", 10, FileType("told"), "", 0)
    read = ReadSettings(None, expansion=5)
    for free, size, good in ((60, 60, True), (60, 61, False), (0, 50, True), (0, 51, False)):
        monkeypatch.setattr(tables, "FREE", free)
        monkeypatch.setattr(f"{__name__}.FREE", max(free, 50))
        table = Told([20, size - 20])
        made = table.cut(0, file, read, 1_000) if cut else table.read_part(file, FilePart(0), read)
        if good:
            assert len([*made]) > 0
        else:
            with pytest.raises(InputError, match=r"^/none/a expands to more than 5 times its size"):
                list(made)


@given(st.integers(0, 3_000), st.integers(1, 1_500))
def test_slices_are_of_about_a_size(size: int, wanted: int) -> None:
    batch = batch_of(size)
    lengths = [one.num_rows for one in in_slices(batch, wanted)]
    most = min(wanted, 1_024)
    assert lengths == [most] * (size // most) + [size % most] * (size % most > 0)


def test_rows_that_are_larger_than_a_slice_come_one_by_one() -> None:
    batch = pa.record_batch({"a": pa.array([b"x" * 100] * 3, pa.binary(100))})
    for size, lengths in ((50, [1, 1, 1]), (199, [1, 1, 1]), (200, [2, 1]), (300, [3])):
        assert [one.num_rows for one in in_slices(batch, size)] == lengths
    blocks = [*cut_batches(1, 2, [batch], 150, 0.5)]
    assert [size for _, size, _ in blocks] == [int(held * 0.5) for *_, held in blocks]
    assert [parts[0][:3] for parts, *_ in blocks] == [(1, 2, None)] * len(blocks)


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 15))
def test_the_groups_of_a_stream_are_read_once_in_units(sizes: list[int], unit: int) -> None:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch_of(0).schema) as writer:
        for size in sizes:
            writer.write_batch(batch_of(size))
    opened = pa.BufferReader(sink.getvalue())
    blocks = [*arrow._cut_here(2, opened, READ, unit)]
    assert all(size == text_bytes for _, size, text_bytes in blocks)
    found = [(parts[0].start, text_bytes) for parts, _, text_bytes in blocks]
    expected = [(start, held) for start, _, held in spans(sizes, unit, unit)]
    assert [one for one in found if one[1]] == [one for one in expected if one[1]]
    rows = [
        row for ((part,), *_) in blocks for row in format_named("arrow").read_data(part.data, READ)
    ]  # type: ignore[arg-type]
    assert [row["a"] for row in rows] == [n for size in sizes for n in range(size)]  # type: ignore[index]


SCHEMA = pa.schema(
    [
        ("a", pa.struct([("b", pa.struct([("c", pa.int8())])), ("x.y", pa.int16())])),
        ("a.z", pa.string()),
    ]
)


def test_a_key_names_a_column_or_a_field_in_one() -> None:
    found = {
        key: str(column_of(SCHEMA, key)) for key in ("a.z", "a.b.c", "a.b.c.d", "a.q", "q", "z")
    }
    missing = dict.fromkeys(("a.b.c.d", "a.q", "q", "z"), "None")
    assert found == {"a.z": "string", "a.b.c": "int8"} | missing


def test_only_lists_of_numbers_are_kept(tmp_path: Path) -> None:
    kinds = {
        "i": (pa.list_(pa.int16()), "int16"),
        "f": (pa.large_list(pa.float32()), "float32"),
        "x": (pa.list_(pa.uint8(), 1), "uint8"),
        "b": (pa.list_(pa.bool_()), None),
        "s": (pa.list_(pa.string()), None),
        "n": (pa.int8(), None),
    }
    table = pa.table({name: pa.array([], kind) for name, (kind, _) in kinds.items()})
    pq.write_table(table, tmp_path / "a.parquet")
    (file,) = find_inputs(tmp_path)
    for name, (_, expected) in kinds.items():
        if expected:
            assert list_type(file, name) == expected
        else:
            says = f"^column '{name}' of .*; expected lists of numbers$"
            with pytest.raises(InputError, match=says):
                list_type(file, name)
    check_columns(file, ["i", "n"])
    with pytest.raises(InputError, match=r"no column 'q'; it has 'i', .* with --text-key$"):
        check_columns(file, ["i", "q"])


def test_only_what_is_read_of_a_table_is_measured(tmp_path: Path) -> None:
    rows = 3_000
    table = pa.table({"a": [*range(rows)], "ab": ["x"] * rows, "s": [{"a": 1, "b": 2}] * rows})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2_000)
    (file,) = find_inputs(tmp_path)
    with format_named("parquet").open(file) as opened:  # type: ignore[attr-defined]
        assert opened.sizes([]) == [0, 0]
        every = opened.sizes(None)
        each = [opened.sizes([name]) for name in ("a", "ab", "s.a", "s.b")]
        assert opened.sizes(["s"]) == [one + other for one, other in zip(*each[2:], strict=True)]
        assert every == [sum(sizes) for sizes in zip(*each, strict=True)]
        size = opened.sizes(["a"])[0]
        for most, longest in ((FREE, 1_024), (size * 7, 7), (1, 1)):
            batches = [*opened.read(range(1), ["a"], most)]
            assert max(one.num_rows for one in batches) == longest
            assert sum(one.num_rows for one in batches) == 2_000
            assert batches[0].schema.names == ["a"]


def test_rows_that_are_not_as_the_header_says_are_kept_in_part() -> None:
    data = b"\xef\xbb\xbftext,url\n" + b"x" * 2_000 + b"\n" + b"\xff" * 3_000 + b",u\n\na,b\n"
    for columns, row in (
        (None, {"text": "a", "url": "b"}),
        (("url", "q"), {"url": "b"}),
        (("q",), {"text": "a", "url": "b"}),
    ):
        found = format_named("csv").records(io.BytesIO(data), ReadSettings(columns))
        assert [*found] == [
            b"",
            Unreadable("not as many values as the header has columns", b"x" * 1_024),
            Unreadable("not UTF-8", b"\xff" * 1_024),
            b"",
            row,
        ]
    assert [*format_named("tsv").records(io.BytesIO(b""), READ)] == []
    limited = ReadSettings(None, record_bytes=6)
    data = b"a,b\nx,123\r\nx,12345\nx,123456\nx,1\n" + b"y" * 2**18 + b"\nz,2\n"
    kinds = [type(one) for one in format_named("csv").records(io.BytesIO(data), limited)]
    assert kinds == [bytes, dict, dict, Unreadable, dict, Unreadable, dict]
