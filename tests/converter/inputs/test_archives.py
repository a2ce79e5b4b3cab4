"""Archives: their files as Python's tarfile finds them; documents name the file they are from."""

from __future__ import annotations

import gzip
import io
import json
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
from jaxdata.converter.inputs import streams as compression
from jaxdata.converter.inputs.archives import entries
from tests import commands
from tests.converter.here import run_here
from tests.converter.inputs.made import Entry, array, lines, tar, zst
from tests.converter.test_convert import manifest, quarantine

LONG = "deep/" * 40 + "j.json.zst"
MEMBERS: list[Entry] = [
    ("a.jsonl", b"\xef\xbb\xbf" + lines("a1", "a2") + b"\n{\n" + lines("a5"), ""),
    ("d/b.json.gz", gzip.compress(array("b0", "b1", "b2")), ""),
    ("README.pdf", b"not text for us", ""),
    ("d/odd\nname é.txt", "odd text é".encode(), ""),
    ("empty.jsonl", b"", ""),
    ("huge.txt", b"".join(b"%d words here\n" % n for n in range(100)), ""),
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
PIECES: dict[str, Any] = {"piece_bytes": 64}  # huge.txt is read in some twenty


def origins(output: Path, split: str = "train") -> list[tuple[str, int, str]]:
    docs = open_dataset(output).source(split, "web")
    tokens = [docs[i]["tokens"] for i in range(len(docs))]
    found = [bytes(one.clip(0, 255).astype("u1")) for one in tokens]
    return [(*docs.origin(i), text.decode("utf-8", "replace")) for i, text in enumerate(found)]


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def check(output: Path, archive: str) -> None:
    """That every document of `MEMBERS` is where it says."""
    named = [one for one in origins(output) if one[0].startswith(f"{archive}: ")]
    whole = [(name, n, text[:-1]) for name, n, text in named if "huge" not in name]
    assert whole == [(f"{archive}: {name}", n, text) for name, n, text in EXPECTED]
    pieces = [(n, text) for name, n, text in named if name == f"{archive}: huge.txt"]
    assert [n for n, _ in pieces] == list(range(1, len(pieces) + 1))
    assert len(pieces) > 15
    assert "".join(text for _, text in pieces)[:-1].encode() == MEMBERS[5][1]


@pytest.mark.parametrize(
    ("form", "unit_bytes"), [(tarfile.PAX_FORMAT, 40), (tarfile.GNU_FORMAT, 2**26)]
)
def test_every_document_names_its_file_in_all_splits_and_generations(
    tmp_path: Path, form: int, unit_bytes: int
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    options: dict[str, Any] = {"unit_bytes": unit_bytes, **PIECES}
    write(folder / "0.jsonl", lines("zero"))
    write(folder / "a.tar", tar(*MEMBERS, form=form))
    run_here(folder, out, append=True, **options)
    write(folder / "b.tar.gz", gzip.compress(tar(*MEMBERS, ("other.pdf", b"", ""), form=form)))
    write(folder / "c.jsonl", lines("last") + b"[")
    run_here(folder, out, append=True, **options)
    check(out, "a.tar")
    check(out, "b.tar.gz")
    found = origins(out)
    assert (found[0][:2], found[-1][:2]) == (("0.jsonl", 1), ("c.jsonl", 1))
    was = open_dataset(out).source("train", "web", generation=0)
    assert was.origin(len(was) - 1) == ("a.tar: a.jsonl", 1)
    run_here(folder, tmp_path / "dealt", split_ratio="train=1,val=1", **options)
    both = [one for split in ("train", "val") for one in origins(tmp_path / "dealt", split)]
    assert sorted(both) == sorted(found)
    in_archive = {"member": "a.jsonl", "line": 4, "reason": "not JSON", "raw": "{"}
    assert quarantine(tmp_path / "dealt") == [
        {"file": "a.tar", **in_archive},
        {"file": "b.tar.gz", **in_archive},
        {"file": "c.jsonl", "line": 2, "reason": "not JSON", "raw": "["},
    ]
    run_here(folder / "0.jsonl", tmp_path / "plain")
    plain = manifest(tmp_path / "plain")["sources"]["train/web"]["checksums"]
    assert not [name for name in plain if name.startswith("member")]


def test_commands_name_the_file(tmp_path: Path) -> None:
    write(tmp_path / "in/a.tar", tar(*MEMBERS))
    write(tmp_path / "in/huge.txt", MEMBERS[5][1] + b"\xff")
    out = tmp_path / "out"
    run_here(tmp_path / "in", out, **PIECES)
    bad = quarantine(out)[-1]
    huge = [n for n, (name, *_) in enumerate(origins(out)) if name == "huge.txt"]
    assert (bad["file"], bad["piece"], "line" in bad) == ("huge.txt", len(huge) + 1, False)

    def of(document: int, *more: str) -> str:
        return commands.run("inspect", out, "--document", f"train/web:{document}", *more).stdout

    assert of(2).startswith("train/web:2: 3 tokens, from a.tar: a.jsonl line 5\n")
    assert of(4).startswith("train/web:4: 3 tokens, from a.tar: d/b.json.gz row 1\n")
    assert re.match(r"train/web:6: 12 tokens, from a\.tar: d/odd\S+name é\.txt\n", of(6))
    assert ", from a.tar: huge.txt\n" in of(7)
    assert ", from a.tar: huge.txt piece 2\n" in of(8)
    where = {"file": "a.tar", "member": "huge.txt", "line": None, "row": None, "piece": 2}
    assert json.loads(of(8, "--json"))["origin"].items() >= where.items()
    assert " tokens, from huge.txt\n" in of(huge[0])
    assert " tokens, from huge.txt piece 2\n" in of(huge[1])
    settings = [f"--dataset={out}", "--pack.seq_len=32", "--loader.batch_size=4"]
    traced = commands.run("inspect", "--config", "pretrain", "--document", "web:4", *settings)
    assert "from a.tar: d/b.json.gz row 1" in traced.stdout


@pytest.mark.parametrize(
    ("unit_bytes", "hard", "form"),
    [(100, False, tarfile.PAX_FORMAT), (2**26, True, tarfile.GNU_FORMAT)],
)
def test_links_are_left_out_by_name(tmp_path: Path, unit_bytes: int, hard: bool, form: int) -> None:
    target = "deep/" * 40 + "a.jsonl"
    links = [("latest.jsonl", b"", "/etc/passwd"), ("d/new", b"", "../.."), ("l.txt", b"", target)]
    hidden = (".l.jsonl", b"", "a.jsonl")
    data = tar(MEMBERS[0], *links, hidden, MEMBERS[1], form=form, hard=hard)
    (tmp_path / "a.tar").write_bytes(data)
    report = run_here(tmp_path / "a.tar", tmp_path / "out", unit_bytes=unit_bytes)
    what = f"a {'hard' if hard else 'symbolic'} link, which is not followed"
    assert report.quarantined == {"not JSON": 1, what: 3}
    assert [one for one in quarantine(tmp_path / "out") if "link" in one["reason"]] == [
        {"file": "a.tar", "member": name, "line": 1, "reason": what, "raw": leads}
        for name, _, leads in links
    ]
    assert [one[:2] for one in origins(tmp_path / "out")] == [
        (f"a.tar: {name}", n) for name, n, _ in EXPECTED[:6]
    ]
    statistics = manifest(tmp_path / "out")["sources"]["train/web"]["statistics"]
    assert statistics["records"] == statistics["blank"] + report.documents + 4
    with pytest.raises(InputError, match=rf"b\.tar: latest\.jsonl:1: {what}\. Fix the record"):
        run_here(
            write(tmp_path / "b.tar", tar(*links, MEMBERS[1], form=form, hard=hard)),
            tmp_path / "strict",
            on_error="fail",
            unit_bytes=unit_bytes,
        )


def changed(data: bytes, start: int, field: bytes) -> bytes:
    """An archive with other bytes in its first header."""
    header = bytearray(data[:512])
    header[start : start + len(field)] = field
    header[148:156] = b" " * 8
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header) + data[512:]


def test_a_hard_link_that_says_a_size_has_no_content(tmp_path: Path) -> None:
    data = tar(("b.jsonl", b"", "a.jsonl"), hard=True)
    link = changed(data, 124, b"%011o" % 700)[:512]
    data = link + tar(("c.jsonl", lines("c"), ""))
    assert list(texts(write(tmp_path / "a.tar", data))) == ["c"]


def test_archives_that_were_joined_are_read_whole(tmp_path: Path) -> None:
    one, two = tar(MEMBERS[0]), tar(("b.jsonl", lines("b"), ""))
    assert list(texts(write(tmp_path / "a.tar", one + bytes(700 * 512) + two))) == [
        *("a1", "a2", "a5", "b"),
    ]
    for rest in (b"x", two[:700], bytes(512) + b"\1" * 512):
        with pytest.raises(InputError, match=r"a\.tar cannot be read to its end"):
            list(texts(write(tmp_path / "a.tar", one + rest)))
    assert list(texts(write(tmp_path / "a.tar", one + bytes(99)))) == ["a1", "a2", "a5"]


@pytest.mark.parametrize("size", [b"-0000000001", b"-0000000005", b"00000000zz", b"\xff" * 12])
def test_a_size_that_is_none_is_refused(tmp_path: Path, size: bytes) -> None:
    data = changed(tar(("a.jsonl", lines("a"), "")), 124, size)
    with pytest.raises(InputError, match=r"a\.tar.* cannot be read to its end"):
        list(texts(write(tmp_path / "a.tar", data)))


def test_a_large_size_is_binary_or_in_a_pax_header(tmp_path: Path) -> None:
    content = lines("a")
    data = tar(("a.jsonl", content, ""))
    binary = b"\x80" + len(content).to_bytes(11, "big")
    assert list(texts(write(tmp_path / "a.tar", changed(data, 124, binary)))) == ["a"]
    said = {"size": str(len(content)), "comment": "x" * 600}
    for size in (len(content), 0):
        with tarfile.open(tmp_path / "b.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            info = tarfile.TarInfo("a.jsonl")
            info.size, info.pax_headers = size, said
            archive.addfile(info, io.BytesIO(content))
            if not size:
                archive.fileobj.write(content.ljust(512, b"\0"))
        assert list(texts(tmp_path / "b.tar")) == ["a"]


@pytest.mark.parametrize("said", [{"GNU.sparse.major": "1"}, {"GNU.sparse.map": "0,1"}])
def test_sparse_files_are_refused(tmp_path: Path, said: dict[str, str]) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.jsonl")
        info.pax_headers = said
        archive.addfile(info)
    with pytest.raises(
        InputError, match=r"a\.tar contains 'a\.jsonl', a sparse file; expected plain"
    ):
        list(texts(tmp_path / "a.tar"))


def test_an_archive_of_nothing_but_links_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", tar(("a.jsonl", b"", "b.jsonl")))
    with pytest.raises(InputError, match=r"is an archive without any file that ends in \.csv"):
        run_here(path, tmp_path / "out")


def fails(record: dict[str, Any]) -> dict[str, Any]:
    if record["text"] == "b1":
        raise ValueError("no")
    return record


@pytest.mark.parametrize("unit_bytes", [10, 2**26])
def test_errors_name_the_file(tmp_path: Path, unit_bytes: int) -> None:
    def refused(says: str, *entries: Entry, **options: Any) -> None:
        path = write(tmp_path / "a.tar", tar(*entries))
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        with pytest.raises(InputError, match=says):
            run_here(path, out, unit_bytes=unit_bytes, **options)

    refused(r"a\.tar: a\.jsonl:4: not JSON\. Fix", *MEMBERS, on_error="fail")
    name = "tests.converter.inputs.test_archives:fails"
    refused(r"a\.tar: d/b\.json\.gz:1: the transform raised", *MEMBERS[1:], transform=name)
    refused(
        r"has the key 'body'; .*a\.tar: d/b\.json\.gz:0 has 'text'", MEMBERS[1], text_key="body"
    )
    refused(r"a\.tar: x\.jsonl:1\. Are these the files", ("x.jsonl", b"{", ""))
    for name, content in (
        ("x.jsonl.gz", gzip.compress(lines("a", "b"))[:-9]),
        ("x.jsonl.zst", zst(lines("a", "b"))[:-3]),
        ("x.json", b"[1"),
    ):
        damaged = rf"a\.tar: {re.escape(name)} cannot be read to its end .*truncated or damaged"
        refused(damaged, MEMBERS[0], (name, content, ""))
    refused(r"a\.tar: t\.tar is an archive in an archive", ("t.tar", tar(MEMBERS[0]), ""))
    refused(r"a\.tar: t\.parquet is a table in an arc", ("t.parquet", b"PAR1" * 9, ""))


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


def test_names_are_what_the_forms_of_headers_say() -> None:
    name, target = "n" * 150, "t" * 150
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        linked = tar((name, b"", target), ("b", b"2", ""), form=form)
        assert found(linked) == [(name, b"", target), ("b", b"2", "")]
    whole = tar(("a", b"1", ""), form=tarfile.GNU_FORMAT)
    assert found(changed(whole, 345, b"14724601234\0"))[0][0] == "a", "times are no part of it"
    empty = extended(b"x", b"3 \n14 path=other\n")
    assert found(empty + tar(("a", b"1", "")))[0][0] == "other"
    for_all = extended(b"g", b"14 path=other\n")
    assert found(for_all + tar(("a", b"1", "")))[0][0] == "a"
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT, encoding="latin-1"
    ) as archive:
        folder = tarfile.TarInfo("d.jsonl")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        archive.addfile(tarfile.TarInfo("café"))
    assert found(buffer.getvalue()) == [(r"caf\xe9", b"", "")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (extended(b"x", b"0 path=other\n"), "a pax header is damaged"),
        (extended(b"x", b"99 path=other\n"), "a pax header is damaged"),
        (extended(b"x", b"2 path=other\n"), "a pax header is damaged"),
        (extended(b"x", b"14 path=other\n3 "), "a pax header is damaged"),
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


def test_a_compressed_file_in_an_archive_may_not_grow_out_of_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own size, not by that of the archive."""
    monkeypatch.setattr(compression, "FREE", 10_000)
    words = lines(*(f"word {n} " + "x" * 100 for n in range(3_000)))
    file = ("a.jsonl.zst", zst(words), "")
    bomb = ("b.jsonl.zst", zst(lines("x" * 10**7)), "")
    filler = ("c.bin", bytes(10**6), "")
    (tmp_path / "a.tar").write_bytes(tar(filler, file))
    assert len(list(texts(tmp_path / "a.tar"))) == 3_000
    (tmp_path / "a.tar").write_bytes(tar(filler, file, bomb))
    with pytest.raises(InputError, match=r"a\.tar: b\.jsonl\.zst expands to more than 200 times"):
        list(texts(tmp_path / "a.tar"))
