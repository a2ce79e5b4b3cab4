"""Documents on their way to shards, what is counted of them, and what is said at the end.

Readers are given anything: never a crash, never a hang, and no record lost without a word.
`JAXDATA_FUZZ=100000` sets the number of inputs; a hundred are tried by default.
"""

import io
import json
import os
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.conversion import _call
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.reading import cut
from jaxdata.converter.statistics import SIZES, ConversionReport, Document, count
from jaxdata.converter.tasks import Dropped, Encoded, Unencodable
from jaxdata.converter.worker import UnitReader
from jaxdata.tokenizers import load
from jaxdata.tokenizers.encoders.choice import EncodingSummary
from tests.converter.here import job_of, objects, records, write_lines
from tests.converter.inputs.made import FORMATS, tar


def reader_of(path: Path, **options: Any) -> UnitReader:
    """What reads the only unit of some files."""
    job, task = job_of(path, **options)
    (unit,) = cut(job.files, job.reading(task), 2**20)
    return UnitReader(unit, job, task)


def test_pieces_are_documents_and_what_cannot_be_encoded_is_set_aside(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", records("x", "xx", "xxx"))
    reader = reader_of(path)
    assert reader.share() == 0
    (batch,) = reader.batches()
    size = path.stat().st_size - 3  # without line ends
    assert reader.share() == size / (size + 3)
    good = (Encoded(np.arange(5), cuts=(2, 3)),)
    made, streams = reader.stored(batch, [Dropped("why"), good, Unencodable()])
    assert [one.tokens.tolist() for (one,) in streams] == [[0, 1], [2], [3, 4]]
    assert [one[:4] for one in made] == [("xx", 0, 1, "train")] * 3
    assert [one[4:] for one in made] == [(2, 2, 2, 2, b""), *[(0, 0, 0, 0, b"")] * 2]
    assert reader.receipt.dropped == {"why": 1}
    (bad,) = reader.receipt.quarantined
    assert (bad.part, bad.record, bad.raw, reader.receipt.counts) == (0, 2, None, {"added": 2})


def test_kept_fields_and_paths_are_of_the_record(tmp_path: Path) -> None:
    def kept(path: Path, keys: str) -> list[Any]:
        (batch,) = reader_of(path, keep=keys).batches()
        return [json.loads(one.kept) for one in batch]

    rows = objects({"text": "x", "n": 1, "d": {"e": "é"}}, {"text": "y"})
    path = write_lines(tmp_path / "a.jsonl", rows)
    assert kept(path, "n,d.e") == [{"n": 1, "d.e": "é"}, {"n": None, "d.e": None}]
    texts = [(f"{n}.txt", n.encode(), "") for n in "abc"]
    (tmp_path / "a.tar").write_bytes(tar(*texts, ("d.jsonl", b"\n".join(records("d")), "")))
    paths = [*(f"a.tar: {n}.txt" for n in "abc"), None]
    assert kept(tmp_path / "a.tar", "path") == [{"path": path} for path in paths]
    (tmp_path / "e.txt").write_text("e")
    assert kept(tmp_path / "e.txt", "path") == [{"path": "e.txt"}]


def test_a_report_says_what_was_read_and_written() -> None:
    report = ConversionReport(
        "out", "train/web", documents=2_000, tokens=3_000, text_bytes=6_000, shards=1, bytes=12_500,
        files=1, seconds=2.0, quarantined={"x": 1, "y": 2}, quarantine_file="q", dropped={"z": 1},
        files_not_read={".pdf": 1},
    )  # fmt: skip
    assert str(report).splitlines() == [
        "read 2,000 documents, 6.0 kB of text, from 1 file; passed over 1 file of other kinds "
        "(1 .pdf); quarantined 3 records (2 y; 1 x), in q; dropped 1 record (1 z)",
        "wrote train/web: 3,000 tokens (0.500 per byte), 1 shard, 12.5 kB, in out",
        "took 2.0 s, 3.0 kB/s",
    ]
    ids = replace(report, text_bytes=0, sources=("a", "b"), quarantined={}, dropped={}, shards=3)
    assert str(replace(ids, files_not_read={})).splitlines() == [
        "read 2,000 documents, from 1 file",
        "wrote a, b: 3,000 tokens, 3 shards, 12.5 kB, in out",
        "took 2.0 s, 1,500 tokens/s",
    ]
    quick = replace(report, seconds=0.0, encoding=EncodingSummary(library="l 1", counts={"": {}}))
    assert str(quick).endswith("\ntook 0.0 s, 6.0 TB/s")
    assert str(replace(report, already_complete=True)).endswith("\nalready complete: nothing to do")


SHORT = st.lists(st.integers(0, 2), min_size=1, max_size=4)


@given(st.lists(SHORT, max_size=4), st.none() | st.integers(0, 2), st.booleans())
def test_loss_and_unknown_tokens_are_counted(documents: Any, unknown: Any, masked: bool) -> None:
    masks = [np.array(one) % 2 if masked else None for one in documents]
    pairs = zip(map(np.array, documents), masks, strict=True)
    given_ = [Document("", 0, 0, "train", 1, 10 + n, 20 + n, 30 + n) for n in range(3)]
    counts = count(given_, [Encoded(*pair) for pair in pairs], unknown)
    rest = [token for one in documents for token in one[1:]]
    assert counts["loss_tokens"] == sum(token % 2 if masked else 1 for token in rest)
    assert counts["unknown_tokens"] == sum(one.count(unknown) for one in documents)  # type: ignore[arg-type]
    assert [counts[name] for name in SIZES] == [63, 93, 3, 33]


def test_a_call_is_told_with_the_first_inputs_and_names_for_objects() -> None:
    given = {"inputs": ["a"] * 9, "output": Path("b"), "tokenizer": load("bytes")}
    told = "['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', …], output='b', tokenizer='bytes', transform="
    called = _call(given | {"transform": len, "split": "train", "x": None})
    assert called == f"jaxdata.convert({told}'len', x=None)"


WORDS = ["", "é", "\ud7ff", "x" * 2_100, '{"text": 1}', "a\u2028b\n", "\U0001f9a5"] * 2
PIECES = [b"\n", b"\n{\n", b"\n[1]\n", b"\n\n ", b'\n{"text": "\xed\xa0\x80"}\n', b'"text": null']
ANYTHING = st.binary(max_size=8) | st.sampled_from(PIECES)
FUZZ = int(os.environ.get("JAXDATA_FUZZ", "120"))


def records_of(path: Path, unit_bytes: int) -> int:
    """How many there are; all are accounted for, whichever way they are read."""
    found = 0
    job, task = job_of(path, max_record_bytes=2_000, piece_bytes=16)
    job.check_tables(task)
    for unit in cut(job.files, job.reading(task), unit_bytes):
        reader, closely = UnitReader(unit, job, task), UnitReader(unit, job, task)
        closely._plain_key = None
        documents = list(chain.from_iterable(reader.batches()))
        assert list(chain.from_iterable(closely.batches())) == documents
        receipt = reader.receipt
        assert closely.receipt == receipt
        left = len(receipt.quarantined) + receipt.dropped.total() + receipt.counts["blank"]
        assert len(documents) + left == sum(receipt.records) + receipt.counts["added"]
        found += sum(receipt.records)
    return found


@settings(max_examples=FUZZ, suppress_health_check=list(HealthCheck), database=None)
@given(
    st.sampled_from(sorted(name for name in FORMATS if "." in name)),
    st.none() | st.binary(max_size=600),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), ANYTHING), min_size=1),
    st.integers(1, 400),
)
def test_what_is_damaged_or_anything_is_refused_or_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, name: str, anything: bytes | None,
    damage: list[tuple[float, int, bytes]], unit_bytes: int,
) -> None:  # fmt: skip
    path = tmp_path_factory.getbasetemp() / name
    FORMATS[name](path, WORDS)
    content = bytearray(path.read_bytes() if anything is None else anything)
    for where, length, data in damage:
        place = int(where * len(content))
        content[place : place + length] = data
    path.write_bytes(content)
    try:
        found = records_of(path, unit_bytes)
        kind = find_inputs(path)[0].kind
    except InputError:
        return
    if (kind.format, kind.compression, kind.archive) == ("jsonl", "", False):
        assert found == len(io.BytesIO(content).readlines())
