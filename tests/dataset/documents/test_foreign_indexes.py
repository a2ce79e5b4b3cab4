"""Indexes of other tools, byte by byte: what is refused, and long ones, which are read in parts."""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.foreign import contract as mapped_files
from jaxdata.dataset.foreign import megatron, read_token_ranges, writers
from jaxdata.dataset.foreign.contract import Ranges, Written, document_at, gaps
from jaxdata.dataset.foreign.documents import ForeignDocuments
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from jaxdata.testing import distinct_documents
from tests.dataset.documents.test_foreign import (
    assert_holds,
    made,
    write_datatrove,
    write_gpts,
    write_megatron,
)

LENGTHS = [3, 0, 4, 1, 5]
HEADER = 34
LENGTH, POINTER, BOUNDARY = HEADER, HEADER + 4 * 5, HEADER + 12 * 5


def put(form: str, at: int, value: Any) -> Callable[[bytes], bytes]:
    """A change of a number in a file."""
    new = struct.pack(form, value)
    return lambda data: data[:at] + new + data[at + len(new) :]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "33 bytes, expected a header of 34;": (lambda data: data[:33], "idx"),
    "34 bytes and is truncated, expected 142 (5 sequences, 6 document": (
        lambda data: data[:34],
        "idx",
    ),
    "143 bytes, expected 142 (5 sequences, ": (lambda data: data + b"?", "idx"),
    "b'MMIDIDY\\x00\\x00' at its beginning, expected b'MMIDIDX": (put("<B", 6, ord("Y")), "idx"),
    "version 2, expected version 1;": (put("<Q", 9, 2), "idx"),
    "dtype code 9, expected one of 1, 2, 3, 4, 5, 6, 7, 8;": (put("<B", 17, 9), "idx"),
    "document boundaries 1 to 5, expected 0 to 5 (its seq": (put("<q", BOUNDARY, 1), "idx"),
    "document boundaries 0 to 4, expected 0 to 5 (its seq": (put("<q", BOUNDARY + 40, 4), "idx"),
    "document boundaries none, expected 0 to 5": (
        lambda data: put("<Q", 26, 0)(data)[:BOUNDARY],
        "idx",
    ),
    "a document boundary 6, expected 0 to 5;": (put("<q", BOUNDARY + 16, 6), "idx"),
    "a document boundary 5, expected 0 to 5;": (put("<q", BOUNDARY + 16, -1), "idx"),
    "document 1 ending before it begins, expected rising ends;": (
        lambda data: put("<q", BOUNDARY + 8, 4)(put("<q", BOUNDARY + 16, 1)(data)),
        "idx",
    ),
    "a length of -2 at sequence 3, expected 0 or more;": (put("<i", LENGTH + 12, -2), "idx"),
    "a length of -2147483648 at sequence 0, expec": (put("<i", LENGTH, -(2**31)), "idx"),
    "the byte pointer 8 at sequence 2, expected 6, the sum": (put("<q", POINTER + 16, 8), "idx"),
    "the byte pointer 7 at sequence 0, expected 0, the sum": (put("<q", POINTER, 7), "idx"),
    "24 bytes and is truncated, expected 26 (13 tokens of 2 bytes, says old.idx)": (
        lambda data: data[:-2],
        "bin",
    ),
    "28 bytes, expected 26 (13 tokens": (lambda data: data + b"??", "bin"),
}


@pytest.mark.parametrize("said", DAMAGES)
@pytest.mark.parametrize("at_once", [2, 2**20])
def test_a_damaged_pair_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, at_once: int
) -> None:
    monkeypatch.setattr(megatron, "_NUMBERS_AT_ONCE", at_once)
    spec = write_megatron(tmp_path / "old", distinct_documents(LENGTHS))
    change, suffix = DAMAGES[said]
    file = tmp_path / f"old.{suffix}"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DatasetError, match=re.escape(f"{file} is damaged: it has {said}")):
        read_token_ranges(spec)


def test_what_lacks_its_tokens_or_has_other_masks_is_refused_in_words(tmp_path: Path) -> None:
    documents = distinct_documents(LENGTHS)
    for kind, write in (("megatron", write_megatron), ("gpts", write_gpts)):
        spec = write(tmp_path / kind, documents)
        (tmp_path / f"{kind}.bin").unlink()
        said = f"{kind}.bin is missing: {spec} is the two files {kind}.bin and {kind}.idx"
        with pytest.raises(DatasetError, match=re.escape(said)):
            read_token_ranges(spec)
    masks = [np.ones(len(each)) for each in documents]
    spec = write_datatrove(tmp_path / "d.ds", documents, masks=masks[1:])
    with pytest.raises(
        DatasetError, match=r"d\.ds\.loss is damaged: .*one for each token of d\.ds"
    ):
        read_token_ranges(spec)


@given(st.lists(st.integers(1, 2**20), min_size=1, max_size=5), st.booleans())
def test_the_home_of_a_range_is_the_page_where_its_document_begins_or_that_it_fills(
    lengths: list[int], of_masks: bool
) -> None:
    ends = np.cumsum(lengths)
    docs: Any = SimpleNamespace(lengths=np.array(lengths))
    place = (ends - lengths) * 2
    docs._ranges = SimpleNamespace(
        place=lambda numbers: (None, place[numbers]), dtype=np.dtype("<u2"), parts=[0]
    )
    item = 1 if of_masks else 2
    for number, length in enumerate(lengths):
        first, end = item * int(ends[number] - length), item * int(ends[number])
        starts = [first, *range(-(-first // PAGE_BYTES) * PAGE_BYTES, end, PAGE_BYTES)]
        column = np.full(len(starts), number)
        found = ForeignDocuments._in_pages(
            docs, column, np.full(len(starts), int(of_masks)), np.array(starts), np.array(starts)
        )
        assert found.home.tolist() == [
            start // PAGE_BYTES == first // PAGE_BYTES or start + PAGE_BYTES <= end
            for start in starts
        ]


GPTS_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "15 bytes, expected a header of 16;": lambda data: data[:15],
    "16 bytes and is truncated, expected 44 (2 windows)": lambda data: data[:16],
    "dtype code 3, expected 2 (uint16) or 4 (uint32);": put("<I", 8, 3),
    "a first offset of -1, expected 0;": put("<q", 16, -1),
    "window 1 ending before it begins, expected rising offsets;": put("<q", 24, 9),
}


@pytest.mark.parametrize("said", GPTS_DAMAGES)
def test_a_damaged_index_of_windows_is_refused_in_words(tmp_path: Path, said: str) -> None:
    spec = write_gpts(tmp_path / "old", distinct_documents([3, 4]))
    file = tmp_path / "old.idx"
    file.write_bytes(GPTS_DAMAGES[said](file.read_bytes()))
    with pytest.raises(DatasetError, match=re.escape(f"{file} is damaged: it has {said}")):
        read_token_ranges(spec)


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize("boundaries", [None, [0, 1, 2, 3, 3, 5], [0, 2, 3, 4, 5], [0, 5]])
def test_a_long_index_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, boundaries: list[int] | None
) -> None:
    monkeypatch.setattr(megatron, "_NUMBERS_AT_ONCE", at_once)
    monkeypatch.setattr(mapped_files, "_NUMBERS_AT_ONCE", at_once)
    sequences = distinct_documents(LENGTHS)
    spec = write_megatron(tmp_path / "old", sequences, "<i4", boundaries)
    ends = boundaries or range(6)
    joined = [
        np.concatenate([*sequences[a:b], []]) for a, b in zip(ends, [*ends][1:], strict=False)
    ]
    assert_holds(ForeignDocuments(spec), joined)
    assert read_token_ranges(spec).lengths.tolist() == list(map(len, joined))
    assert read_token_ranges(spec, sequences=True).lengths.tolist() == LENGTHS
    given = np.array(boundaries or [*range(6)], np.int64)
    assert megatron._one_each(given, 5) == (boundaries is None)
    assert not megatron._one_each(given, 4)
    written = written_of(LENGTHS, np.uint32)
    assert b"".join(writers()["megatron"](written, None).index()) == (
        Path(write_megatron(tmp_path / "new", sequences, "<i4")[9:] + ".idx").read_bytes()
    )


def test_modes_of_a_multimodal_index_are_passed_over(tmp_path: Path) -> None:
    sequences = distinct_documents(LENGTHS)
    spec = write_megatron(tmp_path / "old", sequences)
    with (tmp_path / "old.idx").open("ab") as file:
        file.write(bytes(5))
    assert_holds(ForeignDocuments(spec), sequences)


@given(
    st.lists(st.integers(0, 2**40) | st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 4)
)
def test_gaps_are_the_differences_and_the_first_that_falls_is_named(
    ends: list[int], at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_files, "_NUMBERS_AT_ONCE", at_once)
        rising = sorted(ends)
        expected = [b - a for a, b in itertools.pairwise(rising)]
        found = gaps(np.array(rising), lambda _: pytest.fail("none falls"))
        assert found.tolist() == expected
        assert found.dtype == (np.uint64 if max(expected, default=0) >= 2**32 else np.uint32)
        small = [end % 10 for end in ends]
        falling = [k for k in range(len(small) - 1) if small[k + 1] < small[k]]
        if falling:
            with pytest.raises(DatasetError, match=f"^{falling[0]}$"):
                gaps(np.array(small), lambda at: DatasetError(str(at)))


@pytest.mark.parametrize(("gap", "dtype"), [(2**32 - 1, np.uint32), (2**32, np.uint64)])
def test_gaps_are_as_wide_as_they_need(gap: int, dtype: Any) -> None:
    found = gaps(np.array([5, 5 + gap]), lambda at: DatasetError(str(at)))
    assert (found.tolist(), found.dtype) == ([gap], dtype)


def test_files_of_several_dtypes_or_only_some_of_masks_are_no_one_dataset(tmp_path: Path) -> None:
    documents = made(count=3)
    masks = [np.arange(len(each)) % 2 > 0 for each in documents]
    kinds = {"a": (2, None), "b": (4, None), "c": (2, masks), "d": (2, None), "e": (2, masks)}
    for pair, agree in [("ab", False), ("ac", False), ("ca", False), ("ad", True), ("ce", True)]:
        (folder := tmp_path / pair).mkdir()
        for number, kind in enumerate(pair):
            write_datatrove(folder / f"{number}.ds", documents, *kinds[kind])
        if agree:
            assert len(read_token_ranges(f"datatrove:{folder}").lengths) == 6
            continue
        with pytest.raises(DatasetError, match="open them as separate sources"):
            read_token_ranges(f"datatrove:{folder}")


def test_masks_of_many_files_are_each_beside_its_tokens(tmp_path: Path) -> None:
    parts = [made(seed, count=4) for seed in range(5)]
    masks = [[np.arange(len(d)) % (n + 2) > 0 for d in part] for n, part in enumerate(parts)]
    for number, part in enumerate(parts):
        write_datatrove(tmp_path / f"{number}.ds", part, 4, masks[number])
    docs = ForeignDocuments(f"datatrove:{tmp_path}")
    flat = [mask for each in masks for mask in each]
    numbers = np.arange(20)
    starts, counts = docs.lengths // 3, docs.lengths - docs.lengths // 3
    wanted = [mask[start:] for mask, start in zip(flat, starts.tolist(), strict=True)]
    assert docs.masks(numbers, starts, counts.astype(np.int64)).views.join() == b"".join(
        mask.tobytes() for mask in wanted
    )
    found, of_masks = docs.places(numbers, starts, counts.astype(np.int64)), []
    for owner, file, start, stop in zip(*(each.tolist() for each in found), strict=True):
        if file >= 5:
            of_masks.append((owner, docs._files[file].read_bytes()[start:stop]))
    assert sorted(of_masks) == [(n, mask.tobytes()) for n, mask in enumerate(wanted)]


def written_of(lengths: Any, dtype: Any = np.uint16, masked: bool = False) -> Written:
    return Written("x", np.dtype(dtype), masked, np.array(lengths), lambda number: number + 100)


def ranges(*rows: tuple[int, int, int]) -> Ranges:
    return Ranges(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def test_a_document_is_too_long_from_2_to_the_31st_token_on() -> None:
    writers()["megatron"](written_of([5, 2**31 - 1]), None)
    with pytest.raises(InputError, match="a document of 2,147,483,648 tokens: the format holds"):
        writers()["megatron"](written_of([5, 2**31]), None)


def test_an_id_is_too_large_for_the_document_that_holds_it() -> None:
    rows = ranges((0, 0, 2), (1, 0, 0), (2, 3, 2))
    assert [document_at(rows, token) for token in range(4)] == [0, 0, 2, 2]
    writer = writers()["nanogpt"](written_of([2, 1, 5], np.uint32), 0)
    with pytest.raises(InputError, match=r"document 102 of x has the id 65536; .* up to 65535"):
        writer.add(rows, np.array([1, 65_535, 65_536, 3]))
    for name, dtype, largest in (
        ("megatron", np.uint32, 2**31 - 1),
        ("megatron", np.uint16, 2**16 - 1),
        ("gpts", np.uint32, 2**32 - 1),
    ):
        writers()[name](written_of([2, 1, 5], dtype), None).add(
            rows, np.array([1, 2, largest, 3], np.int64)
        )


def test_masked_beginnings_may_come_in_several_ranges_of_up_to_65_535_tokens() -> None:
    def context(*parts: tuple[Ranges, list[int]], lengths: Any = (4, 70_000)) -> list[int]:
        writer: Any = writers()["gpts"](written_of(lengths, masked=True), None)
        for rows, hidden in parts:
            mask = [np.arange(n) >= k for n, k in zip(rows.tokens.tolist(), hidden, strict=True)]
            writer.add_masks(rows, np.concatenate(mask).astype(np.uint8))
        return list(np.frombuffer([*writer.index()][-1], "<u2"))

    assert context((ranges((0, 0, 4), (1, 0, 9)), [4, 9]), (ranges((1, 9, 9)), [3])) == [4, 12]
    whole = ranges((1, 0, 70_000))
    assert context((whole, [65_535])) == [0, 65_535]
    with pytest.raises(InputError, match="document 101 of x masks other"):
        context((whole, [65_536]))
    with pytest.raises(InputError, match="document 101 of x masks other"):
        context((ranges((1, 0, 9)), [8]), (ranges((1, 9, 9)), [1]))


def test_headers_are_of_their_tool(tmp_path: Path) -> None:
    path, form = tmp_path / "a", struct.Struct("<2sII")
    path.write_bytes(b"")
    data = form.pack(b"ab", 1, 7)
    assert mapped_files.read_header(path, memoryview(data), form, b"ab", "Its") == (7,)
    with pytest.raises(DatasetError, match="at its beginning, expected b'xy', Its's index"):
        mapped_files.read_header(path, memoryview(data), form, b"xy", "Its")
