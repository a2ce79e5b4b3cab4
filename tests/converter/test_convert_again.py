"""Converting again: finished, unfinished, with more files, beside another, at the same time.

And inputs that change between a kill and the resume, or under a conversion.
"""

import errno
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from jaxdata import DatasetError, InputError, open_dataset
from jaxdata.converter import conversion_run
from jaxdata.dataset import lease
from jaxdata.dataset.index import ShardWriter
from jaxdata.dataset.manifest import MANIFEST
from jaxdata.dataset.verify import verify
from jaxdata.storage import open_store
from tests.converter import here
from tests.converter.here import decoded, interrupted, objects, records, run, tree, write_lines


def test_a_finished_source_is_left_alone_or_refused_by_name(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_lines(folder / "a.jsonl", records("a"))
    write_lines(folder / "b.jsonl", records("c"))
    first = run(folder, out)
    before = tree(out)
    again = run(folder, out, workers=2)
    assert (first.already_complete, again.already_complete) == (False, True)
    assert (again.documents, again.tokens) == (first.documents, first.tokens)
    with pytest.raises(InputError, match=r"share one tokenizer .* record_tokens was 16384, is 9"):
        run(folder, out, source="other", record_tokens=9)
    write_lines(folder / "a.jsonl", records("longer"))
    with pytest.raises(InputError, match=r"input 'a\.jsonl' has other content\. Use another"):
        run(folder, out)
    assert tree(out) == before


def test_an_unfinished_source_is_finished_by_the_same_and_refused_by_name(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    options = {"unit_bytes": 10}
    write_lines(folder / "a.jsonl", [*records("first unit", "second unit"), b"{"])
    with pytest.raises(InputError, match="not JSON"):
        run(folder, out, on_error="fail", **options)
    write_lines(folder / "b.jsonl", records("new"))
    with pytest.raises(InputError, match=r"input 'b\.jsonl' is new.*delete that folder"):
        run(folder, out, **options)
    (folder / "b.jsonl").unlink()
    assert run(folder, out, **options).documents == 2
    assert not list(out.rglob("work"))
    assert run(folder, out, **options).already_complete


def test_a_beginning_without_a_finished_unit_binds_nobody(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [b"{", *records("a")])
    with pytest.raises(InputError, match="not JSON"):
        run(source, tmp_path / "out", on_error="fail")
    write_lines(source, records("mended", "a"))
    assert run(source, tmp_path / "out", record_tokens=9).documents == 2


@pytest.mark.parametrize("left", ["parameters.json", "00000-00000.receipt"])
def test_what_no_unit_is_known_by_does_not_stay(tmp_path: Path, left: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a", "b", "c"))
    run(source, tmp_path / "clean")
    folder = tmp_path / "out/train/web"
    write_lines(folder / "work" / left, [b"{}"])
    write_lines(folder / "00000-00002.array_record", [b"half done"])
    other = write_lines(folder / "de/00000-00002.array_record", [b"a source"])
    run(source, tmp_path / "out")
    assert other.read_bytes() == b"a source\n"
    other.unlink()
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")


CALLS = [(ShardWriter, "close"), (conversion_run, "write_index")]


@pytest.mark.parametrize(("place", "name"), CALLS)
def test_a_full_disk_loses_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    source, out = write_lines(tmp_path / "a.jsonl", records(*map(str, range(50)))), tmp_path / "out"
    run(source, tmp_path / "expected", unit_bytes=100)
    inner, calls = getattr(place, name), count(0 if place is conversion_run else -3)

    def full(*given: Any, **options: Any) -> Any:
        if next(calls) == 0:
            raise OSError(errno.ENOSPC, "No space left on device", "file")
        return inner(*given, **options)

    monkeypatch.setattr(place, name, full)
    says = rf"{out} cannot be written: No space left on device \(.* and the same command resumes$"
    with pytest.raises(DatasetError, match=says):
        run(source, out, unit_bytes=100)
    assert here.receipts(out)
    assert not [path for path in out.rglob("*") if ".tmp-" in path.name or path.name == MANIFEST]
    run(source, out, unit_bytes=100)
    assert tree(out) == tree(tmp_path / "expected")


def test_an_addition_that_is_stopped_leaves_what_was_and_is_not_cleaned_up(tmp_path: Path) -> None:
    out, adding = tmp_path / "out", {"append": True, "unit_bytes": 300}
    one = write_lines(tmp_path / "in/a.jsonl", records("one", "two"))
    for name in ("out", "expected"):
        run(one, tmp_path / name)
    write_lines(tmp_path / "in/b.jsonl", records(*map(str, range(200))))
    run(tmp_path / "in", tmp_path / "expected", **adding)
    before: list[Path] = []
    for units in (2, 5, 9):
        done = interrupted(tmp_path / "in", out, units, **adding)
        assert len(done) > len(before)
        assert decoded(out) == ["one", "two"]
        assert run(one, out).already_complete
        before = here.receipts(out)
        assert before == done
    with pytest.raises(InputError, match="text_key was 'text', is 'x'"):
        run(tmp_path / "in", out, text_key="x", **adding)
    run(tmp_path / "in", out, **adding)
    assert tree(out) == tree(tmp_path / "expected")


def test_documents_kept_fields_and_splits_grow_together(tmp_path: Path) -> None:
    out, options = tmp_path / "out", {"keep": ["n"], "split_ratio": "train=1,val=1"}
    for part in range(3):
        rows = [{"text": f"{part} {n}", "n": [part, n]} for n in range(2 if part else 40)]
        bad = [b"{", b'{"n": 1}', b"{"][part]
        write_lines(tmp_path / f"in/{part}.jsonl", [*objects(*rows), bad])
        run(tmp_path / "in", out, append=True, **options)
    found, counts = [], here.statistics(out)
    assert (counts["quarantined"], counts["records"]) == ({"not JSON": 2, "no key 'text'": 1}, 47)
    for split in ("train", "val"):
        docs = open_dataset(out).source(split, "web")
        for i, text in enumerate(decoded(out, f"{split}/web")):
            part, n = map(int, text.split())
            assert (docs.kept(i), docs.origin(i)) == ({"n": [part, n]}, (f"{part}.jsonl", n + 1))
            found.append(text)
    assert len(set(found)) == len(found) == 44
    assert verify(out).whole
    before = tree(out)
    assert run(tmp_path / "in", out, append=True, **options).already_complete
    assert run(tmp_path / "in/0.jsonl", out, **options).already_complete
    write_lines(tmp_path / "in/0.jsonl", records("other"))
    with pytest.raises(InputError, match=r"'0\.jsonl' was converted before with other content"):
        run(tmp_path / "in", out, append=True, **options)
    assert tree(out) == before


def test_what_cannot_be_added_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("a", "b"):
        write_lines(tmp_path / f"in/{name}.jsonl", records(*(f"{name} {n}" for n in range(3))))
        run(tmp_path / "in", out, append=True)
    new = write_lines(tmp_path / "new/d.jsonl", records("x"))
    row = out / "train/web/index-1/origin_row/c/0"
    content = row.read_bytes()
    row.write_bytes(b"\x07" + content[1:])
    says = "nothing can be added to train/web of .*: train/web/index-1/origin_row: its content dif"
    with pytest.raises(DatasetError, match=says):
        run(new, out, append=True)
    row.write_bytes(content)
    assert run(new, out, append=True).documents == 7


def test_a_source_is_converted_by_one_at_a_time_and_others_land_beside_it(tmp_path: Path) -> None:
    one, out = write_lines(tmp_path / "a.jsonl", records(*map(str, range(20)))), tmp_path / "out"
    ratio = {"split_ratio": "train=2,val=1", "unit_bytes": 50}

    def again(done: int, total: int) -> None:
        for options in (ratio, {"split": "val"}, {"append": True}):  # val is one of its splits
            says = "out/(train|val)/web is being written by another process: process "
            with pytest.raises(DatasetError, match=says):
                run(one, out, **options)
        if done == total:
            run(one, out, source="other")

    run(one, out, progress=again, **ratio)
    assert here.manifest(out)["sources"].keys() == {"train/web", "val/web", "train/other"}


def test_a_first_manifest_waits_for_what_another_writes(tmp_path: Path, monkeypatch: Any) -> None:
    one, out = write_lines(tmp_path / "a.jsonl", records("a")), tmp_path / "out"
    with ExitStack() as theirs:
        events = [lambda: theirs.enter_context(lease.leased(open_store(out), [""]))]
        monkeypatch.setattr(lease.time, "sleep", lambda _: theirs.close())
        run(one, out, progress=lambda done, total: done == total and events.pop()())
    assert decoded(out) == ["a"]
    assert not events


@pytest.mark.parametrize("when", ["changed_since", "note_conversion"])
def test_what_another_published_is_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As if the lease had been lost, and nobody had noticed."""
    one, alone = write_lines(tmp_path / "a.jsonl", records("a", "b", "c", "d")), tmp_path / "alone"
    run(one, alone, unit_bytes=10)
    before = getattr(conversion_run, when)

    def another(*given: Any) -> Any:
        shutil.copytree(alone, tmp_path / "out", dirs_exist_ok=True)
        return before(*given)

    monkeypatch.setattr(conversion_run, when, another)
    with pytest.raises(DatasetError, match="train/web was changed by another process"):
        run(one, tmp_path / "out", unit_bytes=20, min_chars=1)
    after = tree(tmp_path / "out")
    assert tree(alone) == {name: after[name] for name in tree(alone)}


SIZES: dict[str, Any] = {"unit_bytes": 20_000}  # about 12 units
TEXTS = [f"{number:05} " + "abc" * (number * 7 % 60) for number in range(2_500)]
"""Enough that the middle of a file is in neither head nor tail."""
EDITED = [text.replace("abc", "xyz") if n == 1_207 else text for n, text in enumerate(TEXTS)]


def fresh(inputs: Path, output: Path, **options: Any) -> dict[str, str]:
    run(inputs, output, **SIZES, **options)
    return tree(output)


def test_records_that_are_given_again_are_known_by_their_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = interrupted(iter(TEXTS), tmp_path / "out", 8, **SIZES)
    shards = [tmp_path / f"out/train/web/{path.stem}.array_record" for path in done]
    before = [path.stat().st_mtime_ns for path in shards]
    run(iter(TEXTS), tmp_path / "out", **SIZES)
    assert [path.stat().st_mtime_ns for path in shards] == before
    assert caplog.messages == []


@settings(max_examples=5)
@given(st.data())
def test_any_edit_at_any_time(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """Lines joined, cut, made bad, moved from one unit to the next; again and again."""
    folder = tmp_path_factory.mktemp("edit")
    source, out, split = folder / "a.jsonl", folder / "out", {"split_ratio": "train=2,val=1"}
    content = bytearray(write_lines(source, records(*TEXTS)).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        interrupted(source, out, data.draw(st.integers(1, 11)), **SIZES, **split)
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(2**16, len(content) - 2**16 - 1))
            content[at] = data.draw(st.sampled_from(b'\n "}x'))
        source.write_bytes(content)
    run(source, out, **SIZES, **split)
    assert tree(out) == fresh(source, folder / "fresh", **split)


def convert_while(change: Callable[[], object], inputs: Path, output: Path) -> None:
    """Make a change when half of the work is done."""
    made = []

    def progress(done: int, total: int) -> None:
        if done > total / 2 and not made:
            made.append(change())

    run(inputs, output, progress=progress, **SIZES)


def test_a_file_that_changes_is_read_again_as_long_as_it_was_or_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", records(*TEXTS))
    expected, out = fresh(source, tmp_path / "fresh"), tmp_path / "out"
    convert_while(lambda: write_lines(source, records(*TEXTS, "more")), source, tmp_path / "grown")
    assert tree(tmp_path / "grown") == expected
    write_lines(source, records(*TEXTS))
    convert_while(lambda: write_lines(source, records(*EDITED)), source, tmp_path / "edited")
    assert tree(tmp_path / "edited") == fresh(source, tmp_path / "fresh-edited")
    says = rf"{source} was modified while it was converted\. Delete {out}/train/web, run the same"
    with pytest.raises(InputError, match=says):
        convert_while(lambda: source.write_bytes(b"{}\n" * 99_999), source, out)
    assert not (out / "dataset.json").exists()
