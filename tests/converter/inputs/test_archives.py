"""Archives: every document names the file in it that it came from; links are left out by name."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from jaxdata import open_dataset, stream_text
from jaxdata.cli import main
from jaxdata.converter import texts
from jaxdata.errors import InputError
from jaxdata.format.archive_members import Member, MemberTable, find_member
from tests.converter.here import run_here
from tests.converter.test_convert import (
    decoded,
    manifest,
    quarantine,
    records,
    run,
    write_lines,
)
from tests.format.trees import tree

Entry = tuple[str, bytes, str]  # name, content, where a link leads


def tar(*entries: Entry, form: int = tarfile.PAX_FORMAT, hard: bool = False) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content, target in entries:
            info = tarfile.TarInfo(name)
            info.size, info.linkname = len(content), target
            if target:
                info.type = tarfile.LNKTYPE if hard else tarfile.SYMTYPE
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def lines(*words: str) -> bytes:
    return b"".join(line + b"\n" for line in records(*words))


def array(*words: str) -> bytes:
    return json.dumps([{"text": word} for word in words]).encode()


LONG = "deep/" * 40 + "j.json.zst"
MEMBERS: list[Entry] = [
    ("a.jsonl", b"\xef\xbb\xbf" + lines("a1", "a2") + b"\n{\n" + lines("a5"), ""),
    ("d/b.json.gz", gzip.compress(array("b0", "b1", "b2")), ""),
    ("README.pdf", b"not text for us", ""),
    ("d/odd\nname é.txt", "odd text é".encode(), ""),
    ("empty.jsonl", b"", ""),
    ("huge.txt", b"".join(b"%d words here\n" % n for n in range(100)), ""),
    (LONG, zstandard.ZstdCompressor().compress(array("j0", "j1")), ""),
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


def check(output: Path, archive: str) -> None:
    """That every document of `MEMBERS` is where it says."""
    named = [one for one in origins(output) if one[0].startswith(f"{archive}: ")]
    whole = [(name, n, text[:-1]) for name, n, text in named if "huge" not in name]
    assert whole == [(f"{archive}: {name}", n, text) for name, n, text in EXPECTED]
    pieces = [(n, text) for name, n, text in named if name == f"{archive}: huge.txt"]
    assert [n for n, _ in pieces] == list(range(1, len(pieces) + 1))
    assert len(pieces) > 15
    assert "".join(text for _, text in pieces)[:-1].encode() == MEMBERS[5][1]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("unit_bytes", [40, 1_000, 2**26])
def test_every_document_names_its_file(tmp_path: Path, form: int, unit_bytes: int) -> None:
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in/0.jsonl", records("zero"))
    (tmp_path / "in/a.tar").write_bytes(tar(*MEMBERS, form=form))
    (tmp_path / "in/b.tar.gz").write_bytes(gzip.compress(tar(*MEMBERS, form=form)))
    write_lines(tmp_path / "in/c.jsonl", [*records("last"), b"["])
    run_here(tmp_path / "in", tmp_path / "out", unit_bytes=unit_bytes, **PIECES)
    check(tmp_path / "out", "a.tar")
    check(tmp_path / "out", "b.tar.gz")
    found = origins(tmp_path / "out")
    assert (found[0][:2], found[-1][:2]) == (("0.jsonl", 1), ("c.jsonl", 1))
    bad = quarantine(tmp_path / "out")
    in_archive = {"member": "a.jsonl", "line": 4, "reason": "not JSON", "raw": "{"}
    assert bad == [
        {"file": "a.tar", **in_archive},
        {"file": "b.tar.gz", **in_archive},
        {"file": "c.jsonl", "line": 2, "reason": "not JSON", "raw": "["},
    ]


def test_workers_and_splits_and_additions(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.tar").write_bytes(tar(*MEMBERS))
    options: dict[str, Any] = {"unit_bytes": 200, "append": True, **PIECES}
    run_here(tmp_path / "in", tmp_path / "one", **options)
    run(tmp_path / "in", tmp_path / "three", workers=3, **options)
    assert tree(tmp_path / "one") == tree(tmp_path / "three")
    (tmp_path / "in/b.tar").write_bytes(tar(*MEMBERS, ("other.pdf", b"", "")))
    write_lines(tmp_path / "in/c.jsonl", records("last"))
    run_here(tmp_path / "in", tmp_path / "one", **options)
    check(tmp_path / "one", "a.tar")
    check(tmp_path / "one", "b.tar")
    was = open_dataset(tmp_path / "one").source("train", "web", generation=0)
    assert was.origin(len(was) - 1) == ("a.tar: a.jsonl", 1)
    dealt = tmp_path / "dealt"
    run_here(tmp_path / "in", dealt, split_ratio="train=1,val=1", **PIECES)
    both = [one for split in ("train", "val") for one in origins(dealt, split)]
    assert sorted(both) == sorted(origins(tmp_path / "one"))


def test_a_dataset_without_the_table_says_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar(*MEMBERS))
    run_here(tmp_path / "a.tar", tmp_path / "out")
    docs = open_dataset(tmp_path / "out").source("train", "web")
    known = {"length", "anchor", "origin_file", "origin_row"}
    checksums = {name: sha for name, sha in docs.entry.checksums.items() if name in known}
    assert checksums.keys() == known
    entry = docs.entry.model_copy(update={"checksums": checksums})
    old = type(docs)(docs.store, docs.name, entry, docs.spec)
    assert [old.origin(i) for i in (0, 2, 3, 6)] == [("a.tar", n) for n in (1, 5, 6, 9)]
    write_lines(tmp_path / "b.jsonl", records("b"))
    run_here(tmp_path / "b.jsonl", tmp_path / "plain")
    plain = manifest(tmp_path / "plain")["sources"]["train/web"]
    assert plain["checksums"].keys() == known | {"page"}


def test_commands_name_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar").write_bytes(tar(*MEMBERS))
    run_here(tmp_path / "a.tar", tmp_path / "out", **PIECES)

    def said(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert not ended.value.code
        return capsys.readouterr().out

    def of(document: int) -> str:
        return said("inspect", str(tmp_path / "out"), "--document", f"train/web:{document}")

    assert of(2).startswith("train/web:2: 3 tokens, from a.tar: a.jsonl line 5\n")
    assert of(4).startswith("train/web:4: 3 tokens, from a.tar: d/b.json.gz row 1\n")
    assert re.match(r"train/web:6: 12 tokens, from a\.tar: d/odd\S+name é\.txt\n", of(6))
    assert ", from a.tar: huge.txt\n" in of(7)
    assert ", from a.tar: huge.txt piece 2\n" in of(8)
    found = json.loads(
        said("inspect", str(tmp_path / "out"), "--document", "train/web:8", "--json")
    )
    where = {"file": "a.tar", "member": "huge.txt", "line": None, "row": None, "piece": 2}
    assert found["origin"].items() >= where.items()
    settings = [f"--dataset={tmp_path / 'out'}", "--pack.seq_len=32", "--loader.batch_size=4"]
    traced = said("trace", "--config", "pretrain", "--document", "web:4", *settings)
    assert "from a.tar: d/b.json.gz row 1" in traced


def test_a_huge_text_says_which_piece(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "huge.txt").write_bytes(MEMBERS[5][1] + b"\xff")
    run_here(tmp_path / "huge.txt", tmp_path / "out", **PIECES)
    (bad,) = quarantine(tmp_path / "out")
    assert bad["piece"] == len(origins(tmp_path / "out")) + 1
    assert "line" not in bad
    for document, where in ((0, "huge.txt"), (1, "huge.txt piece 2")):
        with pytest.raises(SystemExit):
            main(["inspect", str(tmp_path / "out"), "--document", f"train/web:{document}"])
        assert f" tokens, from {where}\n" in capsys.readouterr().out


@pytest.mark.parametrize("unit_bytes", [100, 2**26])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
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
            *(tmp_path / "strict",),
            on_error="fail",
            unit_bytes=unit_bytes,
        )


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


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


def changed(data: bytes, start: int, field: bytes) -> bytes:
    """An archive with other bytes in its first header."""
    header = bytearray(data[:512])
    header[start : start + len(field)] = field
    header[148:156] = b" " * 8
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header) + data[512:]


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
        ("x.jsonl.zst", zstandard.ZstdCompressor().compress(lines("a", "b"))[:-3]),
        ("x.json", b"[1"),
    ):
        damaged = rf"a\.tar: {re.escape(name)} cannot be read to its end .*truncated or damaged"
        refused(damaged, MEMBERS[0], (name, content, ""))
    refused(r"a\.tar: t\.tar is an archive in an archive", ("t.tar", tar(MEMBERS[0]), ""))
    refused(r"a\.tar: t\.parquet is a table in an arc", ("t.parquet", b"PAR1" * 9, ""))


def test_a_stream_of_batches_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar(*MEMBERS))
    with pytest.warns(
        UserWarning, match=r"1 not JSON; the first is .*a\.tar: a\.jsonl:4: not JSON"
    ):
        list(stream_text(str(tmp_path / "a.tar"), tokenizer="bytes", seq_len=64, num_workers=0))


def test_a_table_of_members() -> None:
    table = MemberTable()
    for file, row, member in [
        (1, 1, Member("a", "line", 1)),
        (1, 4, Member("a", "line", 4)),  # goes on
        (1, 6, Member("a", "line", 1)),  # another of the same name
        (1, 7, Member("b", "row", 0)),
        (3, 2, Member("b", "row", 2)),
    ]:
        table.add(file, row, member)
    assert len(table) == 4
    again = MemberTable()
    again.begin_with(table.columns())
    again.add(4, 0, Member("c", "piece", 1))
    columns = again.columns()
    assert columns["member_row"].tolist() == [1, 6, 7, 2, 0]

    def found(file: int, row: int) -> Member | None:
        return find_member(columns, file, row)

    assert found(1, 0) is None
    assert [found(1, row) for row in (1, 5)] == [Member("a", "line", n) for n in (1, 5)]
    assert found(1, 6) == Member("a", "line", 1)
    assert [found(1, row) for row in (7, 99)] == [Member("b", "row", n) for n in (0, 92)]
    assert [found(file, 9) for file in (0, 2, 5)] == [None] * 3
    assert found(3, 1) is None
    assert found(3, 2) == Member("b", "row", 2)
    assert found(4, 1) == Member("c", "piece", 2)


def test_decoded_texts_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar(*MEMBERS))
    run_here(tmp_path / "a.tar", tmp_path / "out")
    expected = [text for _, _, text in EXPECTED]
    expected.insert(7, MEMBERS[5][1].decode())
    assert decoded(tmp_path / "out") == list(texts(tmp_path / "a.tar")) == expected
