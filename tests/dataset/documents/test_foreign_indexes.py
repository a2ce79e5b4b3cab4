"""Indexes of other tools, byte by byte: what is refused, and long ones, which are read in parts."""

from __future__ import annotations

import itertools
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.base.errors import DatasetError
from jaxdata.dataset.foreign import megatron
from jaxdata.dataset.foreign.documents import ForeignDocuments
from jaxdata.testing import distinct_documents
from tests.dataset.documents.test_foreign import (
    assert_holds,
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


Change = Callable[[bytes], bytes]
MEGATRON: dict[str, tuple[Change, str]] = {
    "33 bytes, expected a header of 34;": (lambda data: data[:33], "idx"),
    "b'MMIDIDY\\x00\\x00', version 1, expected b'MMIDIDX": (put("<B", 6, ord("Y")), "idx"),
    "b'MMIDIDX\\x00\\x00', version 2, expected b'MMIDIDX": (put("<Q", 9, 2), "idx"),
    "dtype code 9, expected one of 1, 2, 3, 4, 5, 6, 7, 8;": (put("<B", 17, 9), "idx"),
    "a first document that begins at 1, expected 0;": (put("<q", BOUNDARY, 1), "idx"),
    "document boundaries up to [4], expected 5, its seq": (put("<q", BOUNDARY + 40, 4), "idx"),
    "document boundaries up to [], expected 5, its seq": (
        lambda data: put("<Q", 26, 0)(data)[:BOUNDARY], "idx"),
    "document 2 ending before it begins, expected rising ends;": (
        put("<q", BOUNDARY + 16, 6), "idx"),
    "the byte pointer 14 at sequence 3, expected 14, the sum": (put("<i", LENGTH + 12, -2), "idx"),
    "the byte pointer 7 at sequence 0, expected 0, the sum": (put("<q", POINTER, 7), "idx"),
    "24 bytes, expected 26 (13 tokens, says old.idx)": (lambda data: data[:-2], "bin"),
}  # fmt: skip
GPTS: dict[str, tuple[Change, str]] = {
    "15 bytes, expected a header of 16;": (lambda data: data[:15], "idx"),
    "dtype code 3, expected 2 (uint16) or 4 (uint32);": (put("<I", 8, 3), "idx"),
    "a first document that begins at -1, expected 0;": (put("<q", 16, -1), "idx"),
    "document 1 ending before it begins, expected rising": (put("<q", 24, 9), "idx"),
    "28 bytes, expected 26 (13 tokens of 2 bytes, says": (lambda data: data + b"??", "bin"),
}


@pytest.mark.parametrize("said", MEGATRON | GPTS)
@pytest.mark.parametrize("at_once", [2, 2**20])
def test_a_damaged_pair_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, at_once: int
) -> None:
    monkeypatch.setattr(megatron, "_NUMBERS_AT_ONCE", at_once)
    write = write_megatron if said in MEGATRON else write_gpts
    spec = write(tmp_path / "old", distinct_documents(LENGTHS))
    change, suffix = (MEGATRON | GPTS)[said]
    file = tmp_path / f"old.{suffix}"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DatasetError, match=re.escape(f"{file} is damaged: it has {said}")):
        ForeignDocuments(spec)


def test_what_lacks_its_tokens_or_has_other_masks_is_refused_in_words(tmp_path: Path) -> None:
    documents = distinct_documents(LENGTHS)
    for kind, write in (("megatron", write_megatron), ("gpts", write_gpts)):
        spec = write(tmp_path / kind, documents)
        (tmp_path / f"{kind}.bin").unlink()
        said = f"{kind}.bin is missing: {spec} is the two files {kind}.bin and {kind}.idx"
        with pytest.raises(DatasetError, match=re.escape(said)):
            ForeignDocuments(spec)
    with pytest.raises(DatasetError, match=r"none\.ds is missing: datatrove:PATH is a \.ds file"):
        ForeignDocuments(f"datatrove:{tmp_path}/none.ds")
    masks = [np.ones(len(each)) for each in documents]
    spec = write_datatrove(tmp_path / "d.ds", documents, masks=masks[1:])
    with pytest.raises(
        DatasetError, match=r"d\.ds\.loss is damaged: .*one for each token of d\.ds"
    ):
        ForeignDocuments(spec)


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("boundaries", [None, [0, 1, 2, 3, 3, 5], [0, 2, 3, 4, 5], [0, 5]])
def test_a_long_index_is_checked_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, boundaries: list[int] | None
) -> None:
    monkeypatch.setattr(megatron, "_NUMBERS_AT_ONCE", at_once)
    sequences = distinct_documents(LENGTHS)
    spec = write_megatron(tmp_path / "old", sequences, "<i4", boundaries)
    edges = itertools.pairwise(boundaries or range(6))
    joined = [np.concatenate([*sequences[a:b], []]) for a, b in edges]
    with (tmp_path / "old.idx").open("ab") as file:
        file.write(bytes(5))  # modes of a multimodal index
    source = ForeignDocuments(spec)
    assert_holds(source, joined)
    assert_holds(pickle.loads(pickle.dumps(source.sequences)), sequences)
