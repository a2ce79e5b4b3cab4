"""Every format gives every record once, wherever it is cut; or says what is wrong."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.files import ReadSettings
from jaxdata.converter.inputs.formats.base import format_named
from jaxdata.converter.inputs.formats.tables import rows
from jaxdata.converter.inputs.parsing import BadRecord, parse, parse_line, text_of
from jaxdata.converter.inputs.reading import cut, raw_records
from tests.converter.here import run_here
from tests.converter.inputs.made import FORMATS, tar, zst
from tests.converter.test_convert import decoded, quarantine

READ = ReadSettings(("text",))
CHANCE = np.random.default_rng(0)
WORDS = ["".join(CHANCE.choice([*"abcdefghijklmnopqrst \nÄé語"], n)) for n in range(1, 300)]
WORDS += ["long " * 3_000, 'a\u2028b \U0001f9a5 {["\\]} \x00\r\n', "\U0001f9a5"]


def records_of(path: Path, unit_bytes: int) -> tuple[list[str], list[Any]]:
    files = find_inputs(path)
    units = list(cut(files, READ, unit_bytes))
    found = [
        parse(raw, "text")
        for unit in units
        for file, part in unit.reads
        for raw in raw_records(file, part, READ)
    ]
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


@pytest.mark.parametrize(
    ("name", "is_a"),
    {
        "lines.jsonl": "a.jsonl.gz",
        "lines.jsonl.gz": "a.jsonl.zst",
        "plain.jsonl.zst": "a.jsonl",
        "array.jsonl": "a.json",
        "table.jsonl": "groups.parquet",
        "lines.parquet.jsonl": "texts.tar.gz",
        "packed.tar": "a.tar.zst",
        "big.JSONL.GZ": "a.jsonl.gz",
        "a.tgz": "texts.tar.gz",
    }.items(),
)
def test_content_tells_what_a_name_does_not(name: str, is_a: str, tmp_path: Path) -> None:
    FORMATS[is_a](tmp_path / name, WORDS[:90])
    assert list(texts(tmp_path / name)) == WORDS[:90]


def test_objects_over_several_lines(tmp_path: Path) -> None:
    words = ["a", "b {", "]"]
    for some in (words, ["one"]):
        pretty = "\n".join(json.dumps({"text": word}, indent=2) for word in some)
        (tmp_path / "a.json").write_text(pretty)
        assert list(texts(tmp_path / "a.json")) == some
    (tmp_path / "a.json").write_text(json.dumps({"text": "one"}))
    assert list(texts(tmp_path / "a.json")) == ["one"]


def test_tables_are_cut_between_row_groups(tmp_path: Path) -> None:
    words = [f"text {i} " * 20 for i in range(1_000)]
    table = pa.table({"other": list(range(1_000)), "text": words})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100, compression="none")
    files = find_inputs(tmp_path)
    units = list(cut(files, READ, 10_000))
    assert 3 < len(units) <= 10
    assert records_of(tmp_path, 10_000)[0] == words
    spans = [(unit.parts[0].start, unit.parts[0].stop) for unit in units]
    assert [start for start, _ in spans[1:]] == [stop for _, stop in spans[:-1]]


def test_a_huge_group_is_read_a_little_at_a_time(tmp_path: Path) -> None:
    words = [os.urandom(2**9).hex() for _ in range(60_000)]
    pq.write_table(pa.table({"text": words}), tmp_path / "a.parquet", compression="none")
    files = find_inputs(tmp_path)
    pool, before = pa.default_memory_pool(), pa.total_allocated_bytes()
    peak = 0
    found = []
    for unit in cut(files, READ, 2**22):
        for part in unit.parts:
            found += [raw["text"] for raw in raw_records(files[0], part, READ)]
        peak = max(peak, pool.bytes_allocated() - before)
    assert found == words
    assert peak < 2**25, "bytes; the group has nearly 2**26"


def test_strings_of_every_kind_of_column_are_read(tmp_path: Path) -> None:
    plain = pa.array(["a", None, "é"])
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        pq.write_table(pa.table({"text": plain.cast(kind)}), tmp_path / "a.parquet")
        assert list(texts(tmp_path)) == ["a", "é"]
    pq.write_table(pa.table({"text": plain.dictionary_encode()}), tmp_path / "a.parquet")
    assert list(texts(tmp_path)) == ["a", "é"]


def test_a_column_beside_nested_ones_is_measured(tmp_path: Path) -> None:
    table = pa.table({"nested": [{"a": 1, "b": "x" * 9_999}] * 50, "text": ["short"] * 50})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    assert len(list(cut(find_inputs(tmp_path), READ, 1_000))) < 3
    assert list(texts(tmp_path)) == ["short"] * 50


@pytest.mark.parametrize("cut_at", [5, 200, -1])
def test_a_truncated_or_damaged_stream_is_an_error(tmp_path: Path, cut_at: int) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(os.urandom(500).hex().encode())[:cut_at])
    for unit_bytes in (100, 2**26):  # read by the parent, and by a worker
        with pytest.raises(InputError, match=r"a\.jsonl\.gz cannot be read to its end.*truncated"):
            records_of(path, unit_bytes)
    for name in ("a.jsonl.gz", "a.txt.gz", "a.parquet"):
        (tmp_path / name).write_bytes(b"this is neither gzip nor parquet")
        with pytest.raises(InputError, match=f"{name} cannot be read to its end.*damaged"):
            list(texts(tmp_path / name))
    noise = os.urandom(5_000).hex().encode()
    for name, packed in (("a.jsonl.gz", gzip.compress(noise)), ("a.jsonl.zst", zst(noise))):
        (tmp_path / name).write_bytes(packed[:12] + b"\xff" * 99 + packed[111:])
        with pytest.raises(InputError, match=rf"{name} cannot be read to its end"):
            list(texts(tmp_path / name))


def test_a_value_that_cannot_be_had_costs_its_row_alone(tmp_path: Path) -> None:
    text = pa.array([b"a", b"\xff", b"long" * 9, b"d"]).view(pa.string())
    times = pa.array([0, 1, 2, 2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"text": text, "at": times}), tmp_path / "a.parquet")
    report = run_here(tmp_path / "a.parquet", tmp_path / "out", keep="at", max_record_bytes=30)
    assert decoded(tmp_path / "out") == ["a"]
    assert report.quarantined == {
        "not UTF-8": 1,
        "longer than 30 bytes (--max-record-bytes)": 1,
        "a value that Python cannot hold (OverflowError)": 1,
    }
    line = b'{"text": "a"}\n{"text": "' + b"x" * 3_000 + b'"}\n'
    for name, packed in (("a.jsonl", line * 3), ("a.jsonl.gz", gzip.compress(line * 3))):
        (tmp_path / name).write_bytes(packed + packed)
        found = run_here(tmp_path / name, tmp_path / name[2:], unit_bytes=10, max_record_bytes=30)
        assert found.quarantined == {"longer than 30 bytes (--max-record-bytes)": 6}


def test_several_gzip_members_are_one_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n{"text"') + gzip.compress(b': "b"}\n'))
    assert list(texts(path)) == ["a", "b"]


def test_text_files_are_one_document_each(tmp_path: Path) -> None:
    files = {"a": b"\xef\xbb\xbfone\r\n\r\ntwo", "b": "é\n".encode(), "c": b"", "d": b" \n"}
    for name, data in files.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    assert list(texts(tmp_path)) == ["one\r\n\r\ntwo", "é\n", " \n"]


def test_a_column_that_is_missing_or_no_text_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": ["a"], "body": ["b"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no column 'text'; it has 'url', 'body', 'id': name one"):
        list(texts(tmp_path))
    with pytest.raises(InputError, match=r"column 'id' of .* is int64; expected strings"):
        list(texts(tmp_path, "id"))


def text_of_line(line: bytes, key: str) -> str | None:
    record = parse_line(line)
    return None if record is None else text_of(record, key)


@given(st.dictionaries(st.text(), st.text()), st.text(st.characters(codec="utf-8")), st.booleans())
def test_the_text_of_a_line_is_what_json_says(
    record: dict[str, str], text: str, ascii_only: bool
) -> None:
    line = json.dumps(record | {"text": text}, ensure_ascii=ascii_only)
    try:
        line.encode()
    except UnicodeEncodeError:
        return
    assert text_of_line(line.encode(), "text") == text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": "a"} {', "not JSON"),
        (b'["text"]', "JSON, but not an object"),
        (b'"text"', "JSON, but not an object"),
        (b'{"body": "a", "text ": 1}', "no key 'text'"),
        (b'{"text": null}', "'text' is null"),
        (b'{"text": 1}', "'text' is not a string"),
        (b'{"text": ["a"]}', "'text' is not a string"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "\xed\xa0\x80"}', "not UTF-8"),
        (rb'{"text": "\ud800"}', "'text' holds half a surrogate pair"),
    ],
)
def test_a_bad_line_says_why(line: bytes, reason: str) -> None:
    with pytest.raises(BadRecord) as caught:
        text_of_line(line, "text")
    assert caught.value.reason == reason


def test_good_lines_that_look_odd() -> None:
    assert text_of_line(rb'{"text": "\ud83e\udda5"}', "text") == "\U0001f9a5"
    assert text_of_line(b'{"text": ""}', "text") == ""
    assert text_of_line('{"text": "a\u2028b"}'.encode(), "text") == "a\u2028b"
    assert text_of_line(b" \t ", "text") is None
    with pytest.raises(BadRecord, match="'text' is null"):
        text_of({"text": None}, "text")


TABLE = 'url,text\nu1,plain\nu2,"two\nlines, ""quoted"""\n\nu3\nu4,"bad"x\nu5,größe\n'
TEXTS = ["plain", 'two\nlines, "quoted"', "größe"]


PACKED = {
    "a.csv": TABLE.encode(),
    "a.csv.gz": gzip.compress(b"\xef\xbb\xbf" + TABLE.encode()),
    "a.tsv.zst": zst(TABLE.replace(",", "\t").encode()),
    "a.tar": tar(("b/a.csv", TABLE.replace("\n", "\r\n").encode(), "")),
}


@pytest.mark.parametrize("name", PACKED)
def test_tables_of_values(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(PACKED[name])
    report = run_here(tmp_path / name, tmp_path / "out", keep="url")
    found = [text.replace("\r\n", "\n").replace("\t", ",") for text in decoded(tmp_path / "out")]
    assert found == TEXTS
    docs = jaxdata.open_dataset(tmp_path / "out").source("train", "web")
    assert [docs.kept(number) for number in range(3)] == [{"url": f"u{n}"} for n in (1, 2, 5)]
    assert [docs.origin(number)[1] for number in range(3)] == [2, 3, 8]
    bad = quarantine(tmp_path / "out")
    assert [(one["line"], one["reason"].partition(":")[0]) for one in bad] == [
        (6, "not as many values as the header has columns"),
        (7, f"malformed {'TSV' if 'tsv' in name else 'CSV'}"),
    ]
    assert sum(report.quarantined.values()) == 2


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,text\na,b\n")
    with pytest.raises(InputError, match=r"a\.csv .*its header names the column 'text' twice"):
        run_here(tmp_path / "a.csv", tmp_path / "out")
    (tmp_path / "b.csv").write_text("body\na\n")
    with pytest.raises(InputError, match=r"b\.csv:2 has 'body': name one of these with --text-key"):
        run_here(tmp_path / "b.csv", tmp_path / "out")
    (tmp_path / "c.csv").write_bytes(b"text\nok\nl\xf6st\n" + b"x" * 99 + b'\n"open\n')
    report = run_here(tmp_path / "c.csv", tmp_path / "out", max_record_bytes=50)
    assert decoded(tmp_path / "out") == ["ok"]
    assert report.quarantined == {
        "longer than 50 bytes (--max-record-bytes)": 1,
        "malformed CSV: unexpected end of data": 1,
        "not UTF-8": 1,
    }


VALUES = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\0\x1c\x1d\x1e\x85\u2028\u2029")
)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1), st.sampled_from(["csv", "tsv"]))
def test_values_stay_as_they_are(rows: list[tuple[str, str]], name: str) -> None:
    text = io.StringIO()
    delimiter = "," if name == "csv" else "\t"
    written = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    written.writerows([("text", "url"), *rows])
    data = text.getvalue().encode()
    found = list(format_named(name).records(io.BytesIO(data), ReadSettings(None)))
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
    read = rows(batch, ReadSettings(("ids",), arrays=("ids",)))
    values = [one["ids"] for one in read]
    assert [one.tolist() if isinstance(one, np.ndarray) else one for one in values] == (
        batch.column("ids").to_pylist()
    )
    if kind != "fixed" and not any(None in one for one in lists if one):
        assert all(one is None or isinstance(one, np.ndarray) for one in values)
