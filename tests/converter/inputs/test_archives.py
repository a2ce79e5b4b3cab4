"""Archives: their files as Python's tarfile finds them; documents name the file they are from."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata import open_dataset
from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from jaxdata.converter.inputs import streams
from jaxdata.converter.inputs.archives import entries
from tests import commands
from tests.converter.here import manifest, quarantine, run_here
from tests.converter.inputs.made import Entry, array, lines, tar, zst

LONG = "deep/" * 40 + "j.json.zst"
HUGE = b"".join(b"%d words here\n" % n for n in range(100))
MEMBERS: list[Entry] = [
    ("a.jsonl", b"\xef\xbb\xbf" + lines("a1", "a2") + b"\n{\n" + lines("a5"), ""),
    ("d/b.json.gz", gzip.compress(array("b0", "b1", "b2")), ""),
    ("README.pdf", b"not text for us", ""),
    ("d/odd\nname é.txt", "odd text é".encode(), ""),
    ("empty.jsonl", b"", ""),
    ("huge.txt", HUGE, ""),
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


def origins(output: Path, split: str = "train") -> list[tuple[str, int, str]]:
    docs = open_dataset(output).source(split, "web")
    texts = [bytes(one["tokens"].clip(0, 255).astype("u1")) for one in docs]
    return [(*docs.origin(i), text.decode("utf-8", "replace")) for i, text in enumerate(texts)]


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


LINKS = [("latest.jsonl", b"", "/etc/passwd"), ("d/new", b"", "../.."), ("l.txt", b"", LONG)]
HIDDEN = (".l.jsonl", b"", "a.jsonl")


@pytest.mark.parametrize(
    ("form", "unit_bytes", "kind"),
    [(tarfile.PAX_FORMAT, 40, "symbolic"), (tarfile.GNU_FORMAT, 2**26, "hard")],
)
def test_every_document_names_its_file_and_links_are_left_out_by_name(
    tmp_path: Path, form: int, unit_bytes: int, kind: str
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    options: dict[str, Any] = {"unit_bytes": unit_bytes, "piece_bytes": 64}
    write(folder / "0.jsonl", lines("zero"))
    write(folder / "a.tar", tar(*MEMBERS, HIDDEN, *LINKS, form=form, hard=kind == "hard"))
    run_here(folder, out, append=True, **options)
    write(folder / "b.tar.gz", gzip.compress(tar(*MEMBERS, ("other.pdf", b"", ""), form=form)))
    write(folder / "c.jsonl", lines("last") + b"[")
    run_here(folder, out, append=True, **options)
    for archive in ("a.tar", "b.tar.gz"):
        named = [one for one in origins(out) if one[0].startswith(f"{archive}: ")]
        whole = [(name, n, text[:-1]) for name, n, text in named if "huge" not in name]
        assert whole == [(f"{archive}: {name}", n, text) for name, n, text in EXPECTED]
        pieces = [(n, text) for name, n, text in named if name == f"{archive}: huge.txt"]
        assert [n for n, _ in pieces] == list(range(1, len(pieces) + 1))
        assert len(pieces) > 15
        assert "".join(text for _, text in pieces)[:-1].encode() == HUGE
    report = run_here(folder, tmp_path / "dealt", split_ratio="train=1,val=1", **options)
    both = [one for split in ("train", "val") for one in origins(tmp_path / "dealt", split)]
    assert sorted(both) == sorted(origins(out))
    in_archive = {"member": "a.jsonl", "line": 4, "reason": "not JSON", "raw": "{"}
    what = f"a {kind} link, which is not followed"
    assert quarantine(tmp_path / "dealt") == [
        {"file": "a.tar", **in_archive},
        *({"file": "a.tar", "member": name, "line": 1, "reason": what, "raw": leads}
          for name, _, leads in LINKS),
        {"file": "b.tar.gz", **in_archive},
        {"file": "c.jsonl", "line": 2, "reason": "not JSON", "raw": "["},
    ]  # fmt: skip
    found = manifest(tmp_path / "dealt")["sources"]["train/web"]["statistics"]
    assert found["records"] == found["blank"] + report.documents + sum(report.quarantined.values())
    said = commands.run("inspect", out, "--document", "train/web:3").stdout
    assert said.startswith("train/web:3: 3 tokens, from a.tar: a.jsonl line 5\n")


def changed(data: bytes, start: int, field: bytes) -> bytes:
    """An archive with other bytes in its first header."""
    header = bytearray(data[:512])
    header[start : start + len(field)] = field
    header[148:156] = b" " * 8
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header) + data[512:]


def found(data: bytes) -> list[tuple[str, bytes, str]]:
    return [
        (entry.name, entry.content.read(), entry.target) for entry in entries(io.BytesIO(data), "t")
    ]


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
        theirs = [(one.name, archive.extractfile(one).read(), "") for one in archive]  # type: ignore[union-attr]
    assert found(buffer.getvalue()) == theirs


def test_names_and_sizes_are_what_the_forms_of_headers_say() -> None:
    name, target, content = "n" * 150, "t" * 150, b"1" * 600
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        linked = tar((name, b"", target), ("b", b"2", ""), form=form)
        assert found(linked) == [(name, b"", target), ("b", b"2", "")]
    whole = tar(("a", content, ""), form=tarfile.GNU_FORMAT)
    binary = changed(whole, 124, b"\x80" + len(content).to_bytes(11, "big"))
    empty = changed(whole, 124, b"%011o" % 0)
    linked = changed(tar(("b", b"", "a"), hard=True), 124, b"%011o" % 700)[:512]
    for data, expected in (
        (extended(b"x", b"3 \n14 path=other\n") + whole, "other"),
        (extended(b"g", b"14 path=other\n") + whole, "a"),
        (binary, "a"),
        (changed(whole, 0, b"caf\xe9\0"), r"caf\xe9"),
        (extended(b"x", b"12 size=600\n") + empty, "a"),
    ):
        assert found(data) == [(expected, content, "")]
    assert found(linked + whole) == [("b", b"", "a"), ("a", content, "")]
    assert found(changed(whole, 156, b"5")) == [], "a folder"
    both = [("a", b"1" * 600, ""), ("b", b"2", "")]
    assert found(ONE + bytes(700 * 512) + TWO) == both, "archives that were joined"
    assert found(ONE + bytes(99)) == both[:1]


ONE, TWO = tar(("a", b"1" * 600, "")), tar(("b", b"2", ""))


@pytest.mark.parametrize(
    ("data", "message"),
    [
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
    ],
)
def test_what_is_damaged_or_dangerous_is_refused(data: bytes, message: str) -> None:
    with pytest.raises((ValueError, EOFError, InputError), match=message):
        found(data)
    with pytest.raises((ValueError, EOFError, InputError)):
        [*entries(io.BytesIO(data), "t")]  # none is read


@pytest.mark.parametrize("unit_bytes", [10, 2**26])
def test_errors_name_the_file(tmp_path: Path, unit_bytes: int) -> None:
    def refused(says: str, *entries: Entry, **options: Any) -> None:
        path = write(tmp_path / "a.tar", tar(*entries))
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        with pytest.raises(InputError, match=says):
            run_here(path, out, unit_bytes=unit_bytes, **options)

    refused(r"a\.tar: a\.jsonl:4: not JSON\. Fix", *MEMBERS, on_error="fail")
    refused("the key 'q'; .*a.tar: d/b.json.gz:0 has 'text'", MEMBERS[1], text_key="q")
    for name, content in (
        ("x.jsonl.gz", gzip.compress(lines("a", "b"))[:-9]),
        ("x.jsonl.zst", zst(lines("a", "b"))[:-3]),
        ("x.json", b"[1"),
    ):
        damaged = rf"a\.tar: {re.escape(name)} cannot be read to its end .*truncated or damaged"
        refused(damaged, MEMBERS[0], (name, content, ""))
    refused(r"a\.tar: t\.tar is an archive in an archive", ("t.tar", tar(MEMBERS[0]), ""))
    refused(r"a\.tar: t\.parquet is a table in an arc", ("t.parquet", b"PAR1" * 9, ""))
    refused(r"an archive without any file that ends in \.csv", ("a.jsonl", b"", "b.jsonl"))


def test_a_compressed_file_in_an_archive_may_not_grow_out_of_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own size, not by that of the archive."""
    monkeypatch.setattr(streams, "FREE", 10_000)
    words = lines(*(f"word {n} " + "x" * 100 for n in range(3_000)))
    filler, file = ("c.bin", bytes(10**6), ""), ("a.jsonl.zst", zst(words), "")
    bomb = ("b.jsonl.zst", zst(lines("x" * 10**7)), "")
    assert len(list(texts(write(tmp_path / "a.tar", tar(filler, file))))) == 3_000
    with pytest.raises(InputError, match=r"a\.tar: b\.jsonl\.zst expands to more than 200 times"):
        list(texts(write(tmp_path / "a.tar", tar(filler, file, bomb))))
