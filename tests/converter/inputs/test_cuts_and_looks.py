"""Lines and values of streams, units of files and looks at them, against reading all at once."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from jaxdata.converter.inputs import files as identity
from jaxdata.converter.inputs import streams as scanning
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.files import (
    FilePart,
    FileType,
    InputFile,
    ReadSettings,
    Unit,
    next_multiple,
    unit_bytes_for,
)
from jaxdata.converter.inputs.parsing import Unreadable
from jaxdata.converter.inputs.reading import cut, raw_records

ENDS = st.sampled_from([b"\n", b"\r\n"])
LINE = st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"x").rstrip(b"\r"))


def too_long(line: bytes, limit: int) -> Unreadable:
    return Unreadable(f"longer than {limit:,} bytes (--max-record-bytes)", line[:1_024])


@settings(max_examples=60)
@given(st.lists(st.tuples(LINE, ENDS), max_size=6), st.booleans(), st.integers(1, 12))
def test_lines_longer_than_the_limit_are_read_past(
    given: list[tuple[bytes, bytes]], ended: bool, limit: int
) -> None:
    data = b"".join(line + end for line, end in given)
    if given and not ended:
        data = data[: -len(given[-1][1])]
    raw = data.split(b"\n")
    *whole, last = raw
    # Two bytes more are room for the end of a line, whatever that is.
    fits = [len(line) + 1 <= limit + 2 for line in whole] + [len(last) <= limit] * bool(last)
    expected = [
        line.removesuffix(b"\r") if good else too_long(line[: limit + 2], limit)
        for line, good in zip(raw, fits, strict=False)
    ]
    for chunk in (3, 2**18):
        stream = io.BytesIO(data)
        with mock.patch.object(scanning, "_CHUNK", chunk):
            assert [*scanning.lines(stream, limit)] == expected
        assert stream.read() == b""


@given(st.lists(LINE.filter(len), min_size=1, max_size=6), st.data())
def test_no_byte_behind_the_size_is_read(given: list[bytes], data: st.DataObject) -> None:
    content = b"".join(line + b"\n" for line in given)
    count = data.draw(st.integers(0, len(given)))
    size = sum(len(line) + 1 for line in given[:count])
    for limit in (1, 99):
        stream = io.BytesIO(content)
        found = [*scanning.lines(stream, limit, size)]
        assert len(found) == count
        assert stream.tell() == size
    part = [*scanning.lines(io.BytesIO(b"abcdef\n"), 99, 3)]
    assert part == [b"abc"]
    assert [*scanning.lines(io.BytesIO(b"abcdef\ngh"), 2, 5)] == [too_long(b"abcd", 2)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('[]{},"\\ a\u00e9', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"]a', max_size=2), inner),
    max_leaves=6,
)
SPACE = st.sampled_from([b"", b" ", b"\n\t", b" \r\n"])


@given(st.lists(st.tuples(SPACE, JSON, SPACE), max_size=4), SPACE, SPACE, st.booleans())
@settings(max_examples=60)
def test_the_elements_of_an_array_are_given_wherever_chunks_end(
    values: list[tuple[bytes, Any, bytes]], before: bytes, after: bytes, marked: bool
) -> None:
    pieces = [a + json.dumps(value).encode() + b for a, value, b in values]
    data = before + b"[" + b",".join(pieces) + b"]" + after
    data = b"\xef\xbb\xbf" * marked + data
    for chunk in (4, 5, 7, 2**18):
        with mock.patch.object(scanning, "_CHUNK", chunk):
            assert [*scanning.json_values(io.BytesIO(data), 999)] == pieces
            limit = 4
            found = [*scanning.json_values(io.BytesIO(data), limit)]
        assert found == [
            piece if len(piece) <= limit else too_long(piece[: limit + 1], limit)
            for piece in pieces
        ]


OBJECTS = st.lists(
    st.tuples(SPACE, st.dictionaries(st.text('{}[],"\\', max_size=3), JSON)), max_size=4
)


@given(OBJECTS, SPACE, st.integers(3, 9))
def test_objects_one_after_the_other_are_given(
    objects: list[tuple[bytes, dict[str, Any]]], after: bytes, chunk: int
) -> None:
    pieces = [space + json.dumps(one).encode() for space, one in objects]
    with mock.patch.object(scanning, "_CHUNK", chunk):
        found = [*scanning.json_values(io.BytesIO(b"".join(pieces) + after), 999)]
    assert [json.loads(piece) for piece in found] == [one for _, one in objects]  # type: ignore[arg-type]


def test_arrays_that_do_not_end_or_go_on_are_refused() -> None:
    def values(data: bytes) -> list[Any]:
        return [*scanning.json_values(io.BytesIO(data), 99)]

    for data in (b"[", b"[1", b"[1,", b'["]', b"[[]", b'[{"a": 1}'):
        with pytest.raises(EOFError, match=r"^the JSON array does not end$"):
            values(data)
    for data in (b"[1] 2", b"[]]", b"[1],", b'[1]\n{"a": 1}'):
        with pytest.raises(ValueError, match=r"^something follows the end of the JSON array$"):
            values(data)
    assert values(b"[1] \n\t\r ") == [b"1"]
    assert values(b"") == values(b" \n") == values(b"[ ]") == []
    assert values(b"[1,]") == [b"1", b""], "an empty value is the parser's to refuse"
    assert values(b"[,1]") == [b"", b"1"]
    assert values(b'{"a": 1') == [b'{"a": 1'], "as is an object that does not end"
    assert values(b'{"a": 1} x') == [b'{"a": 1}', b" x"]
    assert values(b"]{}") == [b"]{}"]
    assert values(b"1,2") == [b"1,2"]


READ = ReadSettings(None)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=12), st.integers(8, 40))
@settings(max_examples=100)
def test_small_files_are_grouped_and_larger_ones_are_alone(
    sizes: list[tuple[int, bool]], unit_bytes: int
) -> None:
    kinds = [FileType("txt", "gz" if packed else "") for _, packed in sizes]
    files = [
        InputFile("/none", f"{n:02}.txt", size, kind, "", 0)
        for n, ((size, _), kind) in enumerate(zip(sizes, kinds, strict=True))
    ]
    expected: list[list[int]] = []
    open_ended = False
    for number, (size, packed) in enumerate(sizes):
        held = [sizes[n][0] * (4 if sizes[n][1] else 1) for n in expected[-1]] if expected else []
        alone = size >= unit_bytes
        if open_ended and not alone and sum(held) + size * (4 if packed else 1) <= unit_bytes:
            expected[-1].append(number)
        else:
            expected.append([number])
        open_ended = not alone
    units = [*cut(files, READ, unit_bytes, first_file=7)]
    assert [[part.file for part in unit.parts] for unit in units] == expected
    for unit, numbers in zip(units, expected, strict=True):
        assert unit.name == f"{7 + numbers[0]:05}-00000"
        assert unit.place == (7 + numbers[0], 0)
        assert unit.size == sum(sizes[n][0] for n in numbers)
        assert unit.text_bytes == sum(sizes[n][0] * (4 if sizes[n][1] else 1) for n in numbers)
        assert [file.name for file in unit.files] == [files[n].name for n in numbers]
        assert unit.reads == [(files[n], FilePart(n)) for n in numbers]
        assert unit.where == f"/none/{numbers[0]:02}.txt"
        assert unit.unseen == unit.where


def test_a_file_of_a_mebibyte_is_alone_however_large_units_are() -> None:
    sizes = [5, 2**20 - 1, 2**20, 5, 2**20 + 1, 7]
    files = [
        InputFile("/none", f"{n}.txt", size, FileType("txt"), "", 0) for n, size in enumerate(sizes)
    ]
    units = [[part.file for part in unit.parts] for unit in cut(files, READ)]
    assert units == [[0, 1], [2], [3], [4], [5]]


TEXTS = st.lists(
    st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=12).map(str.encode),
    max_size=12,
)


@given(TEXTS, ENDS, st.booleans(), st.booleans(), st.integers(1, 60))
@example([b"", b"", b"a"], b"\r\n", True, True, 1)
def test_every_line_comes_once_cut_behind_each_multiple_of_the_unit(
    tmp_path_factory: pytest.TempPathFactory,
    content: list[bytes],
    end: bytes,
    ended: bool,
    marked: bool,
    unit_bytes: int,
) -> None:
    data = end.join(content) + (end if ended and content else b"")
    assume(data or not marked)
    data = b"\xef\xbb\xbf" * marked + data
    expected = content if ended or (content and content[-1]) else content[:-1]
    edges, start = [], 0
    while start < len(data):
        wanted = (start // unit_bytes + 1) * unit_bytes
        stop = next((n + 1 for n in range(wanted, len(data)) if data[n] == ord("\n")), len(data))
        edges.append((start, stop))
        start = stop
    folder = tmp_path_factory.getbasetemp()
    for name, packed in (("a.jsonl", data), ("a.jsonl.gz", gzip.compress(data))):
        (folder / name).write_bytes(packed)
        [file] = files = find_inputs(folder / name)
        units = [*cut(files, READ, unit_bytes)]
        raws = [
            raw for unit in units for part in unit.parts for raw in raw_records(file, part, READ)
        ]
        assert raws == expected
        if file.size < unit_bytes:
            assert [unit.parts for unit in units] == [(FilePart(0),)]
        elif name == "a.jsonl":
            assert [(p.start, p.stop) for unit in units for p in unit.parts] == edges
            assert [unit.name for unit in units] == [f"00000-{n:05}" for n in range(len(edges))]
            assert [unit.size for unit in units] == [stop - start for start, stop in edges]
            assert [unit.unseen for unit in units] == [None] * len(units)
        else:
            found = [(unit.parts[0].start, unit.text_bytes) for unit in units]
            assert found == [(start, stop - start) for start, stop in edges]
            assert sum(unit.size for unit in units) == (file.size if units else 0)


@given(st.integers(0, 2**45))
def test_units_grow_with_the_corpus_by_powers_of_two(text_bytes: int) -> None:
    found = unit_bytes_for(text_bytes)
    share = text_bytes // 256
    if share < 2**22:
        assert found == 2**22
    elif share >= 2**26:
        assert found == 2**26
    else:
        assert found <= share < 2 * found
        assert found & (found - 1) == 0


@given(st.integers(0, 99), st.integers(1, 9))
def test_the_next_multiple_lies_behind(start: int, size: int) -> None:
    assert next_multiple(start, size) == next(
        n for n in range(start + 1, start + size + 1) if n % size == 0
    )


def test_a_unit_is_kept_without_its_records() -> None:
    bare = Unit("00000-00001", (FilePart(0), FilePart(1, 3, 4)), 1, 1)
    assert bare.without_data() is bare
    full = Unit("00000-00001", (FilePart(0), FilePart(1, 3, 4, data=b"x")), 1, 1)
    assert full.without_data() == bare
    assert bare.place == (0, 1)
    assert (bare.recheck, bare.files, bare.split_ends) == (False, (), None)


def test_limits_where_none_are_given() -> None:
    assert (READ.record_bytes, READ.piece_bytes) == (256 * 2**20, 4 * 2**20)
    assert (READ.joined, READ.arrays) == (False, ())


@given(st.integers(0, 40), st.none() | st.integers(0, 40))
@settings(max_examples=60)
def test_a_look_is_over_size_head_and_tail(
    tmp_path_factory: pytest.TempPathFactory, size: int, known: int | None
) -> None:
    data = bytes(range(100, 100 + size))
    path = tmp_path_factory.getbasetemp() / "looked"
    path.write_bytes(data)
    if known is not None and known > size:
        known = size
    seen = data[:known]
    with mock.patch.object(identity, "HEAD", 8):
        look = identity.look_at(str(path), known)
    assert look[:3] == (len(seen), seen[:8], seen[-8:])
    expected = hashlib.sha256(str(look.size).encode() + look.head + look.tail).hexdigest()[:16]
    assert look.digest == expected


def found(path: Path) -> InputFile:
    look = identity.look_at(str(path))
    kind = FileType("jsonl")
    return InputFile(str(path.parent), path.name, look.size, kind, look.digest, look.stamp)


def test_a_file_is_another_once_somebody_may_have_touched_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n")
    os.utime(path, ns=(5, 7_000))
    file = found(path)
    assert identity.changed_since([file]) == []
    facts = path.stat()
    seen = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
    stamp = hashlib.blake2b(repr(seen).encode(), digest_size=8).digest()
    assert file.stamp == int.from_bytes(stamp, "big")
    assert identity.written_at(file) == max(facts.st_mtime_ns, facts.st_ctime_ns) > 7_000
    os.utime(path, ns=(5, 2**62))
    assert identity.written_at(file) == 2**62
    [touched] = identity.changed_since([file])
    assert touched == file._replace(stamp=touched.stamp)
    assert touched.stamp != file.stamp
    with path.open("ab") as more:
        more.write(b"more\n")
    [grown] = identity.changed_since([file])
    assert (grown.size, grown.digest) == (4, file.digest), "what was added is no part of it"
    path.write_bytes(b"two\n")
    [other] = identity.changed_since([file])
    assert (other.size, other.digest == file.digest) == (4, False)
    remote = file._replace(version="1")
    assert identity.changed_since([remote]) == []
    path.unlink()
    assert identity.changed_since([file]) == []


@given(st.lists(st.integers(0, 2**64 - 1), max_size=4))
def test_a_stamp_of_files_is_over_those_of_each(stamps: list[int]) -> None:
    files = [InputFile("", "", 0, FileType("txt"), "", stamp) for stamp in stamps]
    text = ",".join(map(str, stamps)).encode()
    assert identity.stamp_of(files) == hashlib.blake2b(text, digest_size=8).hexdigest()
