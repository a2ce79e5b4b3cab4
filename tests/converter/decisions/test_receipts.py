"""Receipts come back as they were, and put together say what counting record by record does."""

import base64
import json
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings, strategies as st

from jaxdata.converter.inputs.files import FilePart, FileType, InputFile, Unit
from jaxdata.converter.receipts import (
    MergedReceipts,
    OutputReceipt,
    Quarantined,
    Receipt,
    RecordPlace,
)
from jaxdata.dataset.index import Member, find_member, line_ends
from jaxdata.dataset.manifest import ShardEntry
from jaxdata.storage.pages.page_cache import PAGE_BYTES

FILES = [
    InputFile("/data", name, 10, kind, "", 1)
    for name, kind in (
        *[("a.jsonl", FileType("jsonl")), ("b.parquet", FileType("parquet"))],
        *[("c.tar", FileType("txt", archive=True)), ("d.txt", FileType("txt"))],
    )
]
COUNTED = ["line", "row", "line", "piece"]
NAMES = ["train/a", "val/a"]
KINDS = st.lists(st.sampled_from([*NAMES, "bad", "blank"]), max_size=5)
REASONS = st.sampled_from(["not JSON", "no text"])
RAWS = st.sampled_from([None, b"raw \xc3\xa9", b"\xff"])


class Made(NamedTuple):
    """Units, and what is true of their records, counted up one by one."""

    units: list[tuple[Unit, Receipt]]
    first_file: int
    documents: dict[str, list[tuple[int, int, int, Member | None]]]
    """of a source: the length of each, its file, its number in that, its place in an archive"""
    bad: list[tuple[RecordPlace, Quarantined]]


@st.composite
def made(draw: st.DrawFn) -> Made:
    """Units of one to three parts; a file is in several units, one after the other."""
    files = sorted(draw(st.lists(st.integers(0, len(FILES) - 1), min_size=1, max_size=6)))
    found = Made([], draw(st.sampled_from([0, 3])), {name: [] for name in NAMES}, [])
    numbers = [int(counted != "row") for counted in COUNTED]  # of the next record of each file
    while files:
        taken = draw(st.integers(1, 3))
        parts, files = files[:taken], files[taken:]
        name = f"{parts[0]:05}-{len(found.units):05}"
        receipt = Receipt(name, [], dropped=Counter(short=draw(st.integers(0, 3))))
        own: dict[str, list[tuple[int, int, int]]] = {name: [] for name in NAMES}
        for part, file in enumerate(parts):
            kinds = draw(KINDS)
            receipt.records.append(len(kinds))
            receipt.counts["blank"] += kinds.count("blank")
            member = None
            for record, kind in enumerate(kinds):
                if member and draw(st.booleans()):
                    member = member._replace(number=member.number + 1)
                elif FILES[file].kind.archive:
                    member = Member(f"m{record}.txt", "line", record + 7)
                    receipt.members.setdefault(part, []).append((record, member))
                if kind == "bad":
                    bad = Quarantined(part, record, draw(REASONS), draw(RAWS), ("key",))
                    receipt.quarantined.append(bad)
                    found.bad.append((RecordPlace(FILES[file], numbers[file], member), bad))
                elif kind != "blank":
                    own[kind].append((record + 2, part, record))
                    place = found.first_file + file, numbers[file], member
                    found.documents[kind].append((record + 2, *place))
                numbers[file] += 1
        receipt.outputs |= {one: wrote(f"{one}/{name}", some) for one, some in own.items() if some}
        found.units.append((Unit(name, tuple(map(FilePart, parts)), 1, 1), receipt))
    return found


def wrote(name: str, documents: list[tuple[int, int, int]]) -> OutputReceipt:
    """What a unit wrote, to a shard of two pages and one of a side array."""
    columns: Any = dict(zip(("length", "part", "record"), np.uint32(documents).T, strict=True))
    kept = b"".join(b"%d-%d\n" % one[1:] for one in documents)
    sums: Any = {"documents": len(documents), "records": len(documents), "tokens": 9}
    sums |= {"bytes": PAGE_BYTES + 1, "sha256": f"sum of {name}"}
    shards = {side: ShardEntry(name=f"{name}.{side}", **sums) for side in ("", "weight")}
    pages = {"": np.uint32([0, 1]), "weight": np.uint32([7, 8])}
    columns["kept"] = np.frombuffer(kept, np.uint8)
    return OutputReceipt(shards, pages, columns, Counter(characters=len(documents)))


@given(made())
@settings(max_examples=60)
def test_receipts_together_say_what_counting_record_by_record_does(given: Made) -> None:
    merged = MergedReceipts(FILES, given.first_file)
    for unit, receipt in given.units:
        merged.add(unit, Receipt.decode(unit.name, receipt.encode()))
    assert {*merged.outputs} == {name for name, some in given.documents.items() if some}
    for name in merged.outputs:
        check_output(name, merged, given)
    receipts = [receipt for _, receipt in given.units]
    gave = {file for some in given.documents.values() for _, file, *_ in some}
    assert merged.statistics == {
        "records": sum(sum(one.records) for one in receipts),
        "files": {"processed": 4, "successful": len(gave), "discarded": 4 - len(gave)},
        "dropped": +Counter(short=sum(one.dropped["short"] for one in receipts)),
        "blank": sum(one.counts["blank"] for one in receipts),
        "added": 0,
        "quarantined": Counter(bad.reason for _, bad in given.bad),
    }
    check_quarantine(merged, given)


def check_output(name: str, merged: MergedReceipts, given: Made) -> None:
    """Documents know their file and their number in it."""
    output, documents = merged.outputs[name], given.documents[name]
    columns = output.columns()
    kinds = {"length": "uint32", "origin_file": "uint32", "origin_row": "uint64"}
    assert {column: columns[column].dtype.name for column in kinds} == kinds
    found = zip(*(columns[column].tolist() for column in kinds), strict=True)
    assert [*found] == [document[:3] for document in documents]
    for _, file, number, member in documents:
        if member:
            known = columns | {"member_end": line_ends(columns["member"])}
            assert find_member(known.__getitem__, file, number) == member
    own = [receipt.outputs[name] for _, receipt in given.units if name in receipt.outputs]
    assert columns["kept"].tobytes() == b"".join(one.columns["kept"].tobytes() for one in own)
    for side, column in (("", "page"), ("weight", "weight.page")):
        assert output.shards[side] == [one.shards[side] for one in own]
        assert columns[column].tolist() == [page for one in own for page in one.pages[side]]
    assert output.counts == Counter(characters=len(documents))


def check_quarantine(merged: MergedReceipts, given: Made) -> None:
    """Bad records are written in order, with their place."""
    assert merged.first_bad == next(iter(given.bad), None)
    expected = b""
    for place, bad in given.bad:
        line: dict[str, Any] = {"file": place.file.name}
        if place.member:
            line |= {"member": place.member.name, "line": place.member.number}
        else:
            line[COUNTED[FILES.index(place.file)]] = place.number
        line["reason"] = bad.reason
        if bad.raw == b"\xff":
            line["raw_base64"] = base64.b64encode(bad.raw).decode()
        else:
            line["raw"] = bad.raw and bad.raw.decode()
        expected += json.dumps(line, ensure_ascii=False).encode() + b"\n"
    assert merged.bad_lines.mapped.tobytes() == expected
