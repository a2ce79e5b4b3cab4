"""Converting again: finished, unfinished, beside another, at the same time."""

from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from jaxdata import tokenizers
from jaxdata.converter import conversion, conversion_run, publish
from jaxdata.converter.inputs import units as parts
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.lease import leased
from jaxdata.format.manifest import update_manifest
from jaxdata.format.storage import open_store
from tests.converter.here import run_here
from tests.converter.test_convert import (
    decoded,
    manifest,
    records,
    run,
    write_lines,
)
from tests.format.trees import tree


def test_a_finished_source_is_left_alone_or_refused_by_name(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in/a.jsonl", [b'{"text": "a", "body": "b"}'])
    write_lines(tmp_path / "in/b.jsonl", records("c"))
    out = tmp_path / "out"
    first = run(tmp_path / "in", out)
    before = tree(out)
    again = run(tmp_path / "in", out, workers=2)
    assert again.already_complete
    assert not first.already_complete
    assert (again.documents, again.tokens) == (first.documents, first.tokens)
    for change, says in [
        (
            {"text_key": "body"},
            "already has train/web with different settings: text_key was 'text', is 'body'",
        ),
        ({"record_tokens": 9}, "record_tokens was 16384, is 9"),
        ({"unit_bytes": 9}, "unit_bytes was 4194304, is 9"),
        ({"tokenizer": tokenizers.load("bytes", eod=3)}, "tokenizer eod_id was 256, is 3"),
    ]:
        with pytest.raises(InputError, match=says):
            run(tmp_path / "in", out, **change)
    with pytest.raises(InputError, match=r"input 'b\.jsonl' is missing"):
        run(source, out)
    write_lines(source, records("longer"))
    with pytest.raises(InputError, match=r"input 'a\.jsonl' has other content\. Use another"):
        run(tmp_path / "in", out)
    assert tree(out) == before


def test_units_that_more_inputs_make_larger_are_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_SMALLEST", 1)
    write_lines(tmp_path / "in/a.jsonl", records("a" * 1_000))
    run(tmp_path / "in", tmp_path / "out")
    write_lines(tmp_path / "in/b.jsonl", records("b" * 9_000))
    with pytest.raises(InputError, match=r"different inputs: input 'b\.jsonl' is new\. Add these"):
        run(tmp_path / "in", tmp_path / "out")
    with pytest.raises(InputError, match=r"different settings: .* is new.*\. Use another"):
        run(tmp_path / "in", tmp_path / "out", min_chars=2)  # --append would not be enough


def test_the_same_input_elsewhere_is_the_same(tmp_path: Path) -> None:
    write_lines(tmp_path / "here/in/a.jsonl", records("a"))
    write_lines(tmp_path / "there/a.jsonl", records("a"))
    run(tmp_path / "here/in", tmp_path / "out")
    assert run(tmp_path / "there/a.jsonl", tmp_path / "out").already_complete


def test_an_unfinished_source_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_lines(folder / "a.jsonl", [*records("first unit", "second unit"), b"{"])
    out = tmp_path / "out"
    with pytest.raises(InputError, match="not JSON"):
        run(folder, out, on_error="fail", unit_bytes=10)
    for change, says in [
        ({"text_key": "x"}, "conversion with different settings: text_key was 'text', is 'x'"),
        ({"record_tokens": 9}, "record_tokens was 16384, is 9"),
        ({"tokenizer": tokenizers.load("bytes", eod=3)}, "tokenizer eod_id was 256, is 3"),
    ]:
        with pytest.raises(InputError, match=says):
            run(folder, out, **{"unit_bytes": 10} | change)
    write_lines(folder / "b.jsonl", records("new"))
    with pytest.raises(InputError, match=r"input 'b\.jsonl' is new.*delete that folder"):
        run(folder, out, unit_bytes=10)
    (folder / "b.jsonl").unlink()
    assert run(folder, out, unit_bytes=10).documents == 2
    assert not list(out.rglob("work"))


def test_a_beginning_without_a_finished_unit_binds_nobody(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [b"{", *records("a")])
    with pytest.raises(InputError, match="not JSON"):
        run(source, tmp_path / "out", on_error="fail")
    write_lines(source, records("mended", "a"))
    assert run(source, tmp_path / "out", record_tokens=9).documents == 2


def test_a_shard_without_a_receipt_does_not_stay(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a", "b", "c"))
    run(source, tmp_path / "clean")
    work = write_lines(tmp_path / "out/train/web/work/parameters.json", [b"{}"])
    write_lines(work.parent.parent / "00000-00002.array_record", [b"half done"])
    other = write_lines(tmp_path / "out/train/web/de/00000-00002.array_record", [b"a source"])
    run(source, tmp_path / "out")
    assert other.read_bytes() == b"a source\n"
    other.unlink()
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")


def test_receipts_without_parameters_are_of_nothing_known(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a", "b", "c"))
    run(source, tmp_path / "clean")
    write_lines(tmp_path / "out/train/web/work/00000-00000.receipt", [b"of something else"])
    write_lines(tmp_path / "out/train/web/.tmp-jaxdata-killed", [b"half done"])
    run(source, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")


def test_a_damaged_receipt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a", "b", "c"))
    run(source, tmp_path / "clean", unit_bytes=10)
    with monkeypatch.context() as patch:
        patch.setattr(conversion_run, "publish", None)
        with pytest.raises(TypeError):
            run(source, tmp_path / "out", unit_bytes=10)
    receipt = sorted(tmp_path.glob("out/train/web/work/*.receipt"))[1]
    content = receipt.read_bytes()
    for damaged in (content[:-40] + b"x" + content[-39:], content[:-1], b""):
        receipt.write_bytes(damaged)
        says = f"{receipt.name} is damaged, or of another version of jaxdata: delete it and run"
        with pytest.raises(DatasetError, match=says):
            run(source, tmp_path / "out", unit_bytes=10)
    receipt.unlink()
    run(source, tmp_path / "out", unit_bytes=10)
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")


def test_resuming_begins_nothing(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [*records("a", "b"), b"{"])
    options = {"unit_bytes": 10, "resume": True}
    with pytest.raises(InputError, match=r"nothing to resume: .*out has no unfinished train/web\."):
        run(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="not JSON"):
        run(source, tmp_path / "out", unit_bytes=10, on_error="fail")
    assert run(source, tmp_path / "out", **options).documents == 2
    assert run(source, tmp_path / "out", **options).already_complete


def test_a_second_source_joins_but_no_other_tokenizer(shared_data: Path, tmp_path: Path) -> None:
    one = write_lines(tmp_path / "a.jsonl", records("first"))
    two = write_lines(tmp_path / "b.jsonl", records("second", "third"))
    out = tmp_path / "out"
    run(one, out)
    before = tree(out)
    run(two, out, source="books", split="val")
    after = tree(out)
    assert {name: after[name] for name in before if name != "dataset.json"} == {
        name: digest for name, digest in before.items() if name != "dataset.json"
    }
    assert decoded(out) == ["first"]
    assert decoded(out, "val/books") == ["second", "third"]
    spec = f"tiktoken:{shared_data / 'tokenizers/tiktoken/gpt2.tiktoken'}"
    with pytest.raises(
        InputError, match=r"one tokenizer.*kind was 'bytes', is 'tiktoken'.*--output"
    ):
        run(two, out, source="more", tokenizer=spec)
    assert not (out / "train/more").exists()


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    def fingerprint(output: Path, source: str) -> str:
        return manifest(output)["sources"][source]["fingerprint"]

    one = write_lines(tmp_path / "a.jsonl", records("a", "b"))
    same = write_lines(tmp_path / "other-name.jsonl", records("a", "b"))
    other = write_lines(tmp_path / "c.jsonl", records("a", "c"))
    out = tmp_path / "out"
    run(one, out)
    run(same, out, source="same", split="val")
    run(other, out, source="other")
    assert fingerprint(out, "train/web") == fingerprint(out, "val/same")
    assert fingerprint(out, "train/web") != fingerprint(out, "train/other")


def test_a_source_is_converted_by_one_at_a_time(tmp_path: Path) -> None:
    """Whatever the other's options, and if its documents go to one of several splits."""
    one = write_lines(tmp_path / "a.jsonl", records(*map(str, range(20))))
    ratio = {"split_ratio": "train=2,val=1", "unit_bytes": 50}
    told = []

    def again(_done: int, _total: int) -> None:
        for options in (ratio, {"record_tokens": 9}, {"split": "val"}, {"append": True}):
            with pytest.raises(DatasetError) as error:
                run_here(one, tmp_path / "out", **options)
            told.append(str(error.value))

    run_here(one, tmp_path / "out", progress=again, **ratio)
    assert len(told) > 8
    says = rf"out/(train|val)/web is being written by another process: process {os.getpid()} on "
    assert all(re.search(says, one) and "cannot be written" not in one for one in told)
    run_here(one, tmp_path / "alone", **ratio)
    assert tree(tmp_path / "out") == tree(tmp_path / "alone")


def test_what_another_published_is_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write_lines(tmp_path / "a.jsonl", records("a", "b", "c"))
    run_here(one, tmp_path / "out", unit_bytes=10)
    before = tree(tmp_path / "out")
    monkeypatch.setattr(conversion.Conversion, "finished", lambda _: {})  # as before it was there
    for other in ({}, {"unit_bytes": 10, "min_chars": 1}, {"on_error": "fail"}):
        with pytest.raises(DatasetError, match="train/web was changed by another process"):
            run_here(one, tmp_path / "out", **other)
        assert tree(tmp_path / "out") == before


def test_what_another_published_meanwhile_keeps_its_index_and_hashes(tmp_path: Path) -> None:
    """As if the lease had been lost, and nobody had noticed."""
    one = write_lines(tmp_path / "in/a.jsonl", records("a", "b", "c", "d"))
    published: dict[str, str] = {}

    def another(done: int, total: int) -> None:
        if done == total and not published:
            alone = tmp_path / "alone"
            run_here(one, alone, unit_bytes=10)
            shutil.copytree(alone, tmp_path / "out", dirs_exist_ok=True)
            published.update(tree(alone))

    with pytest.raises(DatasetError, match="train/web was changed by another process"):
        run_here(one, tmp_path / "out", unit_bytes=20, min_chars=1, progress=another)
    after = tree(tmp_path / "out")
    assert published == {name: after[name] for name in published}


def test_a_source_that_is_held_is_not_touched(tmp_path: Path) -> None:
    """By one that would add to it, while another does."""
    write_lines(tmp_path / "in/a.jsonl", records("a"))
    run_here(tmp_path / "in", tmp_path / "out")
    write_lines(tmp_path / "in/b.jsonl", records("b"))
    os.utime(tmp_path / "in/a.jsonl", ns=(2**62, 2**62))  # it looks modified
    before = times(tmp_path / "out")
    with (
        leased(open_store(tmp_path / "out"), ["train/web"]),
        pytest.raises(DatasetError, match="is being written by another process"),
    ):
        run_here(tmp_path / "in", tmp_path / "out", append=True)
    assert times(tmp_path / "out") == before


def times(folder: Path) -> dict[Path, int]:
    """When each file was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.json*")}


def test_an_addition_on_the_way_is_not_cleaned_away(tmp_path: Path) -> None:
    def stop(done: int, _total: int) -> None:
        if done > 100:
            raise KeyboardInterrupt

    one = write_lines(tmp_path / "in/a.jsonl", records("a"))
    run_here(one, tmp_path / "out")
    write_lines(tmp_path / "in/b.jsonl", records(*map(str, range(20))))
    adding = {"append": True, "unit_bytes": 50}
    with pytest.raises(KeyboardInterrupt):
        run_here(tmp_path / "in", tmp_path / "out", progress=stop, **adding)
    done = sorted(tmp_path.glob("out/train/web/work/*.receipt"))
    assert run_here(one, tmp_path / "out").already_complete
    assert sorted(tmp_path.glob("out/train/web/work/*.receipt")) == done != []
    assert run_here(tmp_path / "in", tmp_path / "out", **adding).documents == 21


def test_what_was_not_cleaned_at_the_end_is_cleaned_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        update_manifest(*arguments)
        raise KeyboardInterrupt

    one = write_lines(tmp_path / "in/a.jsonl", records("a", "b"))
    with monkeypatch.context() as patch:
        patch.setattr(publish, "update_manifest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_here(one, tmp_path / "out")
    assert list(tmp_path.glob("out/train/web/work/*.receipt"))
    assert run_here(one, tmp_path / "out").already_complete
    assert not list(tmp_path.rglob("work"))


def test_two_conversions_at_once_both_land(tmp_path: Path) -> None:
    names = ["one", "two", "three"]
    for name in names:
        write_lines(tmp_path / f"{name}.jsonl", records(name))
    threads = [
        threading.Thread(
            target=run, args=(tmp_path / f"{name}.jsonl", tmp_path / "out"), kwargs={"source": name}
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [decoded(tmp_path / "out", f"train/{name}") for name in names] == [[n] for n in names]
