"""Finding files, cutting them into units, and reading every record of them exactly once."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxdata.converter import texts
from jaxdata.converter.inputs.cutting import cut
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.inputs.parsing import BadRecord, parse_line, text_of
from jaxdata.converter.inputs.readers import raw_records
from jaxdata.converter.inputs.units import ReadSettings, Unit
from jaxdata.errors import InputError

READ = ReadSettings(("text",))


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        data = gzip.compress(data)
    path.write_bytes(data)
    return path


def one_file(path: Path) -> list[InputFile]:
    return find_inputs(path)


def numbered(files: list[InputFile], units: list[Unit]) -> list[tuple[int, int, bytes | None]]:
    """(file, number in the file from 0, record) of everything the units cover."""
    seen: Counter[int] = Counter()
    records = []
    for unit in units:
        for part in unit.parts:
            for raw in raw_records(files[part.file], part, READ):
                record = raw["text"] if isinstance(raw, dict) else raw
                records.append((part.file, seen[part.file], record))
                seen[part.file] += 1
    return records


lines = st.lists(
    st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=12).map(str.encode),
    max_size=12,
)


@given(lines, st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.booleans(), st.integers(1, 60))
@example([b"", b"", b"a"], b"\r\n", True, True, 1)
def test_every_line_comes_once_with_its_number(
    tmp_path_factory: pytest.TempPathFactory,
    content: list[bytes],
    end: bytes,
    ended: bool,
    marked: bool,
    unit_bytes: int,
) -> None:
    data = end.join(content) + (end if ended and content else b"")
    expected = content if ended or (content and content[-1]) else content[:-1]
    if marked and data:
        data = b"\xef\xbb\xbf" + data
    if marked and not ended and content == [b""]:
        return
    expected = [expected[0].removeprefix(b"\xef\xbb\xbf"), *expected[1:]] if expected else []
    folder = tmp_path_factory.mktemp("lines")
    for name in ("a.jsonl", "a.jsonl.gz"):
        files = one_file(write(folder / name, data))
        units = list(cut(files, READ, unit_bytes))
        found = numbered(files, units)
        assert [raw for *_, raw in found] == expected
        assert [number for _, number, _ in found] == list(range(len(expected)))


@given(lines, st.integers(1, 60))
def test_a_stream_is_cut_where_the_plain_file_is(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], unit_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    data = b"\n".join(content)
    cuts = []
    for name in ("a.jsonl", "a.jsonl.gz"):
        files = one_file(write(folder / name, data))
        units = [unit for unit in cut(files, READ, unit_bytes) if unit.text_bytes]
        if files[0].size >= unit_bytes:
            cuts.append([(unit.name, unit.parts[0].start) for unit in units])
    assert len({str(one) for one in cuts}) <= 1


def test_unit_sizes_are_about_what_was_asked(tmp_path: Path) -> None:
    data = b"".join(b'{"text": "%d"}\n' % i for i in range(10_000))
    for name in ("a.jsonl", "a.jsonl.gz"):
        units = list(cut(one_file(write(tmp_path / name, data)), READ, 10_000))
        assert len(units) == -(-len(data) // 10_000)
        assert sum(unit.text_bytes for unit in units) == len(data)
        assert [unit.name for unit in units] == [f"00000-{i:05d}" for i in range(len(units))]


def test_small_files_are_grouped_in_order_and_large_ones_stay_alone(tmp_path: Path) -> None:
    for i, size in enumerate([30, 40, 50, 2**20, 10, 2**20 - 1, 2**20 - 1, 5]):
        write(tmp_path / f"{i}.txt", b"x" * size)
    units = list(cut(find_inputs(tmp_path), READ, 2 * 2**20 - 2))
    assert [[part.file for part in unit.parts] for unit in units] == [
        [0, 1, 2],
        [3],
        [4, 5],
        [6, 7],
    ]
    assert [unit.name for unit in units] == [f"{i:05d}-00000" for i in (0, 3, 4, 6)]


def test_tables_are_cut_between_row_groups(tmp_path: Path) -> None:
    words = [f"text {i} " * 20 for i in range(1_000)]
    table = pa.table({"other": list(range(1_000)), "text": words})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100, compression="none")
    files = find_inputs(tmp_path)
    units = list(cut(files, READ, 10_000))
    assert 3 < len(units) <= 10
    assert [raw for _, _, raw in numbered(files, units)] == words
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


def test_names_are_relative_to_what_holds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "b/x.jsonl",
        "a/x.jsonl",
        "a/deep/y.txt",
        "a/.hidden.txt",
        "a/.git/z.txt",
        "a/n.pdf",
    ):
        write(tmp_path / name, b"{}")
    expected = ["a/deep/y.txt", "a/x.jsonl", "b/x.jsonl"]
    assert [file.name for file in find_inputs(tmp_path)] == expected
    folders = [tmp_path / "b", str(tmp_path / "a"), tmp_path / "a/x.jsonl"]
    assert [file.name for file in find_inputs(folders)] == expected
    assert [file.name for file in find_inputs(str(tmp_path / "**/*.jsonl"))] == expected[1:]
    monkeypatch.chdir(tmp_path / "a")
    assert [file.name for file in find_inputs(["../b/x.jsonl", "."])] == expected
    assert [file.name for file in find_inputs("x.jsonl")] == ["x.jsonl"]


def test_inputs_that_are_none_say_so(tmp_path: Path) -> None:
    other = write(tmp_path / "a.pdf", b"x")
    with pytest.raises(InputError, match="no such file or folder, and no file matches this glob"):
        find_inputs(tmp_path / "*.jsonl")
    with pytest.raises(InputError, match=r"unsupported file type; expected \.csv, "):
        find_inputs(other)
    with pytest.raises(InputError, match=r"contains no file that ends in \.csv, .* or \.arrow"):
        find_inputs(tmp_path)
    with pytest.raises(InputError, match="no input files were given"):
        find_inputs([])
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.jsonl").symlink_to("/dev/zero")
    for name in ("pipe.jsonl", "link.jsonl"):
        with pytest.raises(InputError, match=f"{name} is a device or a pipe; expected a file or f"):
            find_inputs(tmp_path / name)


def test_files_of_token_ids_are_named_as_what_they_are_read_by(tmp_path: Path) -> None:
    nanogpt, megatron, index = (
        write(tmp_path / name, b"\0\0") for name in ("train.bin", "pile.bin", "pile.idx")
    )
    for file, spec in (
        (nanogpt, f"nanogpt:{nanogpt}"),
        (megatron, f"megatron:{tmp_path}/pile"),
        (index, f"megatron:{tmp_path}/pile"),
    ):
        with pytest.raises(InputError, match=f"{file}: if .* not text, .*: give {spec} in the "):
            find_inputs(file)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    try:
        write(tmp_path / os.fsdecode(b"a\xff.txt"), b"x")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with pytest.raises(InputError, match="is not UTF-8; rename the file"):
        find_inputs(tmp_path)


def test_a_digest_sees_size_head_and_tail_but_no_path_and_time(tmp_path: Path) -> None:
    base = b"x" * 300_000
    digests = set()
    for i, data in enumerate([base, b"y" + base[1:], base[:-1] + b"y", base + b"x"]):
        digests.add(one_file(write(tmp_path / f"{i}.txt", data))[0].digest)
    assert len(digests) == 4
    same = write(tmp_path / "other/name.txt", base)
    os.utime(same, (1, 1))
    assert one_file(same)[0].digest in digests


@pytest.mark.parametrize("cut_at", [5, 200, -9, -1])
def test_a_truncated_stream_is_an_error(tmp_path: Path, cut_at: int) -> None:
    path = write(tmp_path / "a.jsonl.gz", os.urandom(500).hex().encode())
    path.write_bytes(path.read_bytes()[:cut_at])
    for unit_bytes in (100, 2**26):  # read by the parent, and by a worker
        files = one_file(path)
        with pytest.raises(InputError, match=r"a\.jsonl\.gz cannot be read to its end.*truncated"):
            numbered(files, list(cut(files, READ, unit_bytes)))


def test_a_damaged_stream_or_table_is_an_error(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "a.txt.gz", "a.parquet"):
        path = tmp_path / name
        path.write_bytes(b"this is neither gzip nor parquet")
        with pytest.raises(InputError, match=f"{name} cannot be read to its end.*damaged"):
            list(texts(path))
        path.unlink()


def test_several_gzip_members_are_one_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n{"text"') + gzip.compress(b': "b"}\n'))
    assert list(texts(path)) == ["a", "b"]


def test_text_files_are_one_document_each(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\n\r\ntwo")
    write(tmp_path / "b.txt.gz", "é\n".encode())
    write(tmp_path / "c.txt", b"")
    write(tmp_path / "d.txt", b" \n")
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
