"""Readers given anything: never a crash, never a hang, and no record lost without a word.

`JAXDATA_FUZZ=100000` sets the number of inputs; a few hundred are tried by default.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.formats.base import reader_of
from jaxdata.converter.inputs.formats.tables import check_strings
from jaxdata.converter.inputs.reading import cut
from jaxdata.converter.inputs.streams import compression_of
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import make_parameters
from jaxdata.converter.worker import UnitReader
from jaxdata.dataset.index import Member
from tests.converter.here import archive, objects

INPUTS = int(os.environ.get("JAXDATA_FUZZ", "300"))
TOKENIZER = tokenizers.load("bytes")
RECORD_BYTES = 2_000

text = st.text(st.characters(codec="utf-8"), max_size=30)
odd_line = st.one_of(
    st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")),
    st.sampled_from([b"", b" ", b"{", b'{"text": 1}', b'{"text": "\xed\xa0\x80"}', b"\0"]),
    st.recursive(
        st.none() | st.booleans() | st.floats() | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: b" " + json.dumps(value).encode()),
    st.just(b'{"text": "' + b"x" * RECORD_BYTES + b'"}'),
).filter(lambda line: not (compression_of(line) or line.lstrip().startswith(b"[")))
"""What begins a compressed file, or an array, makes one of all that follows: it is refused."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Good texts, and lines that hold none, in one order."""

    items: list[str | bytes]

    def lines(self, end: bytes) -> bytes:
        return b"".join(
            (one if isinstance(one, bytes) else objects({"text": one})[0]) + end
            for one in self.items
        )

    @property
    def texts(self) -> list[str]:
        return [one for one in self.items if isinstance(one, str)]

    @property
    def huge(self) -> bytes:
        """More than is read in one piece, unless it is nothing."""
        return "".join(self.texts).encode() * 40

    def array(self) -> bytes:
        return json.dumps([{"text": one} for one in self.texts], ensure_ascii=False).encode()


def tar(corpus: Corpus) -> bytes:
    files: dict[str, bytes | str] = {
        "a.jsonl": corpus.lines(b"\n"),
        "d/": b"",
        "d/b.json.gz": gzip.compress(corpus.array()),
        "link.jsonl": "a.jsonl",
        **{f"d/{i}.txt": one.encode() for i, one in enumerate(corpus.texts)},
    }
    return gzip.compress(archive(files))


def table(corpus: Corpus) -> bytes:
    texts = [one if isinstance(one, str) else None for one in corpus.items]
    made = pa.table({"text": pa.array(texts, pa.string()), "n": list(range(len(texts)))})
    sink = pa.BufferOutputStream()
    pq.write_table(made, sink, row_group_size=3)
    return bytes(sink.getvalue())


FORMATS: dict[str, Callable[[Corpus], bytes]] = {
    "a.jsonl": lambda corpus: corpus.lines(b"\n"),
    "b.jsonl": lambda corpus: b"\xef\xbb\xbf" + corpus.lines(b"\r\n"),
    "a.jsonl.gz": lambda corpus: gzip.compress(corpus.lines(b"\n")),
    "a.json": Corpus.array,
    "a.txt": lambda corpus: "".join(corpus.texts).encode(),
    "h.txt": lambda corpus: corpus.huge,
    "a.tar.gz": tar,
    "a.parquet": table,
}
corpora = st.lists(st.one_of(text, text, odd_line), max_size=12).map(Corpus)


def read(path: Path, unit_bytes: int) -> tuple[list[tuple[str, int, str]], int]:
    """Texts with their place in an archive, and the records; checks that all are accounted for."""
    files = find_inputs(path)
    if reader_of(files[0].kind).table:
        check_strings(files[0], ["text"])
    parameters = make_parameters(
        files, TOKENIZER, {"max_record_bytes": RECORD_BYTES, "piece_bytes": 16}
    )
    job = Job("", "train", "web", files, parameters, TOKENIZER.files(), False)
    task = job.task(TOKENIZER)
    found: list[tuple[str, int, str]] = []
    records = 0
    for unit in cut(files, job.reading(task), unit_bytes):
        reader = UnitReader(unit, job, task)
        documents = list(chain.from_iterable(reader.batches()))
        closely = UnitReader(unit, job, task)
        closely._plain_key = None
        assert list(chain.from_iterable(closely.batches())) == documents
        receipt = reader.receipt
        assert closely.receipt == receipt
        left = len(receipt.quarantined) + receipt.dropped.total() + receipt.counts["blank"]
        assert len(documents) + left == sum(receipt.records) + receipt.counts["added"]
        for one in documents:
            name, _, number = receipt.member(one.part, one.record) or Member("", "", 0)
            (text,) = task.texts(one.content)
            found.append((name, number, text))
        records += sum(receipt.records)
    return found, records


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def fuzz(share: float) -> Callable[[Any], Any]:
    return settings(
        max_examples=int(INPUTS * share), suppress_health_check=list(HealthCheck), database=None
    )


@fuzz(0.4)
@given(
    corpora,
    st.sampled_from(sorted(FORMATS)),
    st.none() | st.binary(max_size=600),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.binary(max_size=8)), min_size=1),
    st.integers(1, 400),
)
def test_what_is_damaged_or_anything_is_refused_or_accounted_for(
    folder: Path,
    corpus: Corpus,
    name: str,
    anything: bytes | None,
    damage: list[tuple[float, int, bytes]],
    unit_bytes: int,
) -> None:
    content = bytearray(anything or FORMATS[name](corpus))
    for where, length, data in damage:
        place = int(where * len(content))
        content[place : place + length] = data
    path = folder / name
    path.write_bytes(content)
    try:
        _, records = read(path, unit_bytes)
    except InputError:
        return
    if name in ("a.jsonl", "b.jsonl") and find_inputs(path)[0].kind.format == "jsonl":
        assert records == len(io.BytesIO(content).readlines())
