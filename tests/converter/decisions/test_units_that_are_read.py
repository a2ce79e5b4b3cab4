"""What a unit's reader makes of records, what a job reads of files, and what options take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxdata import tokenizers
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.reading import cut
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import make_parameters
from jaxdata.converter.tasks.base import Dropped, Unencodable
from jaxdata.converter.worker import StoppedAtBad, UnitReader
from tests.converter.here import archive, records

BYTES = tokenizers.load("bytes")


def job_of(path: Path, stop_at_bad: bool = False, **options: Any) -> Job:
    files = find_inputs(path)
    parameters = make_parameters(files, BYTES, options)  # type: ignore[arg-type]
    return Job("", "train", "web", files, parameters, BYTES.files(), stop_at_bad, 200)


def read(path: Path, **options: Any) -> tuple[list[Any], UnitReader]:
    """The documents of all, and their reader."""
    job = job_of(path, **options)
    task = job.task(BYTES)
    (unit,) = cut(job.files, job.reading(task), 2**20)
    reader = UnitReader(unit, job, task)
    return [one for batch in reader.batches() for one in batch], reader


def write(path: Path, *some: Any) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in some))
    return path


def several(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"text": word} for word in record["text"].split()]


def test_records_that_are_none_or_several_documents_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *({"text": text} for text in ("a b c", "", "d")))
    made, reader = read(path, transform=f"{__name__}:several")
    assert [(one.content, one.part, one.record) for one in made] == [
        *((word, 0, 0) for word in "abc"),
        ("d", 0, 2),
    ]
    assert reader.receipt.counts == {"added": 2}
    assert reader.receipt.dropped == {"left out by the transform": 1}
    pairs = [{"p": [{"q": "x", "a": "y"}] * n} for n in (0, 1, 3)]
    path = write(tmp_path / "b.jsonl", *pairs)
    made, reader = read(path, task="sft", prompt_key="p.q", completion_key="p.a")
    assert [one.record for one in made] == [1, 2, 2, 2]
    assert [one.raw_characters for one in made] == [2, 6, 0, 0], "the first has the record's"
    assert reader.receipt.counts == {"added": 2}
    assert reader.receipt.dropped == {"no document in it": 1}


def test_what_limits_leave_out_is_counted_with_its_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": " \xc3\xa9 "}\n\n{"text": "abcd"}\n{"text": 1}\n{"text": "abc"}\n')
    made, reader = read(path, max_chars=2, strip=True)
    assert [one[:2] + one[4:8] for one in made] == [("é", 0, 1, 2, 3, 4)]
    assert reader.receipt.dropped == {"longer than 2 characters": 2}
    dropped = ("raw_characters", "raw_bytes", "characters", "text_bytes")
    assert reader.receipt.counts == {"blank": 1} | {f"dropped_{name}": 7 for name in dropped}
    receipt = reader.receipt
    assert receipt.records == [5]
    assert [(bad.part, bad.record, bad.reason) for bad in receipt.quarantined] == [
        (0, 3, "'text' is not a string")
    ]
    with pytest.raises(StoppedAtBad):
        read(path, stop_at_bad=True)


def test_documents_that_cannot_be_encoded_are_set_aside_and_others_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *({"text": "x" * n} for n in (1, 2, 3)))
    job = job_of(path)
    task = job.task(BYTES)
    (unit,) = cut(job.files, job.reading(task), 2**20)
    reader = UnitReader(unit, job, task)
    assert reader.share() == 0
    (batch,) = reader.batches()
    size = path.stat().st_size - 3  # without line ends
    assert reader.share() == size / (size + 3)
    reader.drop(batch[0], Dropped("why"))
    reader.drop(batch[2], Unencodable())
    assert reader.receipt.dropped == {"why": 1}
    (bad,) = reader.receipt.quarantined
    assert (bad.part, bad.record, bad.raw) == (0, 2, None)
    assert {*reader.receipt.counts.values()} == {4}
    for text_bytes, share in ((1_000, size / 1_000), (size, 1), (5, 1), (0, 1)):
        other = UnitReader(replace(unit, text_bytes=text_bytes), job, task)
        assert len([*other.batches()]) == 1
        assert other.share() == share


def test_kept_fields_and_paths_are_of_the_record(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "x", "n": 1, "d": {"e": "é"}}, {"text": "y"})
    made, _ = read(path, keep="n,d.e")
    assert [json.loads(one.kept) for one in made] == [
        {"n": 1, "d.e": "é"},
        {"n": None, "d.e": None},
    ]
    (tmp_path / "in").mkdir()
    files = {f"{n}.txt": n.encode() for n in "abc"} | {"d.jsonl": b"\n".join(records("d"))}
    (tmp_path / "in/a.tar").write_bytes(archive(files))
    made, reader = read(tmp_path / "in", keep="path")
    assert [json.loads(one.kept)["path"] for one in made] == [
        *(f"a.tar: {n}.txt" for n in "abc"),
        None,
    ]
    members = reader.receipt.members[0]
    assert [(start, member.name) for start, member in members] == [*enumerate(files)]
    (tmp_path / "e.txt").write_text("e")
    made, _ = read(tmp_path / "e.txt", keep="path")
    assert json.loads(made[0].kept) == {"path": "e.txt"}
