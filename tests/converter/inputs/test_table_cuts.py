"""Where tables are cut, how much of one is in memory, and what their columns are."""

from __future__ import annotations

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
from jaxdata.converter.inputs.formats.tables import check_columns, in_slices, list_type
from jaxdata.converter.inputs.reading import cut, raw_records

READ = ReadSettings(None)
PARQUET: Any = reader_of(FileType("parquet"))


def write_groups(path: Path, sizes: list[int], stream: bool = False) -> InputFile:
    """An Arrow file with groups of so many bytes, a row each."""
    batches = [pa.record_batch({"a": np.arange(size).astype(np.uint8)}) for size in [0, *sizes]]
    kind = pa.ipc.new_stream if stream else pa.ipc.new_file
    with kind(str(path), batches[0].schema) as writer:
        for batch in batches[1:]:
            writer.write_batch(batch)
    (file,) = find_inputs(path)
    return file


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


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 15), st.booleans())
@settings(max_examples=60)
def test_groups_are_joined_to_units_huge_ones_and_those_of_objects_are_read(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], unit: int, stream: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "groups.arrow"
    file = write_groups(path, sizes, stream)
    remote = file._replace(version="1")
    with mock.patch.object(InputFile, "open", side_effect=lambda *_: path.open("rb")):
        here, there = (list(cut([one], READ, unit)) for one in (file, remote))
    expected = spans(sizes, unit)
    share = file.size / max(1, sum(sizes))
    for one, (start, stop, size) in zip(here, expected, strict=True):
        (part,) = one.parts
        assert (part.start, None if part.data else part.stop) == (start, stop)
        assert (one.size, one.text_bytes) == (int(size * share), size)
    found = [(one.parts[0].start, one.size, one.text_bytes) for one in there]
    assert found == [(start, size, size) for start, _, size in expected]
    for units in (here, there):
        rows = [row for one in units for part in one.parts for row in raw_records(file, part, READ)]
        assert [row["a"] for row in rows] == [n for size in sizes for n in range(size)]  # type: ignore[index, call-overload]


def test_a_table_may_be_as_large_as_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "EXPANSION", 5)
    for free, size, good in ((60, 60, True), (60, 61, False), (0, 50, True), (0, 51, False)):
        monkeypatch.setattr(tables, "FREE", free)
        file = write_groups(tmp_path / "a.arrow", [20, size - 20])._replace(size=10)
        for work in (
            lambda: cut([file], READ, 5),  # noqa: B023
            lambda: raw_records(file, FilePart(0), READ),  # noqa: B023
        ):
            if good:
                assert len([*work()]) > 0  # type: ignore[arg-type, operator]
            else:
                with pytest.raises(InputError, match=r"a\.arrow expands to more than "):
                    list(work())  # type: ignore[arg-type, operator]


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


def test_only_what_is_read_of_a_table_is_measured_in_slices_of_about_a_size(tmp_path: Path) -> None:
    wide = pa.record_batch({"a": pa.array([b"x" * 100] * 3, pa.binary(100))})
    for most, lengths in ((50, [1, 1, 1]), (199, [1, 1, 1]), (200, [2, 1]), (300, [3])):
        assert [one.num_rows for one in in_slices(wide, most)] == lengths
    rows = 3_000
    table = pa.table({"a": [*range(rows)], "ab": ["x"] * rows, "s": [{"a": 1, "b": 2}] * rows})
    assert [one.num_rows for one in in_slices(table.to_batches()[0], 2**20)] == [1_024] * 2 + [952]
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2_000)
    (file,) = find_inputs(tmp_path)
    with PARQUET.open(file) as opened:
        each = [PARQUET.sizes(opened, [name]) for name in ("a", "ab", "s.a", "s.b")]
        assert PARQUET.sizes(opened, []) == [0, 0]
        assert PARQUET.sizes(opened, ["s"]) == [*map(sum, zip(*each[2:], strict=True))]
        assert PARQUET.sizes(opened, None) == [*map(sum, zip(*each, strict=True))]
        size = each[0][0]
        for most, longest in ((tables.FREE, 1_024), (size * 7, 7), (1, 1)):
            batches = [*PARQUET.read(opened, range(1), ["a"], most)]
            assert max(one.num_rows for one in batches) == longest
            assert sum(one.num_rows for one in batches) == 2_000
            assert batches[0].schema.names == ["a"]
