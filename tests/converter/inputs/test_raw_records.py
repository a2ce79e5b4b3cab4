"""What is between bytes and documents: records in runs, their hash, what they hold, and guards."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.changes import ContentHash, joined_content
from jaxdata.converter.inputs import parsing as raw_records
from jaxdata.converter.inputs import streams as compression
from jaxdata.converter.inputs.files import FileType
from jaxdata.converter.inputs.folders import glob_pattern
from jaxdata.converter.inputs.formats.base import (
    all_formats,
    counted,
    first_number,
    format_named,
    is_readable,
    is_table,
    kind_of,
    named_format,
)
from jaxdata.converter.inputs.parsing import (
    BadRecord,
    TextPiece,
    Unreadable,
    field_of,
    in_runs,
    joined_text_of,
    parse,
    parse_line,
    size_of,
    text_of,
    too_long,
)
from jaxdata.converter.inputs.streams import unpacked, unpacked_head
from jaxdata.converter.inputs.units import ReadSettings
from jaxdata.dataset.index import Member
from tests.converter.inputs.made import tar, zst

MARK = b"\xef\xbb\xbf"
RAW: Any = st.one_of(
    st.binary(max_size=6),
    st.builds(TextPiece, st.binary(max_size=6), st.booleans(), st.booleans()),
    st.builds(Unreadable, st.text("ab", max_size=3), st.none() | st.binary(max_size=6)),
    st.dictionaries(
        st.sampled_from("ab"),
        st.text(max_size=3) | st.integers(-(2**70), 2**70) | st.lists(st.integers(0, 9)),
    ),
)


def bytes_of(record: Any) -> bytes:
    if isinstance(record, bytes):
        return record
    if isinstance(record, TextPiece):
        return b"01"[record.begins :][:1] + b"01"[record.ends :][:1] + record.data
    if isinstance(record, Unreadable):
        return record.reason.encode() + (record.raw or b"")
    return rows_of([record])


def rows_of(rows: list[Any]) -> bytes:
    huge = any(abs(one) >= 2**63 for row in rows for one in row.values() if isinstance(one, int))
    if huge and any(
        not -(2**63) <= one < 2**64 for row in rows for one in row.values() if isinstance(one, int)
    ):
        return json.dumps(rows).encode()
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()


@given(st.lists(st.tuples(st.booleans(), st.lists(RAW, max_size=4)), max_size=4))
@settings(max_examples=100)
def test_a_hash_is_over_all_that_was_read(runs: list[tuple[bool, list[Any]]]) -> None:
    made, told = ContentHash(), b""
    for inside, run in runs:
        member = Member("a", "line", 3) if inside else None
        made.begin(member)
        told += b"('a', 'line', 3)" * inside
        made.add(run)
        told += b"%d\n" % len(run)
        rows = bool(run) and all(isinstance(one, dict) for one in run)
        told += rows_of(run) if rows else b"\n".join(map(bytes_of, run))
    assert made.hexdigest() == f"{zlib.crc32(told):08x}{zlib.adler32(told):08x}"


def test_hashes_of_arrays_are_those_of_their_lists_and_several_are_one() -> None:
    hashes = []
    for ids in ([1, 2], np.array([1, 2])):
        made = ContentHash()
        made.add([{"ids": ids}])
        hashes.append(made.hexdigest())
    assert hashes[0] == hashes[1]
    assert joined_content("0" * 16) == "0" * 16
    joined = joined_content("0" * 32)
    assert (len(joined), joined) == (16, "84e0c0eafaa95a34")


@given(st.lists(st.integers(0, 9)), st.integers(1, 12), st.integers(1, 4))
def test_runs_end_where_they_are_large_or_many(sizes: list[int], most: int, count: int) -> None:
    expected: list[list[int]] = []
    for size in sizes:
        full = not expected or sum(expected[-1]) >= most or len(expected[-1]) == count
        if full:
            expected.append([])
        expected[-1].append(size)
    with mock.patch.multiple(raw_records, _BYTES=most, _RECORDS=count):
        runs = [*in_runs(b"x" * size for size in sizes)]
    assert [[len(one) for one in run] for run, _ in runs] == expected  # type: ignore[arg-type]
    assert [size for _, size in runs] == [*map(sum, expected)]
    assert (raw_records._BYTES, raw_records._RECORDS) == (2**20, 256)


def test_records_have_the_size_of_their_texts_and_arrays() -> None:
    row = {"a": "xyz", "b": b"1234", "c": np.zeros(3, np.uint16), "d": 5, "e": None}
    sizes = {3: b"abc", 13: row, 2: TextPiece(b"ab"), 0: Unreadable("no", b"kept")}
    assert [size_of(one) for one in sizes.values()] == [*sizes]
    edges = [(begins, ends) for begins in (True, False) for ends in (True, False)]
    assert [TextPiece(b"", *one).whole for one in edges] == [True, False, False, False]
    assert TextPiece(b"").whole
    assert too_long(b"x" * 2_000, 1_500) == (
        "longer than 1,500 bytes (--max-record-bytes)",
        b"x" * 1_024,
    )


def reason(call: Callable[..., Any], *given: Any) -> Any:
    try:
        return call(*given)
    except BadRecord as bad:
        return bad.reason


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("a", {"b": {"c": "deep"}, "n": None}),
        ("a.b.c", "deep"),
        ("x.y", "dotted"),
        ("a.n", None),
        ("a.n.c", "no key 'a.n.c'"),
        ("a.b.c.d", "no key 'a.b.c.d'"),
        ("a.c", "no key 'a.c'"),
        ("b", "no key 'b'"),
    ],
)
def test_a_key_with_dots_goes_into_objects(key: str, found: Any) -> None:
    record = {"a": {"b": {"c": "deep"}, "n": None}, "x.y": "dotted", 3: 4}
    assert reason(field_of, record, key) == found
    if isinstance(found, str) and found.startswith("no key"):
        with pytest.raises(BadRecord) as caught:
            field_of(record, key)
        assert caught.value.keys == ("a", "x.y", "3")
        assert str(caught.value) == found


def test_texts_of_several_fields_are_joined() -> None:
    record = {"a": "x", "b": None, "c": b"\xc3\xa9", "d": 1}
    for keys, found in {
        ("a",): "x",
        ("a", "c"): "x-é",
        ("b", "a", "e"): "x",
        ("b", "b"): "'b', 'b' are null",
        ("b",): "'b' is null",
        ("e", "b", "f"): "no key 'e'",
        ("a", "d"): "'d' is not a string",
        ("d",): "'d' is not a string",
    }.items():
        assert reason(joined_text_of, record, keys, "-") == found
    assert reason(text_of, {"a": b"\xff"}, "a") == "not UTF-8"


@pytest.mark.parametrize("texts_only", [False, True])
def test_lines_and_texts_are_parsed(texts_only: bool) -> None:
    huge = 2.0**70 if texts_only else 2**70
    for raw, found in (
        (b'{"n": %d}' % 2**70, {"n": huge}),
        (b'{"n": 1}', {"n": 1}),
        (b" \t", None),
        (b"null", "JSON, but not an object"),
        (b"[1]", "JSON, but not an object"),
        (b"{", "not JSON"),
        (b'{"n": NaN', "not JSON"),
        (b"\xff", "not UTF-8"),
        (TextPiece("é".encode()), {"body": "é"}),
        (TextPiece(b"\xff"), "not UTF-8"),
        (Unreadable("why", None), "why"),
        ({"a": 1}, {"a": 1}),
    ):
        assert reason(parse, raw, "body", texts_only) == found
    assert type(parse_line(b'{"n": %d}' % 2**70, texts_only)["n"]) is type(huge)  # type: ignore[index]


def test_a_file_may_grow_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (compression.EXPANSION, compression.FREE) == (200, 2**28)
    monkeypatch.setattr(compression, "FREE", 5_000)
    for kind, pack in (("gz", lambda data: zlib.compress(data, wbits=31)), ("zst", zst)):
        for size, expansion, good in (
            (5_000, 0, True),
            (5_001, 0, False),
            (9_000, 9_000, True),
        ):
            packed = pack(b"x" * size)
            stream = unpacked(io.BytesIO(packed), kind, "here", expansion)  # type: ignore[arg-type]
            if good:
                assert stream.read() == b"x" * size
            else:
                with pytest.raises(InputError, match=f"^here expands to more than {expansion} t"):
                    stream.read()

    class AtTen(io.BytesIO):
        def tell(self) -> int:
            return 10

    monkeypatch.setattr(compression, "FREE", 0)
    for size in (30, 31):
        guarded = compression._Guarded(io.BytesIO(b"x" * size), AtTen(), "here", 3)
        if size == 30:
            assert guarded.read(99) == b"x" * 30
        else:
            with pytest.raises(InputError, match="here expands"):
                guarded.read(99)


def test_a_head_is_unpacked_as_far_as_it_goes() -> None:
    data = bytes(range(256)) * 40
    gz = zlib.compress(data, wbits=31)
    for kind, packed in (("gz", gz), ("zst", zst(data) + zst(data)), ("", data)):
        assert unpacked_head(packed, kind, 100)[:100] == data[:100]  # type: ignore[arg-type]
    assert len(unpacked_head(gz, "gz", 100)) == len(unpacked_head(zst(data), "zst", 100)) == 100
    assert unpacked_head(zst(data) + zst(b"more"), "zst", 2**16) == data + b"more"
    assert unpacked_head(b"none", "gz", 9) == unpacked_head(b"none of it", "zst", 9) == b""


def test_frames_with_the_largest_window_are_read() -> None:
    """As `zstd --long=31` makes them: a header that asks for 2 GiB, and a block as it is."""
    content = b"some text"
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    frame = b"\x28\xb5\x2f\xfd" + b"\0" + bytes([(31 - 10) << 3]) + block
    assert unpacked(io.BytesIO(frame * 2), "zst", "here").read() == content * 2
    assert unpacked_head(frame, "zst", 99) == content


HEADS: dict[str, dict[bytes, str]] = {
    "a.jsonl": {
        b"": "jsonl",
        b'{"a": 1}\n{"a": 2}\n': "jsonl",
        b'[{"a": 1}, {"a": 2}]': "json",
        MARK + b' \n[\n{"a": 1},\n{"a": 2}\n]\n': "json",
        b"[1]\n[2]\n": "jsonl",
        b'[{"a": 1}]\n[{"a": 2}]\n': "jsonl",
        b"[]": "json",
        b'[{"a":\n{"a": 1}\n': "jsonl",
        b'[{"a":\n{"a": 1}]\n': "json",
        b'[{"a": 1},\n{"a": 2},\n{"a":': "json",
        b"[{\n" + b"x\n" * 99 + b'{"a": 1}\n': "jsonl",
        b"[{\n" + b"x\n" * 100 + b'{"a": 1}\n': "json",
    },
    "a.json": {
        b"": "jsonl",
        b"[": "json",
        MARK + b" [1]": "json",
        b'{"a": 1}': "jsonl",
        b'{"a": 1}\n': "jsonl",
        b'{"a": 1}\n{"a": 2}': "jsonl",
        b'{"a":\n1}': "json",
        b'{"a": ': "jsonl",
        b"text\nx": "jsonl",
    },
    "a.txt": {b'{"a": 1}': "txt", b"[": "txt"},
}


def test_what_a_head_shows_is_told_from_what_a_name_says() -> None:
    for name, heads in HEADS.items():
        for head, expected in heads.items():
            assert kind_of(name, head) == FileType(expected), head
    line = b'{"a": 1}\n'
    for name, head, expected in (
        ("a.jsonl", zst(line), FileType("jsonl", "zst")),
        ("a.jsonl.gz", line, FileType("jsonl")),
        ("a.jsonl.GZ", b"damaged", FileType("jsonl", "gz")),
        ("a.json.zstd", b"", FileType("jsonl", "zst")),
        ("a.txt.gz", b" [a list]", FileType("txt")),
        ("a.tgz", b"", FileType("txt", "gz", archive=True)),
        ("a.tar.zst", tar(("a", b"", "")), FileType("txt", archive=True)),
        ("a.jsonl", zst(tar(("a", b"", ""))), FileType("txt", "zst", archive=True)),
        ("a.tar", b"x", FileType("txt", archive=True)),
        ("a.PY", b"x", FileType("txt")),
    ):
        assert kind_of(name, head, texts=("py",)) == expected, name
    for name, magic in (("parquet", b"PAR1"), ("arrow", b"ARROW1")):
        assert kind_of("a.jsonl", magic + b"..", b".." + magic) == FileType(name)
        assert kind_of("a.jsonl", magic + b"..", b"..") == FileType("jsonl")
        assert kind_of("a.jsonl", b"..", magic) == FileType("jsonl")
    archive = FileType("txt", archive=True)
    kinds = {one.name: FileType(one.name) for one in all_formats()}
    rows = {"json", "parquet", "arrow"}
    assert {name for name, kind in kinds.items() if not first_number(kind)} == rows
    assert {name for name, kind in kinds.items() if is_table(kind)} == {"parquet", "arrow"}
    assert (counted(archive), first_number(archive), is_table(archive)) == ("line", 1, False)
    assert counted(kinds["txt"]) == "piece"
    assert named_format("a.py", ("py",)) is format_named("txt")
    assert named_format("a.tar") is named_format("a.py") is named_format("a.tgz") is None
    read = ("a.jsonl", "a.JSON.gz", "a.jsonl.zst.tar", "x.tgz", "a.py", "gz", "a.jsonl.gz.gz")
    assert [*map(is_readable, read)] == [True] * 4 + [False] * 3


@given(st.lists(st.binary(max_size=5).map(lambda one: one.replace(b"\n", b"x")), max_size=9),
       st.integers(1, 20), st.booleans(), st.integers(1, 6))  # fmt: skip
def test_blocks_of_lines_are_whole_lines(
    given: list[bytes], room: int, ended: bool, limit: int
) -> None:
    data = b"\n".join(given) + b"\n" * ended
    read = ReadSettings(None, record_bytes=limit)
    blocks = [*format_named("jsonl").blocks(io.BytesIO(data), read, lambda: room)]
    for block, size in blocks[:-1]:
        assert block.endswith(b"\n")  # type: ignore[union-attr]
        assert size >= room
    data = data.removeprefix(MARK)
    found = [one for block, _ in blocks for one in format_named("jsonl").read_data(block, read)]  # type: ignore[arg-type]
    whole = [*format_named("jsonl").records(io.BytesIO(data), read)]
    assert [isinstance(one, Unreadable) for one in found] == [
        isinstance(one, Unreadable) for one in whole
    ]
    assert [one for one in found if isinstance(one, bytes)] == [
        one for one in whole if isinstance(one, bytes)
    ]
    if limit >= 5:
        assert b"".join(block for block, _ in blocks) == data  # type: ignore[misc]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("gs://b/**/*.txt", ["a.txt", "c/d/a.txt"], [".c/a.txt", "c/.a.txt", "c/a.txt/b", "a"]),
        ("gs://b/*.txt", ["a.txt", "*.txt"], ["c/a.txt", ".a.txt", "axtxt"]),
        ("gs://b/.*", [".a", ".git"], ["a"]),
        ("gs://b/a+?/[bc].txt", ["a+x/b.txt", "a+y/c.txt"], ["aa/b.txt", "a+/b.txt", "a+x/d.txt"]),
        ("gs://b/a.txt", ["a.txt"], ["axtxt", "a.txt/"]),
        ("gs://b/*/*a*b", ["x/xaab", "x/ab"], ["x/xa/b", "xab", "x/y/ab", "x/.ab"]),
        ("gs://b/a?b/x[!]a]y/[.*]", ["aab/xzy/*"], ["a/b/xzy/*", "aab/x/y/*", "aab/xay/*"]),
    ],
)
def test_globs_match_as_paths_do(pattern: str, matching: list[str], others: list[str]) -> None:
    for name in [*matching, *others]:
        found = glob_pattern(pattern).fullmatch(f"gs://b/{name}")
        assert bool(found) == (name in matching), name
