"""Receipts come back as they were, and put together say what counting record by record does."""

import base64
import json
from collections import Counter
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.converter.inputs.files import FilePart, FileType, Unit
from jaxdata.converter.receipts import (
    MergedOutput,
    MergedReceipts,
    Quarantined,
    Receipt,
    RecordPlace,
)
from jaxdata.dataset.index import Member, find_member, line_ends
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from tests.converter.decisions.made import input_file, wrote

FILES = [
    input_file("a.jsonl"),
    input_file("b.parquet", FileType("parquet")),
    input_file("c.tar", FileType("txt", archive=True)),
    input_file("d.txt", FileType("txt")),
]
COUNTED = ["line", "row", "line", "piece"]
NAMES = ["train/a", "val/a"]
REASONS = ["not JSON", "no text"]


class Made(NamedTuple):
    units: list[tuple[Unit, Receipt]]
    first_file: int


@st.composite
def made(draw: st.DrawFn) -> Made:
    """Units of one to three parts; a file is in several units, one after the other."""
    numbers = sorted(draw(st.lists(st.integers(0, len(FILES) - 1), min_size=1, max_size=6)))
    units = []
    while numbers:
        taken = draw(st.integers(1, 3))
        parts, numbers = numbers[:taken], numbers[taken:]
        unit = Unit(f"{parts[0]:05}-{len(units):05}", tuple(map(FilePart, parts)), 1, 1)
        records = [draw(st.integers(0, 5)) for _ in parts]
        places = [(part, record) for part, count in enumerate(records) for record in range(count)]
        kinds = [draw(st.sampled_from(["train/a", "val/a", "bad", "blank"])) for _ in places]
        outputs = {}
        for name in NAMES:
            own = [(record + 2, part, record) for (part, record), kind in _at(places, kinds, name)]
            if own:
                kept = b"".join(b"%d-%d\n" % (part, record) for _, part, record in own)
                sizes: dict[str, Any] = {"size": PAGE_BYTES + 1, "side": "weight"}
                outputs[name] = wrote(f"{name}/{unit.name}", own, kept, **sizes)
        raws = st.sampled_from([None, b"raw \xc3\xa9", b"\xff"])
        bad = [
            Quarantined(*place, draw(st.sampled_from(REASONS)), draw(raws), ("key",))
            for place, _ in _at(places, kinds, "bad")
        ]
        members = {}
        for part, number in enumerate(parts):
            if FILES[number].kind.archive and records[part]:
                starts = sorted({0} | draw(st.sets(st.integers(0, records[part] - 1), max_size=3)))
                members[part] = [
                    (start, Member(f"m{start}.txt", "line", start + 7)) for start in starts
                ]
        receipt = Receipt(
            unit.name,
            records,
            "a stamp",
            outputs,
            bad,
            Counter({"too short": draw(st.integers(0, 3))}),
            Counter({"blank": kinds.count("blank")}),
            members,
        )
        units.append((unit, receipt))
    return Made(units, draw(st.sampled_from([0, 3])))


def _at(places: list[Any], kinds: list[str], wanted: str) -> list[Any]:
    return [pair for pair in zip(places, kinds, strict=True) if pair[1] == wanted]


Numbers = dict[tuple[int, int, int], tuple[int, int]]


def numbers_of(given: Made) -> Numbers:
    """(unit, part, record) -> its file, and its number in that."""
    found, counts = {}, [0] * len(FILES)
    for at, (unit, receipt) in enumerate(given.units):
        for part, count in enumerate(receipt.records):
            file = unit.parts[part].file
            first = 0 if COUNTED[file] == "row" else 1
            for record in range(count):
                found[at, part, record] = file, first + counts[file]
                counts[file] += 1
    return found


def member_at(receipt: Receipt, part: int, record: int) -> Member | None:
    """Counted up from the last member that begins at or before a record."""
    found = None
    for start, member in receipt.members.get(part, []):
        if start <= record:
            found = Member(member.name, member.counted, member.number + record - start)
    return found


@given(made())
@settings(max_examples=60)
def test_receipts_together_say_what_counting_record_by_record_does(given: Made) -> None:
    merged = MergedReceipts(FILES, given.first_file)
    for unit, receipt in given.units:
        merged.add(unit, receipt)
    numbers = numbers_of(given)
    assert {*merged.outputs} == {name for _, one in given.units for name in one.outputs}
    for name, output in merged.outputs.items():
        check_output(name, output, given, numbers)
    check_sums(merged, given, numbers)
    check_quarantine(merged, given, numbers)


def check_output(name: str, output: MergedOutput, given: Made, numbers: Numbers) -> None:
    """Documents know their file and their number in it."""
    rows, wrote_ = [], []
    columns = output.columns()
    for at, (_, receipt) in enumerate(given.units):
        if name not in receipt.outputs:
            continue
        wrote_.append(own := receipt.outputs[name])
        places = (own.columns[c].tolist() for c in ("length", "part", "record"))
        for length, part, record in zip(*places, strict=True):
            file, number = numbers[at, part, record]
            rows.append((length, given.first_file + file, number))
            if member := member_at(receipt, part, record):
                known = columns | {"member_end": line_ends(columns["member"])}
                assert find_member(known.__getitem__, given.first_file + file, number) == member
    kinds = {
        column: columns[column].dtype.name for column in ("length", "origin_file", "origin_row")
    }
    assert kinds == {"length": "uint32", "origin_file": "uint32", "origin_row": "uint64"}
    assert [*zip(*(columns[each].tolist() for each in kinds), strict=True)] == rows
    assert columns["kept"].tobytes() == b"".join(one.columns["kept"].tobytes() for one in wrote_)
    for side in ("", "weight"):
        assert output.shards[side] == [one.shards[side] for one in wrote_]
        pages = columns[f"{side}.page" if side else "page"].tolist()
        assert pages == [page for one in wrote_ for page in one.pages[side]]
    assert output.counts == Counter({"characters": len(rows)})


def check_sums(merged: MergedReceipts, given: Made, numbers: Numbers) -> None:
    receipts = [receipt for _, receipt in given.units]
    gave = {
        unit.parts[part].file
        for unit, receipt in given.units
        for own in receipt.outputs.values()
        for part in own.columns["part"]
    }
    statistics = merged.statistics
    assert statistics["records"] == len(numbers)
    assert statistics["files"] == {
        "processed": 4, "successful": len(gave), "discarded": 4 - len(gave),
    }  # fmt: skip
    assert statistics["dropped"]["too short"] == sum(one.dropped["too short"] for one in receipts)
    assert statistics["blank"] == sum(one.counts["blank"] for one in receipts)


def check_quarantine(merged: MergedReceipts, given: Made, numbers: Numbers) -> None:
    """Bad records are written in order, with their place."""
    expected: list[dict[str, Any]] = []
    first = None
    for at, (_, receipt) in enumerate(given.units):
        for bad in receipt.quarantined:
            file, number = numbers[at, bad.part, bad.record]
            member = member_at(receipt, bad.part, bad.record)
            first = first or (RecordPlace(FILES[file], number, member), bad)
            line: dict[str, Any] = {"file": FILES[file].name}
            line |= {"member": member.name} if member else {}
            line["line" if member else COUNTED[file]] = member.number if member else number
            line["reason"] = bad.reason
            if bad.raw == b"\xff":
                line["raw_base64"] = base64.b64encode(bad.raw).decode()
            else:
                line["raw"] = bad.raw.decode() if bad.raw else None
            expected.append(line)
    assert merged.bad_lines.mapped.tobytes() == b"".join(
        json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in expected
    )
    assert merged.first_bad == first
    assert merged.reasons == Counter(line["reason"] for line in expected)
