"""Every format gives every record once, wherever it is cut and however little is in memory."""

import csv
import gzip
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings, strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from jaxdata.converter.conversion import texts_with_places
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.files import FilePart, FileType, InputFile, ReadSettings
from jaxdata.converter.inputs.formats import tables
from jaxdata.converter.inputs.formats.tables import check_columns, in_slices, list_type, rows
from jaxdata.converter.inputs.parsing import Unreadable, parse, text_of
from jaxdata.converter.inputs.reading import cut, is_readable, kind_of, raw_records, reader_of
from tests.converter.here import decoded, run_here
from tests.converter.inputs.made import FORMATS, tar, zst

READ = ReadSettings(("text",))
MARK = b"\xef\xbb\xbf"
CHANCE = np.random.default_rng(0)
WORDS = ["".join(CHANCE.choice([*"abcdefghijklmnopqrst \nÄé語"], n)) for n in range(1, 300)]
WORDS += ["long " * 3_000, 'a\u2028b \U0001f9a5 {["\\]} \x00\r\n', "\U0001f9a5"]


def records_of(path: Path, unit_bytes: int) -> tuple[list[str], list[Any]]:
    units = list(cut(find_inputs(path), READ, unit_bytes))
    reads = [read for unit in units for read in unit.reads]
    found = [parse(raw, "text") for read in reads for raw in raw_records(*read, READ)]
    return [text_of(one, "text") for one in found if one is not None], units


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_every_text_once_in_order(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name, WORDS)
    assert list(texts(tmp_path / name)) == WORDS
    for unit_bytes in (1_000, 20_000, 2**26):
        found, units = records_of(tmp_path / name, unit_bytes)
        assert found == WORDS
        assert [unit.place for unit in units] == sorted(unit.place for unit in units)
        if unit_bytes == 20_000:
            assert len(units) > 1, "one file is work for many"
            assert max(unit.text_bytes for unit in units) < 2**17


@pytest.mark.parametrize(("name", "first"), [("a.jsonl", 1), ("a.json", 0), ("a.arrow", 0)])
def test_texts_are_numbered_as_origins_are(name: str, first: int, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name, WORDS)
    places = [number for _, number, _ in texts_with_places(find_inputs(tmp_path / name), ("text",))]
    assert places == list(range(first, first + len(WORDS)))


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "a.txt": lambda data: data,
    "a.txt.gz": lambda data: gzip.compress(data, mtime=0),
    "a.tar": lambda data: tar(("a.txt", data, "")),
}
GAPS = st.sampled_from([" ", "\n", "\n\n", "\r\n\r\n", "", "\n\n\n"])
PIECES = st.tuples(st.sampled_from(["a", "one", "Zwölf", "語", "\U0001f9a5", "x" * 40, "\r"]), GAPS)
TEXTS = st.lists(PIECES, min_size=1, max_size=150).map(lambda some: "".join(map("".join, some)))


@given(TEXTS, st.integers(16, 60), st.integers(1, 600), st.booleans())
@example("語" * 200, 16, 1, False)
@example("x" * 16 * 16, 16, 1, False)
@example("x" * (16 * 16 + 1), 16, 1, True)
@example("ab\n" * 200, 16, 1, False)
@example(("x" * 30 + "\n") * 40, 16, 1, False)
@settings(max_examples=60)
def test_a_huge_text_is_read_in_pieces_that_end_with_lines_where_some_are_near(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int, unit_bytes: int, marked: bool
) -> None:
    data = text.encode()
    expected, rest = [], data
    while len(data) + 3 * marked > 16 * size and len(rest) > size + size // 2:
        near = rest[size : size + size // 4]
        blank = re.search(rb"\n(?:\r?\n)+", near)
        place = blank.end() if blank else near.find(b"\n") + 1
        end = size + place
        while not place and rest[end] & 0xC0 == 0x80:  # no character is cut
            end += 1
        expected.append(rest[:end])
        rest = rest[end:]
    expected += [rest] * bool(rest)
    read = ReadSettings(None, piece_bytes=size)
    for name, way in WAYS.items():
        path = tmp_path_factory.getbasetemp() / name
        path.write_bytes(way(MARK * marked + data))
        units = [*cut(find_inputs(path), read, unit_bytes)]
        found = [raw for unit in units for one in unit.reads for raw in raw_records(*one, read)]
        assert [piece.raw for piece in found] == expected  # type: ignore[union-attr]


LINE = b'{"a": 1}\n'
HEADS: dict[tuple[str, str], list[bytes]] = {
    ("a.jsonl", "jsonl"): [
        *(b"", LINE * 2, b'{"a":\n' + LINE, b"[1]", b"[1]\n[2]\n", b'[{"a": 1}]\n[{"a": 2}]\n')
    ],
    ("a.jsonl", "json"): [
        *(b'[{"a": 1}, {"a": 2}]', MARK + b' \n[\n{"a": 1},\n{"a": 2}\n]\n', b"[]"),
        b'[{"a": 1},\n{"a": 2},\n{"a":',
    ],
    ("a.json", "jsonl"): [*(b"", b"[1]\n[2]", LINE, LINE * 2, b'{"a": ', b"text\nx")],
    ("a.json", "json"): [b"[", MARK + b" [1]", b'{"a":\n1}'],
    ("a.txt", "txt"): [LINE, b"["],
    ("a.txt.gz", "txt"): [b" [a list]"],
    ("a.PY", "txt"): [b"x"],
}


def test_what_a_head_shows_is_told_from_what_a_name_says() -> None:
    for (name, kind), heads in HEADS.items():
        for head in heads:
            assert kind_of(name, head, texts=("py",)) == FileType(kind), head
    for name, head, expected in (
        ("a.jsonl", zst(LINE), FileType("jsonl", "zst")),
        ("a.jsonl.gz", LINE, FileType("jsonl")),
        ("a.jsonl.GZ", b"damaged", FileType("jsonl", "gz")),
        ("a.json.zstd", b"", FileType("jsonl", "zst")),
        ("a.tgz", b"", FileType("jsonl", "gz", archive=True)),
        ("a.jsonl", zst(tar(("a", b"", ""))), FileType("jsonl", "zst", archive=True)),
        ("a.tar", b"x", FileType("jsonl", archive=True)),
    ):
        assert kind_of(name, head) == expected, name
    for name, magic in (("parquet", b"PAR1"), ("arrow", b"ARROW1")):
        for head, tail in ((magic, magic), (magic, b""), (b"", magic)):
            kind = name if head == tail else "jsonl"
            assert kind_of("a.jsonl", head + b"..", b".." + tail) == FileType(kind)
    read = ("a.jsonl", "a.JSON.gz", "a.jsonl.zst.tar", "x.tgz", "a.py", "gz", "a.jsonl.gz.gz")
    assert [*map(is_readable, read)] == [True] * 4 + [False] * 3


def test_a_truncated_or_damaged_stream_is_an_error(tmp_path: Path) -> None:
    noise = os.urandom(5_000).hex().encode()
    gz, frame = gzip.compress(noise), zst(noise)
    for name, data in (
        *((name, b"this is neither") for name in ("a.jsonl.gz", "a.txt.gz", "a.parquet")),
        *(("a.jsonl.gz", gz[:stop]) for stop in (5, 200, -1)),
        ("a.jsonl.gz", gz[:12] + b"\xff" * 99 + gz[111:]),
        ("a.jsonl.zst", frame[:12] + b"\xff" * 99 + frame[111:]),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        for unit_bytes in (100, 2**26):  # read by the parent, and by a worker
            with pytest.raises(InputError, match=f"{name} cannot be read to its end.*damaged"):
                records_of(path, unit_bytes)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n{"text"') + gzip.compress(b': "b"}\n'))
    assert list(texts(path)) == ["a", "b"], "several members are one stream"


def test_a_value_that_cannot_be_had_costs_its_row_alone(tmp_path: Path) -> None:
    plain = pa.array(["a", None, "é"])
    for column in (*map(plain.cast, (pa.large_string(), pa.binary())), plain.dictionary_encode()):
        pq.write_table(pa.table({"text": column, "id": [1, 2, 3]}), tmp_path / "a.parquet")
        assert list(texts(tmp_path)) == ["a", "é"]
    with pytest.raises(InputError, match=r"column 'id' of .* is int64; expected strings"):
        list(texts(tmp_path, "id"))
    text = pa.array([b"a", b"\xff", b"long" * 9, b"d"]).view(pa.string())
    times = pa.array([0, 1, 2, 2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"text": text, "at": times}), tmp_path / "a.parquet")
    report = run_here(tmp_path / "a.parquet", tmp_path / "out", keep="at", max_record_bytes=30)
    assert decoded(tmp_path / "out") == ["a"]
    assert report.quarantined == {
        "not UTF-8": 1,
        "longer than 30 bytes": 1,
        "a value that Python cannot hold (OverflowError)": 1,
    }


def test_rows_that_are_not_as_the_header_says_are_kept_in_part(tmp_path: Path) -> None:
    def found(data: bytes, columns: Any = None, limit: int = 2**20) -> list[Any]:
        settings = ReadSettings(columns, record_bytes=limit)
        return [*reader_of(FileType("csv")).records(io.BytesIO(data), settings)]

    data = MARK + b"text,url\n" + b"x" * 2_000 + b"\n" + b"\xff" * 3_000 + b",u\n\na,b\n"
    for columns, row in (
        (None, {"text": "a", "url": "b"}),
        (("url", "q"), {"url": "b"}),
        (("q",), {"text": "a", "url": "b"}),
    ):
        assert found(data, columns) == [
            b"",
            Unreadable("not as many values as the header has columns", b"x" * 1_024),
            Unreadable("not UTF-8", b"\xff" * 1_024),
            b"",
            row,
        ]
    data = b"a,b\nx,123\r\nx,12345\nx,123456\nx,1\n" + b"y" * 2**18 + b"\nz,2\n"
    kinds = [type(one) for one in found(data, limit=6)]
    assert kinds == [bytes, dict, dict, Unreadable, dict, Unreadable, dict]
    assert found(b'a\n"open\n')[1] == Unreadable("malformed CSV: unexpected end of data", None)
    for data, says in ((b"text,text\na,b\n", "names the column 'text' twice"), (b'"a"b\n', "mal")):
        (tmp_path / "a.csv").write_bytes(data)
        with pytest.raises(InputError, match=rf"a\.csv cannot be read to its end \(.*{says}"):
            list(texts(tmp_path))


ENDS = "\r\0\x1c\x1d\x1e\x85\u2028\u2029"
VALUES = st.text(st.characters(codec="utf-8", exclude_characters=ENDS))


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1), st.sampled_from(["csv", "tsv"]))
def test_values_stay_as_they_are(rows: list[tuple[str, str]], name: str) -> None:
    text = io.StringIO()
    delimiter = "," if name == "csv" else "\t"
    written = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    written.writerows([("text", "url"), *rows])
    data = text.getvalue().encode()
    found = list(reader_of(FileType(name)).records(io.BytesIO(data), ReadSettings(None)))
    assert [one for one in found if one != b""] == [{"text": a, "url": b} for a, b in rows]
    assert len(found) == data.count(b"\n")


LISTS = st.lists(st.none() | st.lists(st.integers(0, 9) | st.none(), max_size=4), max_size=12)


@given(LISTS, st.sampled_from(["list", "large", "fixed"]), st.data())
def test_arrays_of_a_slice_are_its_lists(lists: list[Any], kind: str, data: Any) -> None:
    if kind == "fixed":
        lists = [one and [1, *one, 2, 3, 4][:4] for one in lists]
        lists = [one if one and len(one) == 4 else None for one in lists]
    kinds = {"list": pa.list_(pa.int16()), "large": pa.large_list(pa.int64())}
    array = pa.array(lists, kinds.get(kind) or pa.list_(pa.int8(), 4))
    start = data.draw(st.integers(0, len(lists)))
    batch = pa.record_batch({"ids": array}).slice(start, data.draw(st.integers(0, len(lists))))
    values = [one["ids"] for one in rows(batch, ReadSettings(("ids",), arrays=("ids",)))]  # type: ignore[call-overload]
    assert [one.tolist() if isinstance(one, np.ndarray) else one for one in values] == (
        batch.column("ids").to_pylist()
    )
    if kind != "fixed" and not any(None in one for one in lists if one):
        assert all(one is None or isinstance(one, np.ndarray) for one in values)


EVERY = ReadSettings(None)
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
def test_groups_are_joined_to_units_and_huge_ones_are_read(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], unit: int, stream: bool
) -> None:
    file = write_groups(tmp_path_factory.getbasetemp() / "groups.arrow", sizes, stream)
    units = list(cut([file], EVERY, unit))
    share = file.size / max(1, sum(sizes))
    for one, (start, stop, size) in zip(units, spans(sizes, unit), strict=True):
        (part,) = one.parts
        assert (part.start, None if part.data else part.stop) == (start, stop)
        assert (one.size, one.text_bytes) == (int(size * share), size)
    rows = [row for one in units for part in one.parts for row in raw_records(file, part, EVERY)]
    assert [row["a"] for row in rows] == [n for size in sizes for n in range(size)]  # type: ignore[index, call-overload]


def test_a_table_may_reach_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "EXPANSION", 5)
    for free, size, good in ((60, 60, True), (60, 61, False), (0, 50, True), (0, 51, False)):
        monkeypatch.setattr(tables, "FREE", free)
        file = write_groups(tmp_path / "a.arrow", [20, size - 20])._replace(size=10)
        for work in (
            lambda: cut([file], EVERY, 5),  # noqa: B023
            lambda: raw_records(file, FilePart(0), EVERY),  # noqa: B023
        ):
            if good:
                assert len([*work()]) > 0  # type: ignore[arg-type, operator]
            else:
                with pytest.raises(InputError, match=r"a\.arrow expands to more than "):
                    list(work())  # type: ignore[arg-type, operator]


def test_a_key_names_a_column_or_a_field_in_one_and_lists_of_numbers_stay(tmp_path: Path) -> None:
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
            check_columns(file, ["i", key, "none either"])


def test_only_what_is_read_of_a_table_is_measured_in_slices_of_about_a_size(tmp_path: Path) -> None:
    rows = 3_000
    table = pa.table({"a": [*range(rows)], "ab": ["x"] * rows, "s": [{"a": 1, "b": 2}] * rows})
    assert [one.num_rows for one in in_slices(table.to_batches()[0], 2**20)] == [1_024] * 2 + [952]
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2_000)
    (file,) = find_inputs(tmp_path)
    with PARQUET.open(file) as opened:

        def sizes(columns: Any) -> list[int]:
            return [group.size for group in PARQUET.groups(opened, columns, tables.FREE)]

        each = [sizes([name]) for name in ("a", "ab", "s.a", "s.b")]
        assert sizes([]) == [0, 0]
        assert sizes(["s"]) == [*map(sum, zip(*each[2:], strict=True))]
        assert sizes(None) == [*map(sum, zip(*each, strict=True))]
        for most, longest in ((tables.FREE, 1_024), (each[0][0] * 7, 7), (1, 1)):
            batches = [*next(PARQUET.groups(opened, ["a"], most)).read()]
            assert max(one.num_rows for one in batches) == longest
            assert sum(one.num_rows for one in batches) == 2_000
            assert batches[0].schema.names == ["a"]
