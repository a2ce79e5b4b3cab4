"""Lines that break, objects that change and conversions that are killed: noticed, or harmless."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.errors import InputError
from jaxdata.format.storage.objects import place_of
from jaxdata.testing.buckets import BucketServer, Faults
from tests.converter.inputs.remote.conftest import convert, lines, upload, write_corpus
from tests.format.trees import tree

pytest.importorskip("obstore", reason="needs jaxdata[buckets]")


def test_a_line_that_breaks_changes_nothing(bucket: BucketServer, tmp_path: Path) -> None:
    write_corpus(tmp_path / "raw")
    upload(bucket, tmp_path / "raw", "bkt/raw")
    convert(tmp_path / "raw", tmp_path / "local")
    bucket.faults = Faults(unavailable=0.1, reset=0.05, cut=0.05)
    convert(bucket.url("bkt/raw/"), tmp_path / "remote")
    assert tree(tmp_path / "remote") == tree(tmp_path / "local")


def test_an_object_that_changes_while_it_is_read_is_refused(s3: BucketServer) -> None:
    s3.write("bkt/a.jsonl", lines(9, "a"))
    (file,) = find_inputs("s3://bkt/a.jsonl")
    s3.write("bkt/a.jsonl", lines(9, "b"))
    with file.open() as opened, pytest.raises(InputError, match=r"^s3://bkt/a\.jsonl changed whil"):
        opened.read()
    s3.delete("bkt/a.jsonl")
    with file.open() as opened, pytest.raises(InputError, match=r"^s3://bkt/a\.jsonl changed whil"):
        opened.read()


def test_an_object_without_a_version_is_read(s3: BucketServer) -> None:
    s3.write("bkt/a", b"content")
    assert place_of("s3://bkt/a").read("s3://bkt/a", 1, 4, "") == b"ont"


def middle_changed(data: bytes) -> bytes:
    return data[:100_000] + data[100_000:].replace(b"document", b"DOCUMENT", 1)


def test_a_changed_object_is_noticed_afterwards(s3: BucketServer, tmp_path: Path) -> None:
    data = lines(900, "a")
    s3.write("bkt/a.jsonl", data)
    convert("s3://bkt/a.jsonl", tmp_path / "out")
    s3.write("bkt/a.jsonl", middle_changed(data))
    with pytest.raises(InputError, match=r"'a\.jsonl' changed since it was converted"):
        convert("s3://bkt/a.jsonl", tmp_path / "out")


KILLED = """
import os, sys, jaxdata
if __name__ == "__main__":
    jaxdata.convert(sys.argv[1], output=sys.argv[2], source="web", tokenizer="bytes", workers=1,
                    unit_bytes=2**16,
                    progress=lambda done, _: done > 150_000 and os.kill(os.getpid(), 9))
"""


def test_a_killed_conversion_resumes_and_sees_what_changed(
    s3: BucketServer, tmp_path: Path
) -> None:
    data = lines(900, "a")
    for name in ("one", "two"):
        s3.write(f"bkt/{name}.jsonl", data)
        killed = [sys.executable, "-c", KILLED, f"s3://bkt/{name}.jsonl", tmp_path / name]
        assert subprocess.run(killed, capture_output=True).returncode == -9
        assert [*(tmp_path / name).rglob("work/*")], "receipts of the first units"
    s3.write("bkt/two.jsonl", middle_changed(data))
    for name in ("one", "two"):
        convert(f"s3://bkt/{name}.jsonl", tmp_path / name, resume=True, piece_bytes=2**22)
        convert(f"s3://bkt/{name}.jsonl", tmp_path / f"{name} anew", piece_bytes=2**22)
        for records in (tmp_path / f"{name} anew").rglob("*.array_record"):
            again = tmp_path / name / records.relative_to(tmp_path / f"{name} anew")
            assert again.read_bytes() == records.read_bytes()
