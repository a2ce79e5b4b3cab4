"""Data of other tools that is damaged: every error names the file and what is wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.errors import DatasetError
from jaxdata.format.foreign import nanogpt
from tests.documents.test_foreign import WRITERS, made, only_source, write_megatron


def damage(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


DAMAGES: dict[str, tuple[str, Any, str]] = {
    "no idx": ("megatron", lambda p: (p / "old.idx").unlink(), r"old.idx is missing: .*two files"),
    "no bin": ("megatron", lambda p: (p / "old.bin").unlink(), r"old.bin is missing: .*two files"),
    "magic": (
        "megatron",
        lambda p: damage(p / "old.idx", 0, b"GPTS"),
        r"old.idx is damaged: it has b'GPTS.*expected b'MMIDIDX",
    ),
    "version": ("megatron", lambda p: damage(p / "old.idx", 9, b"\7"), "version 7, expected ver"),
    "code": ("megatron", lambda p: damage(p / "old.idx", 17, b"\x0c"), "dtype code 12, expected"),
    "short header": ("megatron", lambda p: (p / "old.idx").write_bytes(b"MMIDIDX"), "7 bytes, exp"),
    "short idx": (
        "megatron",
        lambda p: cut(p / "old.idx", 8),
        r"834 bytes and is truncated, expected 842 \(40 sequences, 41 document boundaries\)",
    ),
    "short bin": (
        "megatron",
        lambda p: cut(p / "old.bin", 2),
        r"old.bin is damaged: it has [\d,]+ bytes and is truncated, expected [\d,]+ \(",
    ),
    "long bin": (
        "megatron",
        lambda p: (p / "old.bin").open("ab").write(b"ab"),
        r"old.bin is damaged: it has [\d,]+ bytes, expected [\d,]+ \(",
    ),
    "length": (
        "megatron",
        lambda p: damage(p / "old.idx", 34 + 8, b"\xff\xff\xff\xff"),
        "a length of -1 at sequence 2, expected 0 or more",
    ),
    "pointer": (
        "megatron",
        lambda p: damage(p / "old.idx", 34 + 160 + 16, b"\1"),
        r"the byte pointer \d+ at sequence 2, expected \d+, the sum",
    ),
    "boundary": (
        "megatron",
        lambda p: damage(p / "old.idx", 34 + 480 + 320, b"\1"),
        "document boundaries 0 to 1, expected 0 to 40",
    ),
    "gpts magic": ("gpts", lambda p: damage(p / "old.idx", 0, b"MMID"), "expected b'GPTS', GPT-S"),
    "gpts version": ("gpts", lambda p: damage(p / "old.idx", 4, b"\2"), "version 2, expected"),
    "gpts code": ("gpts", lambda p: damage(p / "old.idx", 8, b"\3"), r"code 3, expected 2 \(uint"),
    "gpts idx": ("gpts", lambda p: cut(p / "old.idx", 1), "truncated, expected 424 .40 windows"),
    "gpts bin": ("gpts", lambda p: cut(p / "old.bin", 1), "truncated, expected .*says the .idx"),
    "gpts falling": (
        "gpts",
        lambda p: damage(p / "old.idx", 24, b"\xff\xff\xff"),
        "window 1 ending before it begins",
    ),
    "nano odd": ("nanogpt", lambda p: cut(p / "old", 1), r"expected 2 for each token"),
    "nano gone": ("nanogpt", lambda p: (p / "old").unlink(), "old is missing: nanogpt:PATH is"),
    "ds index gone": (
        "datatrove",
        lambda p: (p / "old.index").unlink(),
        "old.index is missing: old cannot be split into documents without it",
    ),
    "ds index": ("datatrove", lambda p: cut(p / "old.index", 3), "317 bytes, expected 8 for each"),
    "ds beyond all": (
        "datatrove",
        lambda p: damage(p / "old.index", 0, struct.pack("<qq", 2**62 + 1, -(2**62))),
        "old.index is damaged: it has document 1 ending before it begins, expected rising ends",
    ),
    "ds short": ("datatrove", lambda p: cut(p / "old", 2), "expected 2 or 4 for each of"),
    "ds loss": (
        "datatrove",
        lambda p: (p / "old.loss").write_bytes(b"\1"),
        "old.loss is damaged: it has 1 bytes and is truncated",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    kind, harm, expected = DAMAGES[name]
    spec = WRITERS[kind](tmp_path, made())
    harm(tmp_path)
    with pytest.raises(DatasetError, match=expected):
        jaxdata.open_dataset(spec, eod_id=0)


def test_a_file_cut_after_it_was_opened_is_named(tmp_path: Path) -> None:
    source = only_source(write_megatron(tmp_path / "old", made()))
    cut(tmp_path / "old.bin", 1)
    with pytest.raises(DatasetError, match=r"old.bin ends before byte \d+: the file is truncated"):
        source[len(source) - 1]


ENDS: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "cut": lambda data: data[:-1],
    "a number less": lambda data: data[8:],
    "falling": lambda data: data[8:16] + data[:8] + data[16:],
    "nothing": lambda data: b"",
    "more ends than tokens": lambda data: data + bytes(2**16),
}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("name", ENDS)
def test_ends_that_are_kept_damaged_are_searched_again(
    tmp_path: Path, name: str, sealed: bool
) -> None:
    """An earlier jaxdata kept them without a checksum: then a bit goes unseen, but no more."""
    spec = WRITERS["nanogpt"](tmp_path, made())
    lengths = only_source(spec, eod_id=0).lengths.tolist()
    (kept,) = tmp_path.rglob("*.ends")
    content = kept.read_bytes()
    kept.write_bytes(ENDS[name](content if sealed else content[:-32]))
    found = only_source(spec, eod_id=0).lengths.tolist()
    if sealed or name not in ("a bit", "a number less"):
        assert found == lengths
        assert kept.read_bytes() == content


def test_ends_that_an_earlier_jaxdata_kept_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = WRITERS["nanogpt"](tmp_path, made())
    lengths = only_source(spec, eod_id=0).lengths.tolist()
    (kept,) = tmp_path.rglob("*.ends")
    kept.write_bytes(kept.read_bytes()[:-32])
    monkeypatch.setattr(nanogpt, "_ends", None)  # would be called to look for documents
    assert only_source(spec, eod_id=0).lengths.tolist() == lengths
