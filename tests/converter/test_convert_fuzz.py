"""Readers given anything: never a crash, never a hang, and no record lost without a word.

`JAXDATA_FUZZ=100000` sets the number of inputs; a hundred are tried by default.
"""

import io
import os
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.reading import cut
from jaxdata.converter.worker import UnitReader
from tests.converter.here import job_of
from tests.converter.inputs.made import FORMATS

FILES = sorted(name for name in FORMATS if "." in name)
WORDS = ["", "é", "\ud7ff", "x" * 2_100, '{"text": 1}', "a\u2028b\n", "\U0001f9a5"] * 2
PIECES = [b"\n", b"\n{\n", b"\n[1]\n", b"\n\n ", b'\n{"text": "\xed\xa0\x80"}\n', b'"text": null']
DAMAGE = st.tuples(
    st.floats(0, 1), st.integers(0, 4), st.binary(max_size=8) | st.sampled_from(PIECES)
)


def records(path: Path, unit_bytes: int) -> int:
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


@settings(
    max_examples=int(os.environ.get("JAXDATA_FUZZ", "120")),
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(
    st.sampled_from(FILES),
    st.none() | st.binary(max_size=600),
    st.lists(DAMAGE, min_size=1),
    st.integers(1, 400),
)
def test_what_is_damaged_or_anything_is_refused_or_accounted_for(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    anything: bytes | None,
    damage: list[tuple[float, int, bytes]],
    unit_bytes: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    FORMATS[name](path, WORDS)
    content = bytearray(path.read_bytes() if anything is None else anything)
    for where, length, data in damage:
        place = int(where * len(content))
        content[place : place + length] = data
    path.write_bytes(content)
    try:
        found = records(path, unit_bytes)
        kind = find_inputs(path)[0].kind
    except InputError:
        return
    if (kind.format, kind.compression, kind.archive) == ("jsonl", "", False):
        assert found == len(io.BytesIO(content).readlines())
