"""Archives: their files as Python's tarfile finds them; documents name the file they are from."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from jaxdata import open_dataset
from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from jaxdata.converter.inputs import streams
from jaxdata.converter.inputs.streams import entries
from tests.converter.here import decoded, quarantine, run_here, statistics
from tests.converter.inputs.made import Entry, array, lines, tar, zst

Patch = pytest.MonkeyPatch
LONG = "deep/" * 40 + "j.json.zst"
MEMBERS: list[Entry] = [
    ("a.jsonl", b"\xef\xbb\xbf" + lines("a1", "a2") + b"\n{\n" + lines("a5"), ""),
    ("d/b.json.gz", gzip.compress(array("b0", "b1", "b2")), ""),
    ("README.pdf", b"not text for us", ""),
    ("d/odd\nname é.txt", "odd text é".encode(), ""),
    ("empty.jsonl", b"", ""),
    (LONG, zst(array("j0", "j1")), ""),
    ("a.jsonl", lines("again").strip(), ""),
]
EXPECTED = [
    *(("a.jsonl", n, f"a{n}") for n in (1, 2, 5)),
    *(("d/b.json.gz", n, f"b{n}") for n in range(3)),
    ("d/odd\nname é.txt", 1, "odd text é"),
    *((LONG, n, f"j{n}") for n in range(2)),
    ("a.jsonl", 1, "again"),
]


LINKS = [("latest.jsonl", b"", "/etc/passwd"), ("d/new", b"", "../.."), ("l.txt", b"", LONG)]


@pytest.mark.parametrize("unit_bytes", [20, 2**26])
def test_documents_name_their_file_and_links_are_left_out(tmp_path: Path, unit_bytes: int) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    gnu = tar(*MEMBERS, ("other.pdf", b"", ""), *LINKS, form=tarfile.GNU_FORMAT, hard=True)
    (folder / "a.tar").write_bytes(tar(*MEMBERS, (".l.jsonl", b"", "a.jsonl"), *LINKS))
    (folder / "b.tar.gz").write_bytes(gzip.compress(gnu))
    (folder / "c.jsonl").write_bytes(lines("last") + b"[")
    report = run_here(folder, out, unit_bytes=unit_bytes)
    docs = open_dataset(out).source("train", "web")
    named = [(*docs.origin(number), text) for number, text in enumerate(decoded(out))]
    archives = ("a.tar", "b.tar.gz")
    of_both = [(f"{one}: {name}", n, text) for one in archives for name, n, text in EXPECTED]
    assert named == [*of_both, ("c.jsonl", 1, "last")]
    link = {"line": 1, "reason": "a link, which is not followed", "raw": ""}
    bad = []
    for file in archives:
        bad += [{"file": file, "member": "a.jsonl", "line": 4, "reason": "not JSON", "raw": "{"}]
        bad += [{"file": file, "member": name, **link} for name, _, _ in LINKS]
    last = {"file": "c.jsonl", "line": 2, "reason": "not JSON", "raw": "["}
    assert quarantine(out) == [*bad, last]
    counted = statistics(out)
    assert counted["records"] == counted["blank"] + report.documents + len(bad) + 1


def changed(data: bytes, start: int, field: bytes) -> bytes:
    """An archive with other bytes in its first header."""
    header = bytearray(data[:512])
    header[start : start + len(field)] = field
    header[148:156] = b" " * 8
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header) + data[512:]


def found(data: bytes) -> list[tuple[str, bytes]]:
    return [(name, content.read()) for name, content in entries(io.BytesIO(data), "t") if content]


def extended(kind: bytes, data: bytes) -> bytes:
    """A header that extends the next one, with its data."""
    info = tarfile.TarInfo("extension")
    info.type, info.size = kind, len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


letters = st.text("abc/é. x", min_size=1, max_size=120)
names = letters.map(lambda name: "/".join(filter(None, name.split("/"))) or "a").filter(
    lambda name: ".." not in name.split("/") and name != "."
)
files = st.lists(st.tuples(names, st.integers(0, 1_600)), max_size=6)


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
        theirs = [(one.name, archive.extractfile(one).read()) for one in archive]  # type: ignore[union-attr]
    assert found(buffer.getvalue()) == theirs


def test_names_and_sizes_are_what_the_forms_of_headers_say() -> None:
    content = b"1" * 600
    for data, expected in (
        (extended(b"x", b"3 \n14 path=other\n") + ONE, "other"),
        (extended(b"g", b"14 path=other\n") + ONE, "a"),
        (changed(ONE, 124, b"\x80" + len(content).to_bytes(11, "big")), "a"),
        (changed(ONE, 0, b"caf\xe9\0"), r"caf\xe9"),
        # GNU tar's time of access, where other forms have the first part of a name
        (changed(ONE, 257, b"ustar  \0" + bytes(80) + b"14727410000\0"), "a"),
        (extended(b"x", b"12 size=600\n") + changed(ONE, 124, b"%011o" % 0), "a"),
    ):
        assert found(data) == [(expected, content)]
    long = "d/" * 60 + "a"
    assert found(tar((long, content, ""), form=tarfile.USTAR_FORMAT)) == [(long, content)]
    hard = changed(tar(("b", b"", "a"), hard=True), 124, b"%011o" % 700)[:512]
    assert found(hard + ONE) == [("a", content)], "a link may say the size of what it leads to"
    assert found(changed(ONE, 156, b"5")) == [], "a folder"
    both = [("a", content), ("b", b"2")]
    assert found(ONE + bytes(700 * 512) + TWO) == both, "archives that were joined"


ONE, TWO = tar(("a", b"1" * 600, "")), tar(("b", b"2", ""))


DAMAGED = [
    *((changed(ONE, 124, size), ".") for size in (b"-0000000001", b"0000000zz", b"\xff" * 12)),
    (ONE + b"x", "checksum is wrong"),
    (ONE[:1536], "no end mark"),
    (ONE + TWO[:512], "cut short"),
    (ONE + bytes(512) + b"\1" * 512, "checksum is wrong"),
    (extended(b"x", b"0 path=other\n") + ONE, "a pax header is damaged"),
    (extended(b"x", b"99 path=other\n") + ONE, "a pax header is damaged"),
    (extended(b"x", b"14 path=other\n3 ") + ONE, "a pax header is damaged"),
    (extended(b"x", b"12 size=-99\n") + ONE, "a size is negative"),
    (extended(b"L", bytes(2**20 + 1)) + ONE, "a header has 1,048,577 bytes"),
    (changed(ONE, 0, b"../a\0"), r"contains '\.\./a', a path that escapes the archive"),
    (changed(ONE, 156, b"3"), "contains 'a', a device; expected plain files only"),
    (changed(ONE, 156, b"Z"), "contains 'a', a thing of unknown kind"),
    (extended(b"x", b"22 GNU.sparse.major=1\n") + ONE, "contains 'a', a sparse file"),
]


@pytest.mark.parametrize(("data", "message"), DAMAGED)
def test_what_is_damaged_or_dangerous_is_refused(data: bytes, message: str) -> None:
    with pytest.raises((ValueError, EOFError, InputError), match=message):
        found(data)


NAMED = [
    (r"a\.tar: x\.jsonl:1: not JSON\. Fix", "x.jsonl", b"{"),
    (r"a\.tar: x\.zst\.jsonl cannot be read to its end", "x.zst.jsonl", zst(ONE)[:-3]),
    (r"a\.tar: x\.json cannot be read to its end .*truncated or damaged", "x.json", b"[1"),
    (r"a\.tar: t\.tar is an archive in an archive", "t.tar", ONE),
    (r"a\.tar: t\.parquet is a table in an arc", "t.parquet", b"PAR1" * 9),
    (r"an archive without any file that ends in \.csv", "x.pdf", b""),
]


@pytest.mark.parametrize(("says", "name", "content"), NAMED)
def test_errors_name_the_file(tmp_path: Path, says: str, name: str, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(tar((name, content, "")))
    for unit_bytes in (10, 2**26):  # read by the parent, and by a worker
        with pytest.raises(InputError, match=says):
            run_here(tmp_path / "a.tar", tmp_path / "out", unit_bytes=unit_bytes, on_error="fail")


def test_a_file_in_an_archive_grows_only_in_proportion(tmp_path: Path, monkeypatch: Patch) -> None:
    """By its own size, not by that of the archive."""
    monkeypatch.setattr(streams, "FREE", 10_000)
    bomb = ("b.jsonl.zst", zst(lines("x" * 10**7)), "")
    (tmp_path / "a.tar").write_bytes(tar(("c.bin", bytes(10**6), ""), bomb))
    with pytest.raises(InputError, match=r"a\.tar: b\.jsonl\.zst expands to more than 200 times"):
        list(texts(tmp_path / "a.tar"))
