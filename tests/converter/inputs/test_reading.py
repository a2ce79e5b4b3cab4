"""Bytes to raw records, cut anywhere, against reading all at once; what is told of files."""

import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings, strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs import files as identity, parsing, streams
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.files import FilePart, FileType, InputFile, ReadSettings
from jaxdata.converter.inputs.formats import json_records
from jaxdata.converter.inputs.reading import cut, raw_records
from tests.converter.inputs.made import zst

READ = ReadSettings(None)
MARK = b"\xef\xbb\xbf"


LINE = st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=12)
LINES, ENDS = st.lists(LINE.map(str.encode), max_size=12), st.sampled_from([b"\n", b"\r\n"])


@given(LINES, ENDS, st.booleans(), st.booleans(), st.integers(1, 60), st.integers(3, 20))
@example([b"", b"", b"a"], b"\r\n", True, True, 1, 9)
@example([b"one", b"two", b"three"] * 4, b"\n", True, False, 7, 20)
def test_every_line_comes_once_cut_behind_each_multiple_of_the_unit(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], end: bytes, ended: bool,
    marked: bool, unit_bytes: int, limit: int,
) -> None:  # fmt: skip
    text = end.join(content) + (end if ended and content else b"")
    data = MARK * (marked and text != b"") + text
    content = content if ended or (content and content[-1]) else content[:-1]
    edges, start = [], 0
    while start < len(data):
        wanted = (start // unit_bytes + 1) * unit_bytes
        stop = next((n + 1 for n in range(wanted, len(data)) if data[n] == ord("\n")), len(data))
        edges.append((start, stop))
        start = stop
    read = ReadSettings(None, record_bytes=limit)
    folder = tmp_path_factory.getbasetemp()
    for name, packed in (("a.jsonl", data), ("a.jsonl.gz", gzip.compress(data))):
        (folder / name).write_bytes(packed)
        [file] = files = find_inputs(folder / name)
        units = [*cut(files, read, unit_bytes)]
        parts = [part for unit in units for part in unit.parts]
        with mock.patch.object(streams, "_LINE", 3):
            found = [raw for part in parts for raw in raw_records(file, part, read)]
        assert len(found) == len(content)
        for one, line in zip(found, content, strict=True):
            # Two bytes are room for the end of a line, whatever that is; the mark may take more.
            if len(line) + 3 * marked <= limit:
                assert one == line
            elif len(line) > limit + 2 - len(end):
                assert isinstance(one, parsing.Unreadable)
                head = (one.raw or b"").removeprefix(MARK)
                assert (line + end).startswith(head)
                assert len(head) + 3 * marked >= limit
        if file.size < unit_bytes:
            assert parts == [FilePart(0)]
        elif name == "a.jsonl" or limit == 20:  # nothing of a line was left out
            places = [(unit.parts[0].start, unit.text_bytes) for unit in units]
            assert places == [(start, stop - start) for start, stop in edges]
            assert sum(unit.size for unit in units) == (file.size if units else 0)
            kept = [part._replace(data=None) for part in parts]
            assert [part for unit in units for part in unit.without_data().parts] == kept


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('[]{},"\\ a\u00e9', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"]a', max_size=2), inner),
    max_leaves=6,
)
SPACE = st.sampled_from([b"", b" ", b"\n\t", b" \r\n"])


def values(data: bytes, limit: int = 99) -> list[Any]:
    return [*json_records.json_values(io.BytesIO(data), limit)]


@given(st.lists(st.tuples(SPACE, JSON, SPACE), max_size=4), SPACE, SPACE, st.booleans())
@settings(max_examples=80)
def test_the_elements_of_an_array_are_given_wherever_chunks_end(
    given: list[tuple[bytes, Any, bytes]], before: bytes, after: bytes, marked: bool
) -> None:
    pieces = [a + json.dumps(value).encode() + b for a, value, b in given]
    data = MARK * marked + before + b"[" + b",".join(pieces) + b"]" + after
    kept = [one if len(one) <= 4 else parsing.too_long(one[:5], 4) for one in pieces]
    for chunk in (4, 5, 7, 2**18):
        with mock.patch.object(json_records, "_CHUNK", chunk):
            assert (values(data, 999), values(data, 4)) == (pieces, kept)


def test_arrays_that_do_not_end_or_go_on_are_refused_and_objects_follow_each_other() -> None:
    for data in (b"[", b"[1", b"[1,", b'["]', b"[[]", b'[{"a": 1}', b'["\\'):
        with pytest.raises(EOFError, match=r"^the JSON array does not end$"):
            values(data)
    for data in (b"[1] 2", b"[]]", b"[1],", b'[1]\n{"a": 1}'):
        with pytest.raises(ValueError, match=r"^something follows the end of the JSON array$"):
            values(data)
    for data, expected in {
        b"[1] \n\t\r ": [b"1"],
        b" \n": [],
        b"[1,]": [b"1", b""],  # an empty value is the parser's to refuse
        b"[,1]": [b"", b"1"],
        b'{"a": {"}": 1}}{} {"c": "\\"{"}': [b'{"a": {"}": 1}}', b"{}", b' {"c": "\\"{"}'],
        b'{"a": 1': [b'{"a": 1'],  # as is an object that does not end
        b"]{}": [b"]{}"],
        b"1,2": [b"1,2"],
    }.items():
        assert values(data) == expected


def test_streams_and_heads_are_unpacked_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"some text"  # as `zstd --long=31` has it: a header that asks for 2 GiB
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    frame = b"\x28\xb5\x2f\xfd" + b"\0" + bytes([(31 - 10) << 3]) + block
    assert streams.unpacked(io.BytesIO(frame * 2), "zst", "here").read() == content * 2  # type: ignore[arg-type]
    assert streams.unpacked_head(frame, "zst", 99) == content
    data = bytes(range(256)) * 40
    gz, frames = zlib.compress(data, wbits=31), zst(data) + zst(b"more")
    for kind, packed in (("gz", gz), ("zst", frames), ("", data)):
        assert streams.unpacked_head(packed, kind, 100)[:100] == data[:100]  # type: ignore[arg-type]
    assert len(streams.unpacked_head(gz, "gz", 100)) == 100
    assert streams.unpacked_head(frames, "zst", 2**16) == data + b"more"
    assert streams.unpacked_head(b"none", "gz", 9) == streams.unpacked_head(b"no", "zst", 9) == b""
    monkeypatch.setattr(streams, "FREE", 5_000)
    for size, expansion, good in ((5_000, 0, True), (5_001, 0, False), (9_000, 9_000, True)):
        monkeypatch.setattr(streams, "EXPANSION", expansion)
        for kind, raw in (("gz", zlib.compress(b"x" * size, wbits=31)), ("zst", zst(b"x" * size))):
            stream = streams.unpacked(io.BytesIO(raw), kind, "here")  # type: ignore[arg-type]
            if good:
                assert stream.read() == b"x" * size
            else:
                with pytest.raises(InputError, match=f"^here expands to more than {expansion} t"):
                    stream.read()


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=12), st.integers(8, 40))
@settings(max_examples=100)
@example([(5, False), (2**20 - 1, False), (2**20, False), (5, False), (2**20 + 1, False)], 2**26)
def test_small_files_are_grouped_and_larger_ones_are_alone(sizes: Any, unit_bytes: int) -> None:
    texts = [size * (4 if packed else 1) for size, packed in sizes]
    files = [
        InputFile("/none", f"{n:02}.txt", size, FileType("txt", "gz" if packed else ""), "", 0)
        for n, (size, packed) in enumerate(sizes)
    ]
    expected: list[list[int]] = []
    open_ended = False
    for number, (size, _) in enumerate(sizes):
        alone = size >= min(unit_bytes, 2**20)
        held = sum(texts[n] for n in expected[-1]) if expected else 0
        if open_ended and not alone and held + texts[number] <= unit_bytes:
            expected[-1].append(number)
        else:
            expected.append([number])
        open_ended = not alone
    for unit, numbers in zip([*cut(files, READ, unit_bytes, first_file=7)], expected, strict=True):
        assert (unit.name, unit.place) == (f"{7 + numbers[0]:05}-00000", (7 + numbers[0], 0))
        assert unit.size == sum(sizes[n][0] for n in numbers)
        assert unit.text_bytes == sum(texts[n] for n in numbers)
        assert unit.reads == [(files[n], FilePart(n)) for n in numbers]
        assert unit.where == f"/none/{numbers[0]:02}.txt"
    share = sum(texts) << 27
    found = identity.unit_bytes_for(share)
    assert found <= min(max(share // 256, 2**22), 2**26) < 2 * found
    assert found & (found - 1) == 0


def test_a_file_is_another_once_somebody_may_have_touched_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(bytes(range(100, 130)))
    for known, size in ((None, 30), (20, 20), (9, 9), (5, 5)):
        with mock.patch.object(identity, "HEAD", 8):
            look = identity.look_at(str(path), known)
        seen = path.read_bytes()[:size]
        assert look[:3] == (size, seen[:8], seen[-8:])
        told = str(size).encode() + look.head + look.tail
        assert look.digest == hashlib.sha256(told).hexdigest()[:16]
    path.write_bytes(b"one\n")
    [file] = find_inputs(path)
    assert identity.changed_since([file]) == []
    assert identity.stamp_of([file, file]) != identity.stamp_of([file])
    os.utime(path, ns=(5, 2**62))
    [touched] = identity.changed_since([file])
    assert touched == file._replace(stamp=touched.stamp) != file
    path.write_bytes(b"one\nmore")
    [grown] = identity.changed_since([file])
    assert (grown.size, grown.digest) == (4, file.digest), "what was added is no part of it"
    assert identity.changed_since([file._replace(version="1")]) == []
    path.unlink()
    assert identity.changed_since([file]) == []


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 9)
    [file] = files = find_inputs(path)
    *_, last = cut(files, READ, 20)
    os.truncate(path, 75)
    with pytest.raises(InputError, match=r"a\.jsonl was truncated while being read; do not mod"):
        list(raw_records(file, last.parts[0], READ))


def reason(call: Callable[..., Any], *given: Any) -> Any:
    try:
        return call(*given)
    except parsing.BadRecord as bad:
        return bad.reason


RECORD = {"a": {"b": {"c": "deep"}, "n": None}, "x.y": "dotted", 3: 4}
JOINED = {"a": "x", "b": None, "c": b"\xc3\xa9", "d": 1, "s": "\ud800", "z": b"\xff"}
LISTS = {"m": [{"c": "a", "e": ["a"], "f": [{"d": "a"}]}, {"c": "b"}], "n": {"c": "a"}, "t": ["a"]}


def test_keys_name_fields_texts_of_several_and_texts_in_a_list() -> None:
    for key, found in {
        "a": RECORD["a"],
        "a.b.c": "deep",
        "x.y": "dotted",
        "a.n": None,
        "a.n.c": "no key 'a.n.c'",
        "a.c": "no key 'a.c'",
    }.items():
        assert reason(parsing.field_of, RECORD, key) == found
        missing = isinstance(found, str) and found.startswith("no key")
        assert parsing.field_or_none(RECORD, key) == (None if missing else found)
    with pytest.raises(parsing.BadRecord) as caught:
        parsing.field_of(RECORD, "b")
    assert (caught.value.keys, str(caught.value)) == (("a", "x.y", "3"), "no key 'b'")
    for keys, text in {
        "ac": "x\n\né",
        "bae": "x",
        "b": "'b' is null",
        "ebf": "no key 'e'",
        "ad": "'d' is not a string",
        "s": "'s' holds half a surrogate pair",
    }.items():
        assert reason(parsing.joined_text_of, JOINED, (*keys,)) == text
    assert reason(parsing.text_of, JOINED, "z") == "not UTF-8"
    for key, texts in {
        "m.c": ["a", "b"],
        "n.c": "a",
        "t.c": "'t' is not a list of objects",
        "m.q": "no key 'q'",
        "m.f.d": "no key 'f.d'",
        "m.e": "'e' is not a string",
        "q.c": "no key 'q.c'",
    }.items():
        assert reason(parsing.texts_of, LISTS, key) == texts
    assert reason(parsing.texts_of, {"m": LISTS["m"][:1]}, "m.f.d") == (  # type: ignore[index]
        "'m.f.d' goes through more than one list"
    )
    assert reason(parsing.texts_of, {"m": "a"}, "m.c") == "'m' is not an object"
    assert parsing.texts_of({"m.c": "a", "m": 1}, "m.c") == "a"


@pytest.mark.parametrize("texts_only", [False, True])
def test_lines_and_texts_are_parsed(texts_only: bool) -> None:
    huge = 2.0**70 if texts_only else 2**70
    for raw, found in (
        (b'{"n": 1, "t": "a\xe2\x80\xa8b"}', {"n": 1, "t": "a\u2028b"}),
        (rb'{"t": "\ud83e\udda5"}', {"t": "\U0001f9a5"}),
        (b" \t", None),
        (b"[1]", "JSON, but not an object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"t": "\xed\xa0\x80"}', "not UTF-8"),
        (parsing.TextPiece("é".encode()), {"body": "é"}),
        (parsing.TextPiece(b"\xff"), "not UTF-8"),
        (parsing.Unreadable("why", None), "why"),
        ({"a": 1}, {"a": 1}),
    ):
        assert reason(parsing.parse, raw, "body", texts_only) == found
    made = parsing.parse(b'{"n": %d}' % 2**70, "body", texts_only)
    assert made is not None
    assert (made["n"], type(made["n"])) == (huge, type(huge))
