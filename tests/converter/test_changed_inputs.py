"""Inputs that change between a kill and the resume, under a conversion, or after it."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.converter import ConversionReport
from jaxdata.converter.inputs import identity
from jaxdata.converter.inputs.content import ContentHash
from jaxdata.converter.inputs.cutting import cut
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.raw_records import Raw, TextPiece, Unreadable
from jaxdata.converter.inputs.units import ReadSettings
from jaxdata.converter.receipts import Receipt
from jaxdata.errors import InputError
from jaxdata.format.verify import verify
from tests.converter.here import run_here
from tests.format.trees import tree

UNIT_BYTES = 20_000
UNITS = 12  # about
TEXTS = [f"{number:05} " + "abc" * (number * 7 % 60) for number in range(2_500)]
"""Enough that the middle of a file is in neither head nor tail."""
EDITED = [text.replace("abc", "xyz") if n == 1_207 else text for n, text in enumerate(TEXTS)]


def jsonl(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def parquet(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    plain: dict[str, Any] = {"use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"text": texts}), sink, 25, compression="none", **plain)
    return sink.getvalue()


def tar(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for start in range(0, len(texts), 500):
            data = jsonl(texts[start : start + 500])
            entry = tarfile.TarInfo(f"{start}.jsonl")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return sink.getvalue()


def zst(texts: list[str]) -> bytes:
    """Blocks that are stored as they are, without a checksum at the end."""
    data = jsonl(texts)
    parts = [data[a : a + 2**16] for a in range(0, len(data), 2**16)]
    blocks = [(len(part) << 3 | (part is parts[-1])).to_bytes(3, "little") + part for part in parts]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks)


FORMATS: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl": jsonl,
    "a.json": lambda texts: json.dumps([{"text": text} for text in texts]).encode(),
    "a.txt": lambda texts: "\n\n".join(texts).encode(),
    "a.parquet": parquet,
    "a.tar": tar,
    "a.jsonl.zst": zst,
}


def stop_at(share: float) -> Callable[[int, int], None]:
    """Interrupt when that share of the units is done."""
    units = count(1)

    def stop(done: int, _total: int) -> None:
        if done and next(units) >= share * UNITS:  # the first call says the total
            raise KeyboardInterrupt

    return stop


def convert(inputs: Path, output: Path, **options: Any) -> ConversionReport:
    given = {"unit_bytes": UNIT_BYTES, "piece_bytes": 1_000} | options
    return run_here(inputs, output, **given)


def interrupted(inputs: Path, output: Path, share: float = 0.7, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        convert(inputs, output, progress=stop_at(share), **options)


def receipts(output: Path) -> list[Path]:
    return sorted(output.glob("train/web/work/*.receipt"))


def fresh(inputs: Path, output: Path, **options: Any) -> dict[str, str]:
    convert(inputs, output, **options)
    return tree(output)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("share", [0.2, 0.9])
def test_a_resume_gives_the_dataset_of_the_inputs_as_they_are(
    tmp_path: Path, name: str, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Edited in the middle: size, head and tail are the same."""
    source, out = tmp_path / name, tmp_path / "out"
    source.write_bytes(FORMATS[name](TEXTS))
    digest = identity.look_at(str(source)).digest
    interrupted(source, out, share)
    assert receipts(out)
    source.write_bytes(FORMATS[name](EDITED))
    assert identity.look_at(str(source)).digest == digest
    convert(source, out)
    assert tree(out) == fresh(source, tmp_path / "fresh")
    assert verify(out).whole
    says = f"input {name!r} changed since it was converted: converted again (00000-000"
    assert (says in caplog.text) == (share > 0.5)


def test_a_file_that_was_only_touched_is_compared_and_kept(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(jsonl(TEXTS))
    interrupted(source, out)
    shards = {path: path.stat().st_mtime_ns for path in out.rglob("*.array_record")}
    was = [Receipt.decode(path.read_bytes()) for path in receipts(out)]
    os.utime(source, (1, 1))
    interrupted(source, out, share=0.75)
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    now = [Receipt.decode(path.read_bytes()) for path in receipts(out)]
    for before, after in zip(was, now, strict=False):
        assert before.contents == after.contents
        assert before.stamp != after.stamp
    assert len({receipt.stamp for receipt in now}) == 1
    convert(source, out)
    assert tree(out) == fresh(source, tmp_path / "fresh")


def test_an_edit_that_hides_its_time_is_seen(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(jsonl(TEXTS))
    facts = source.stat()
    interrupted(source, out)
    with source.open("r+b") as file:  # the same inode
        file.write(jsonl(EDITED))
    os.utime(source, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    convert(source, out)
    assert tree(out) == fresh(source, tmp_path / "fresh")


def test_an_edit_without_a_trace_is_seen_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_stamp", lambda _: 0)
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    for verify_inputs in (False, True):
        source.write_bytes(jsonl(TEXTS))
        interrupted(source, out)
        source.write_bytes(jsonl(EDITED))
        convert(source, out, verify_inputs=verify_inputs)
        expected = fresh(source, tmp_path / f"fresh {verify_inputs}")
        assert (tree(out) == expected) == verify_inputs
        out.rename(tmp_path / f"out {verify_inputs}")


def test_receipts_without_a_hash_still_count(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(jsonl(TEXTS))
    expected = fresh(source, tmp_path / "fresh")
    del expected["train/web/inputs.json"]  # not every unit is known to be of these inputs
    for verify_inputs in (False, True):
        interrupted(source, out)
        for path in receipts(out):
            old = replace(Receipt.decode(path.read_bytes()), contents=[], stamp="")
            path.write_bytes(old.encode())
        shards = {path: path.stat().st_mtime_ns for path in out.rglob("*.array_record")}
        convert(source, out, verify_inputs=verify_inputs)
        made = tree(out)
        assert {name: made[name] for name in expected} == expected
        assert ("train/web/inputs.json" in made) == verify_inputs
        kept = [path.stat().st_mtime_ns == written for path, written in shards.items()]
        assert set(kept) == {not verify_inputs}
        out.rename(tmp_path / f"out {verify_inputs}")


def test_units_that_are_no_more_leave_nothing(tmp_path: Path) -> None:
    """The edit makes one long line, so that there are fewer units."""
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(jsonl(TEXTS))
    interrupted(source, out, 0.95)
    data = source.read_bytes()
    source.write_bytes(data[:70_000] + data[70_000:140_000].replace(b"\n", b" ") + data[140_000:])
    units = len(receipts(out))
    convert(source, out)
    assert tree(out) == fresh(source, tmp_path / "fresh")
    assert len(list(out.rglob("*.array_record"))) < units


def test_units_of_other_parts_are_no_damage(tmp_path: Path) -> None:
    """One line in place of a file of an archive: later units begin elsewhere in other files."""
    source, out = tmp_path / "a.tar", tmp_path / "out"
    source.write_bytes(tar(TEXTS))
    interrupted(source, out, 0.9)
    was = [len(Receipt.decode(path.read_bytes()).records) for path in receipts(out)]
    data = source.read_bytes()
    start, end = (data.index(jsonl([TEXTS[number]])) for number in (700, 999))
    source.write_bytes(data[:start] + data[start:end].replace(b"\n", b" ") + data[end:])
    units = cut(find_inputs(source), ReadSettings(("text",)), UNIT_BYTES)
    assert [len(unit.parts) for unit in units][: len(was)] != was
    convert(source, out)
    assert tree(out) == fresh(source, tmp_path / "fresh")


@settings(max_examples=10)
@given(st.data())
def test_any_edit_at_any_time(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Lines joined, cut, made bad, moved from one unit to the next; again and again."""
    folder = tmp_path_factory.mktemp("edit")
    source, out = folder / "a.jsonl", folder / "out"
    content = bytearray(jsonl(TEXTS))
    source.write_bytes(content)
    for _ in range(data.draw(st.integers(1, 3))):
        shares = st.floats(0.05, 0.9)
        interrupted(source, out, data.draw(shares), split_ratio="train=2,val=1")
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(2**16, len(content) - 2**16 - 1))
            content[at] = data.draw(st.sampled_from(b'\n "}x'))
        source.write_bytes(content)
    convert(source, out, split_ratio="train=2,val=1")
    assert tree(out) == fresh(source, folder / "fresh", split_ratio="train=2,val=1")


def meanwhile(change: Callable[[], None]) -> Callable[[int, int], None]:
    """Make a change when half of the work is done."""
    made = []

    def progress(done: int, total: int) -> None:
        if done > total / 2 and not made:
            made.append(True)
            change()

    return progress


@pytest.mark.parametrize("contiguous", [False, True])
def test_an_edit_under_a_conversion(tmp_path: Path, contiguous: bool) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(jsonl(TEXTS))
    split = {"split_ratio": "train=2,val=1", "split_contiguous": True} if contiguous else {}
    edit = meanwhile(lambda: source.write_bytes(jsonl(EDITED)) and None)
    convert(source, out, progress=edit, **split)
    assert tree(out) == fresh(source, tmp_path / "fresh", **split)


def test_what_is_added_to_a_file_meanwhile_is_no_part_of_it(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(jsonl(TEXTS))
    expected = fresh(source, tmp_path / "fresh")

    def grow() -> None:
        with source.open("ab") as file:
            file.write(jsonl(["more"]))

    convert(source, out, progress=meanwhile(grow))
    assert tree(out) == expected


def test_a_file_that_becomes_another_meanwhile_is_named(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(jsonl(TEXTS))
    says = rf"{source} was modified while it was converted\. Delete {out}/train/web, run the same"
    with pytest.raises(InputError, match=says):
        convert(source, out, progress=meanwhile(lambda: source.write_bytes(b"{}\n" * 99_999)))
    assert not (out / "dataset.json").exists()


def test_a_file_that_is_gone_when_it_was_read_is_not_missed(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(jsonl(TEXTS))
    convert(
        source, out, progress=lambda done, total: done < total or source.unlink(missing_ok=True)
    )
    assert (out / "dataset.json").exists()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("append", [False, True])
def test_a_converted_input_that_was_changed_in_place_is_refused(
    tmp_path: Path, name: str, append: bool
) -> None:
    source, out = tmp_path / "in" / name, tmp_path / "out"
    source.parent.mkdir()
    source.write_bytes(FORMATS[name](TEXTS))
    convert(source.parent, out)
    before = tree(out)
    os.utime(source)
    assert convert(source.parent, out, append=append).already_complete
    assert tree(out) == before
    if append:
        (source.parent / "more.jsonl").write_bytes(jsonl(["more"]))
    source.write_bytes(FORMATS[name](EDITED))
    says = f"input '{name}' changed since it was converted, though not in size, head and tail"
    with pytest.raises(InputError, match=says):
        convert(source.parent, out, append=append)
    assert tree(out) == before
    source.write_bytes(FORMATS[name](TEXTS))
    assert convert(source.parent, out, append=append).already_complete != append


def test_known_inputs_are_read_again_only_where_they_may_have_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(jsonl(TEXTS))
    (folder / "b.jsonl").write_bytes(jsonl(["one"]))
    convert(folder, out)
    (folder / "c.jsonl").write_bytes(jsonl(["two"]))
    convert(folder, out, append=True)
    assert sorted(path.name for path in out.rglob("inputs*")) == ["inputs-1.json", "inputs.json"]
    again = {"append": True}
    assert convert(folder, out, **again).already_complete
    assert caplog.text == ""
    os.utime(folder / "b.jsonl")
    for _ in range(2):  # the second time it is known that nothing changed
        assert convert(folder, out, **again).already_complete
    assert caplog.text.count("reading 1 known inputs again (0 MB)") == 1
    assert convert(folder, out, verify_inputs=True, **again).already_complete
    assert "reading 2 known inputs again" in caplog.text
    (folder / "a.jsonl").write_bytes(jsonl(EDITED))
    os.utime(out / "train/web/inputs.json", ns=(2**62, 2**62))  # as if of the future
    assert convert(folder, out, **again).already_complete
    with pytest.raises(InputError, match=r"input 'a\.jsonl' changed since it was converted"):
        convert(folder, out, verify_inputs=True, **again)


def test_a_dataset_from_before_has_nothing_to_compare_with(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(jsonl(TEXTS))
    convert(folder, out)
    (out / "train/web/inputs.json").unlink()
    os.utime(folder / "a.jsonl")
    assert convert(folder, out).already_complete
    says = r"--verify-inputs: \S+/train/web has no hash of 'a\.jsonl', as an earlier jaxdata"
    with pytest.raises(InputError, match=says):
        convert(folder, out, verify_inputs=True)
    (folder / "b.jsonl").write_bytes(jsonl(["one"]))
    assert convert(folder, out, append=True).documents == len(TEXTS) + 1
    assert verify(out).whole


def test_hashes_that_are_damaged_are_named(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(jsonl(TEXTS))
    convert(source, out)
    file = out / "train/web/inputs.json"
    data = file.read_bytes()
    for damaged in (data.replace(b"20000", b"30000"), data[:-9], b"[]", b""):
        file.write_bytes(damaged)
        (found,) = verify(out).damage
        assert str(found).startswith("train/web/inputs.json: its content differs from its checksum")


_RECORDS = st.lists(
    st.one_of(
        st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")),
        st.binary(max_size=9).map(TextPiece),
        st.builds(Unreadable, st.just("a reason longer than lines"), st.binary(max_size=3)),
        st.dictionaries(st.text(max_size=2), st.text(max_size=3) | st.none() | st.integers()),
    ),
    max_size=6,
)


@given(_RECORDS, _RECORDS)
def test_other_records_have_another_hash(one: list[Raw], other: list[Raw]) -> None:
    hashes = []
    for run in (one, other):
        content = ContentHash()
        content.add(run)
        hashes.append(content.hexdigest())
    assert (hashes[0] == hashes[1]) == (one == other)
