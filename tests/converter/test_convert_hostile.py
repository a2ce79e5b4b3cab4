"""Inputs that mean harm: archives that reach out, bombs, lines without end, odd bytes."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from tests.converter.here import decoded, quarantine, run, write_lines

GOOD = b'{"text": "a"}\n'


def archive(path: Path, *members: tuple[str, bytes, bytes]) -> Path:
    """A tar archive of (name, type, content)."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd"
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("/etc/a.jsonl", tarfile.REGTYPE, "a path that escapes the archive"),
        ("b/../../a.jsonl", tarfile.REGTYPE, "a path that escapes the archive"),
        ("/etc/a.jsonl", tarfile.SYMTYPE, "a path that escapes the archive"),
        ("b/../a.jsonl", tarfile.LNKTYPE, "a path that escapes the archive"),
        ("a.jsonl", tarfile.CHRTYPE, "a device; expected plain files only: pack it without"),
        ("a.jsonl", tarfile.BLKTYPE, "a device"),
        ("a.jsonl", tarfile.FIFOTYPE, "a named pipe"),
        ("a.jsonl", b"Z", "a thing of unknown kind"),
    ],
)
def test_archives_that_reach_out_are_refused(
    tmp_path: Path, name: str, kind: bytes, says: str
) -> None:
    content = GOOD if kind == tarfile.REGTYPE else b""
    path = archive(tmp_path / "a.tar", ("ok.jsonl", tarfile.REGTYPE, GOOD), (name, kind, content))
    with pytest.raises(InputError, match=rf"a\.tar contains '{name}', {says}"):
        run(path, tmp_path / "out")
    assert not (tmp_path / "out/dataset.json").exists()


def test_an_archive_is_read_to_its_end_mark_or_refused(tmp_path: Path) -> None:
    members = [(f"{n}.jsonl", tarfile.REGTYPE, GOOD) for n in range(3)]
    path = archive(tmp_path / "a.tar", *members)
    whole = path.read_bytes()
    assert list(texts(path)) == ["a", "a", "a"]
    path.write_bytes(whole[: 4 * 512])  # between two members
    with pytest.raises(InputError, match=r"the archive has no end mark\): it is truncated"):
        list(texts(path))
    path.write_bytes(whole[: 2 * 512] + b"\x01" + whole[2 * 512 + 1 :])
    with pytest.raises(InputError, match="a header's checksum is wrong"):
        list(texts(path))
    archive(path, ("x.pdf", tarfile.REGTYPE, b"a"))
    with pytest.raises(InputError, match=r"is an archive without any file that ends in \.csv"):
        list(texts(path))
    archive(path, ("inner.tar", tarfile.REGTYPE, whole))
    with pytest.raises(InputError, match=r"a\.tar: inner\.tar is an archive in an archive"):
        list(texts(path))


def packed(name: str, pieces: int, piece: bytes) -> bytes:
    """Many equal pieces, and a good line, as a file of a few kilobytes."""
    if name.endswith("gz"):
        return gzip.compress(piece * pieces + b"\n" + GOOD)
    packer = zstandard.ZstdCompressor().compressobj()
    body = b"".join(packer.compress(piece) for _ in range(pieces))
    return body + packer.compress(b"\n" + GOOD) + packer.flush()


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl.gz", "a.json.zst"])
def test_bombs_are_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxdata.converter.inputs.streams.FREE", 2**20)
    (tmp_path / name).write_bytes(packed(name, 16, bytes(2**20)))
    with pytest.raises(
        InputError, match=r"expands to more than 200 times its size: .*--max-expansion"
    ):
        list(texts(tmp_path / name))


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"use_dictionary": False}, 400),  # small when it is compressed
        ({"use_dictionary": True}, 4_000),  # and when it is not: each row has the same value
        ({"use_dictionary": True, "dictionary_type": True}, 4_000),
    ],
)
def test_tables_that_are_bombs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool], rows: int
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr("jaxdata.converter.inputs.formats.tables.FREE", 2**20)
    texts_of = pa.array(["x" * 5_000] * rows)
    if options.pop("dictionary_type", False):
        texts_of = texts_of.dictionary_encode()
    pq.write_table(
        pa.table({"text": texts_of}), tmp_path / "a.parquet", compression="zstd", **options
    )
    size = (tmp_path / "a.parquet").stat().st_size
    assert rows * 5_000 > 400 * size
    with pytest.raises(
        InputError, match=r"a\.parquet expands to more than 200 times its size: .*--max-expansion"
    ):
        list(texts(tmp_path / "a.parquet"))
    run(tmp_path / "a.parquet", tmp_path / "out", max_expansion=10**6)
    assert len(jaxdata.open_dataset(tmp_path / "out").source("train", "web")) == rows


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_line_without_end_is_set_aside_in_flat_memory(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(packed("a.jsonl.zst", 700, b"x" * 2**20))
    script = f"""
import re, resource
from pathlib import Path
from jaxdata.converter import convert
report = convert({str(tmp_path / "a.jsonl.zst")!r}, output={str(tmp_path / "out")!r}, source="web",
                 tokenizer="bytes", workers=1, max_record_bytes=2**20, max_expansion=10**6)
assert report.documents == 1, report
# Not ru_maxrss of this process: it counts what the test's own process had before exec.
own = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 500, "MB; the line has 700"
    (bad,) = quarantine(tmp_path / "out")
    assert bad["reason"] == "longer than 1,048,576 bytes (--max-record-bytes)"
    assert bad["line"] == 1
    assert bad["raw"] == "x" * 1_024


def test_records_too_long_are_set_aside_wherever_they_are(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    words = ["a", "b" * 1_000, "c"]
    lines = [json.dumps({"text": word}).encode() for word in words]
    write_lines(tmp_path / "a.jsonl", lines)
    (tmp_path / "b.json").write_bytes(b"[" + b",".join(lines) + b"]")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b"\r\n".join(lines)))
    pq.write_table(pa.table({"text": words}), tmp_path / "d.parquet")
    (tmp_path / "e.txt").write_text(words[1])
    for unit_bytes in (50, 2**26):
        out = tmp_path / f"out{unit_bytes}"
        run(tmp_path, out, max_record_bytes=500, unit_bytes=unit_bytes)
        assert decoded(out) == ["a", "c"] * 4
        reasons = [one["reason"] for one in quarantine(out)]
        assert reasons == ["longer than 500 bytes (--max-record-bytes)"] * 5
        for data in out.rglob("*"):
            if data.is_file():
                data.rename(tmp_path / f"kept-{unit_bytes}-{data.name}.bin")


def test_odd_bytes(tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"text": "nul \\u0000 \x7f"}' + b"\r",
        rb'{"text": "\ud800"}',
        b'{"text": "\0"}',
        b"\0\0",
        b'{"text": "\xff"}',
        rb'{"text": "cr\r\n"}' + b"\r",
        '{"text": "\ufeff\u2028"}'.encode(),
    ]
    write_lines(tmp_path / "a.jsonl", lines)
    run(tmp_path, tmp_path / "out")
    assert decoded(tmp_path / "out") == ["nul \0 \x7f", "cr\r\n", "\ufeff\u2028"]
    assert [(one["line"], one["reason"]) for one in quarantine(tmp_path / "out")] == [
        (2, "'text' holds half a surrogate pair"),
        (3, "not JSON"),
        (4, "not JSON"),
        (5, "not UTF-8"),
    ]
