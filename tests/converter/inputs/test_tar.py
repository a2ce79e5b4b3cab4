"""The reader of tar archives, beside Python's own; and what that would pass over in silence."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.converter import texts
from jaxdata.converter.inputs import compression as streams
from jaxdata.converter.inputs.archives import entries
from jaxdata.errors import InputError
from tests.converter.inputs.test_archives import changed, lines, tar

letters = st.text("abc/é. x", min_size=1, max_size=120)
names = letters.map(lambda name: "/".join(filter(None, name.split("/"))) or "a").filter(
    lambda name: ".." not in name.split("/") and name != "."
)
files = st.lists(st.tuples(names, st.integers(0, 1_600)), max_size=6)


def found(data: bytes) -> list[tuple[str, bytes, str]]:
    return [
        (entry.name, entry.content.read(), entry.target) for entry in entries(io.BytesIO(data), "t")
    ]


def extended(kind: bytes, data: bytes) -> bytes:
    """A header that extends the next one, with its data."""
    info = tarfile.TarInfo("extension")
    info.type, info.size = kind, len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


@given(files, st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_files_are_those_that_tarfile_finds(made: list[tuple[str, int]], form: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, size in made:
            info = tarfile.TarInfo(name)
            info.size = size
            try:
                archive.addfile(info, io.BytesIO(bytes(range(256)) * 7))
            except ValueError:  # too long for the oldest form
                continue
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as archive:
        theirs = [(one.name, archive.extractfile(one).read(), "") for one in archive]  # type: ignore[union-attr]
    assert found(buffer.getvalue()) == theirs


def test_folders_are_no_files() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo("d.jsonl")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    assert found(buffer.getvalue()) == []


def test_a_long_name_and_a_long_target_belong_together() -> None:
    name, target = "n" * 150, "t" * 150
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert found(tar((name, b"", target), ("b", b"2", ""), form=form)) == [
            (name, b"", target),
            ("b", b"2", ""),
        ]


def test_the_oldest_form_has_the_beginning_of_a_long_name_elsewhere() -> None:
    name = "folder/" * 12 + "n" * 60 + ".jsonl"
    assert found(tar((name, b"1", ""), form=tarfile.USTAR_FORMAT)) == [(name, b"1", "")]


def test_times_of_a_gnu_header_are_no_part_of_the_name() -> None:
    whole = tar(("a", b"1", ""), form=tarfile.GNU_FORMAT)
    assert found(changed(whole, 345, b"14724601234\0"))[0][0] == "a"


def test_a_name_that_is_not_utf8_is_spelled_out() -> None:
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT, encoding="latin-1"
    ) as archive:
        archive.addfile(tarfile.TarInfo("café"))
    assert found(buffer.getvalue())[0][0] == r"caf\xe9"


def test_a_header_for_all_files_names_none_of_them() -> None:
    said = extended(b"g", b"14 path=other\n")
    assert found(said + tar(("a", b"1", "")))[0][0] == "a"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (extended(b"x", b"0 path=other\n"), "a pax header is damaged"),
        (extended(b"x", b"99 path=other\n"), "a pax header is damaged"),
        (extended(b"x", b"12 size=-99\n"), "a size is negative"),
        (extended(b"L", bytes(2**20 + 1)), "a header has 1,048,577 bytes"),
    ],
)
def test_a_damaged_header_says_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        found(data + tar(("a", b"1" * 600, "")))


def test_a_file_that_is_cut_short() -> None:
    data = tar(("a", b"1" * 2_000, ""))[: 512 + 700]
    with pytest.raises(EOFError, match="a file in the archive is cut short"):
        found(data)
    with pytest.raises(EOFError, match="a file in the archive is cut short"):
        list(entries(io.BytesIO(data), "t"))  # none is read


def test_names_may_begin_with_this_folder(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar(("./d/a.jsonl", lines("one"), "")))
    assert list(texts(tmp_path / "a.tar")) == ["one"]


def test_a_compressed_file_in_an_archive_may_not_grow_out_of_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own size, not by that of the archive."""
    monkeypatch.setattr(streams, "FREE", 10_000)
    words = lines(*(f"word {n} " + "x" * 100 for n in range(3_000)))
    file = ("a.jsonl.zst", zstandard.ZstdCompressor().compress(words), "")
    bomb = ("b.jsonl.zst", zstandard.ZstdCompressor().compress(lines("x" * 10**7)), "")
    filler = ("c.bin", bytes(10**6), "")
    (tmp_path / "a.tar").write_bytes(tar(filler, file))
    assert len(list(texts(tmp_path / "a.tar"))) == 3_000
    (tmp_path / "a.tar").write_bytes(tar(filler, file, bomb))
    with pytest.raises(InputError, match=r"a\.tar: b\.jsonl\.zst expands to more than 200 times"):
        list(texts(tmp_path / "a.tar"))
