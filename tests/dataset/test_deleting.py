"""Deleted documents: no byte of them is left, new runs lack them, runs under way have padding."""

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.deleting import delete_documents
from jaxdata.dataset.verify import verify
from jaxdata.storage import open_store
from jaxdata.testing import assert_exactly_once, distinct_documents
from tests.builders import dataset
from tests.commands import run
from tests.converter.here import objects, run_here, write_lines
from tests.rows.packing.test_packed_rows import Case, cases

EXTRAS = ("source", "document", "w", "target_w")


def batches(folder: Path, case: Case, generation: int | None) -> list[Any]:
    docs = jaxdata.open_dataset(folder).source("train", "web", generation=generation)
    rows = jaxdata.pack(docs, **case.settings)
    return [*jaxdata.Loader(rows, batch_size=5, shard=(0, 1), extras=EXTRAS)]


def blanked(batch: dict[str, np.ndarray], gone: set[int]) -> dict[str, np.ndarray]:
    """A batch as it would be if documents were padding, slot by slot."""
    expected = {name: array.copy() for name, array in batch.items()}
    for place in np.argwhere(np.isin(batch["document"], [*gone])).tolist():
        for name, array in expected.items():
            array[tuple(place)] = -1 if name in ("source", "document") else 0
    return expected


@settings(max_examples=8)
@given(cases(("best_fit", "concat", "crop", "pad")), st.data())
def test_deleted_documents_are_padding_in_older_generations_and_in_no_row_of_a_new_run(
    case: Case, data: st.DataObject
) -> None:
    documents = distinct_documents(case.lengths)
    numbers = st.lists(st.integers(0, len(documents) - 1), min_size=1, max_size=5)
    first, second = data.draw(numbers), data.draw(numbers)
    gone = {*first, *second}
    with tempfile.TemporaryDirectory() as temporary:
        side = {"web": {"w": [each.astype(np.int32) for each in documents]}}
        given: Any = {} if case.masks is None else {"masks": {"web": case.masks}}
        given |= {"side": side, "record_tokens": 16, "shard_documents": 7}
        folder = dataset(Path(temporary, "d"), {"web": documents}, **given)
        was = batches(folder, case, 0)
        delete_documents(folder, documents={"web": first})
        between = batches(folder, case, None)
        again = delete_documents(folder, documents={"train/web": second})
        assert bool(again) == bool({*second} - {*first})
        assert_same(batches(folder, case, 0), [blanked(one, gone) for one in was])
        assert_same(batches(folder, case, 1), [blanked(one, {*second}) for one in between])
        assert not verify(folder).damage
        docs = jaxdata.open_dataset(folder).source("train", "web")
        assert [len(each["tokens"]) for each in docs[:]] == docs.lengths.tolist()
        assert {n for n, length in enumerate(docs.lengths.tolist()) if not length} == gone
        kept = [n for n in range(len(docs)) if n not in gone]
        masks = None if case.masks is None else [case.masks[n] for n in kept]
        left = jaxdata.ArrayDocuments([documents[n] for n in kept], masks)
        if case.settings["strategy"] != "crop":
            rows = jaxdata.pack(docs, **case.settings)
            assert_exactly_once([rows[n] for n in range(len(rows))], [left] if kept else [])


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name], name)


def test_rows_in_the_order_of_megatron_have_the_padding_too(tmp_path: Path) -> None:
    """One segment of a row may span several documents."""

    def batch(generation: int | None) -> Any:
        docs = jaxdata.open_dataset(tmp_path / "d").source("train", "web", generation=generation)
        rows = jaxdata.megatron.gpt(docs, seq_len=64, num_samples=40)
        return next(jaxdata.Loader(rows, batch_size=40))

    dataset(tmp_path / "d", {"web": 60})
    gone, docs = [0, 3, 4, 30, 59], jaxdata.open_dataset(tmp_path / "d")["web"]
    ids = np.concatenate([docs[number]["tokens"] for number in gone])
    was = batch(None)
    delete_documents(tmp_path / "d", documents={"web": gone})
    blank, untargeted = np.isin(was["inputs"], ids), np.isin(was["targets"], ids)
    assert blank.any()
    now = batch(0)
    for name, array in was.items():
        empty = blank | untargeted if name in ("targets", "loss_mask") else blank
        np.testing.assert_array_equal(now[name], np.where(empty, 0, array), name)


TEXTS = [f"the {n * 7919 + 10**6}th document of many, by author {n}" for n in range(40)]


@pytest.fixture
def web(tmp_path: Path) -> Path:
    """A dataset whose texts, fields and hashes are of no other document."""
    convert(tmp_path, range(30))
    return tmp_path / "d"


def convert(folder: Path, numbers: range, *options: str) -> None:
    lines = objects(*({"text": TEXTS[n], "url": f"https://{n}.org/", "n": n} for n in numbers))
    texts = write_lines(folder / f"{numbers.start}.jsonl", lines)
    given = ("--source", "web", "--tokenizer", "bytes", "--keep", "url,n", "--minhash")
    run("convert", texts, "--output", folder / "d", *given, *options)


def traces(folder: Path, numbers: range | list[int]) -> list[bytes]:
    """Bytes that only these documents have: of tokens, fields and hashes."""
    docs: Any = jaxdata.open_dataset(folder)["train/web"]
    found = [docs[n]["tokens"][4:12].tobytes() for n in numbers]
    found += [json.dumps(f"https://{n}.org/").encode() for n in numbers]
    for column in docs.index.hashed:
        found += [np.ascontiguousarray(docs.index.hashes(column)[n, :1]).tobytes() for n in numbers]
    return found


def holding(folder: Path, sought: list[bytes]) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return [name for name, data in contents.items() if any(each in data for each in sought)]


def test_no_byte_of_a_deleted_document_is_left(web: Path, tmp_path: Path) -> None:
    gone, stay = traces(web, [7, 12, 29]), traces(web, [6, 11, 13])
    assert len(holding(web, gone)) == len(holding(web, stay)) > 3
    urls = tmp_path / "urls.txt"
    urls.write_text("https://7.org/\n\nhttps://12.org/\nhttps://nowhere.org/\n")
    assert "2 documents of" in run("delete", web, "--urls", urls).stdout
    assert "1 document of" in run("delete", web, "--where", "n > 28").stdout
    assert "nothing to delete" in run("delete", web, "--where", "n > 28").stdout
    assert holding(web, gone) == []
    assert len({name.rpartition("index-2-d2")[2] for name in holding(web, stay)}) > 3
    history = (web / "history.jsonl").read_text().splitlines()
    commands = [json.loads(line)["command"] for line in history[1:]]
    assert commands == ["jaxdata delete --urls", "jaxdata delete --where"]
    docs = jaxdata.open_dataset(web)["train/web"]
    assert [docs.text(n) for n in (6, 7, 8)] == [TEXTS[6], "", TEXTS[8]]
    assert (docs.kept(6)["n"], docs.kept(7), docs.origin(7)) == (6, {}, ("0.jsonl", 8))
    left = [n for n in range(30) if n not in (7, 12, 29)]
    assert docs.entry is not None
    assert docs.entry.statistics["loss_tokens"] == sum(len(TEXTS[n]) for n in left)


def test_documents_appended_later_leave_the_deleted_ones_deleted(web: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(web, whole)
    delete_documents(web, documents={"web": [3]})
    convert(tmp_path, range(30, 40), "--append")
    delete_documents(web, documents={"web": [35]})
    assert not verify(web).damage
    opened = jaxdata.open_dataset(web)
    docs = opened["train/web"]
    assert [n for n in range(40) if docs.text(n) != TEXTS[n]] == [3, 35]
    assert [len(opened.source("train", "web", generation=n)) for n in range(4)] == [30, 30, 40, 40]
    were: Any = [opened.source("train", "web", generation=n).base for n in range(3)]
    since = [[] if each.blanked is None else each.blanked.tolist() for each in were]
    assert since == [[3], [], [35]]
    assert were[0].fingerprint == jaxdata.open_dataset(whole)["train/web"].fingerprint


def test_a_view_of_the_source_is_of_the_generation_before(web: Path) -> None:
    jaxdata.select(web, "few", where="n < 9")
    delete_documents(web, documents={"web": [4, 20]})
    docs = jaxdata.open_dataset(web).source("train", "web", documents="few", generation=0)
    assert docs.are_blank(np.arange(9)).tolist() == [n == 4 for n in range(9)]
    row = jaxdata.pack(docs, seq_len=1024)[0]
    assert (row["segment_ids"] == 0).sum() == 1024 - sum(len(TEXTS[n]) for n in range(9) if n != 4)
    made = jaxdata.select(web, "few", where="n < 9 or n is None")["train/web"]
    assert made.account.dropped["deleted"].documents == 2
    new = jaxdata.open_dataset(web).source("train", "web", documents="few")
    assert (len(new), len(jaxdata.pack(new, seq_len=1024))) == (8, 1)


def test_both_sides_of_a_pair_are_deleted(tmp_path: Path) -> None:
    pairs = ({"prompt": f"p{n}", "chosen": f"yes {n}", "rejected": f"no {n}"} for n in range(5))
    texts, out = write_lines(tmp_path / "pairs.jsonl", objects(*pairs)), tmp_path / "d"
    run_here(texts, out, source="p", task="dpo")

    def rows(generation: int | None) -> list[Any]:
        opened = jaxdata.open_dataset(out)
        names = ("p/chosen", "p/rejected")
        sides = (opened.source("train", name, generation=generation) for name in names)
        found = jaxdata.pairs(*sides, seq_len=16)
        return [found[n] for n in range(len(found))]

    was = rows(None)
    delete_documents(out, documents={"p/rejected": [2]})
    before = rows(0)
    (gone,) = [n for n in range(5) if not before[n]["chosen_segment_ids"].any()]
    assert not any(before[gone][name].any() for name in was[0])
    left = [n for n in range(5) if n != gone]
    assert_same([before[n] for n in left], [was[n] for n in left])
    others = sorted(was[n]["rejected_inputs"].tobytes() for n in left)
    assert sorted(row["rejected_inputs"].tobytes() for row in rows(None)) == others


def test_a_function_is_not_asked_of_deleted_documents(tmp_path: Path) -> None:
    dataset(tmp_path / "d", {"web": [9, 8, 7, 6]})
    delete_documents(tmp_path / "d", documents={"web": [0, 2]})
    opened = jaxdata.open_dataset(tmp_path / "d")

    def first_two(document: dict[str, Any]) -> Any:
        return document["tokens"][[0, 1]]

    def backwards(document: dict[str, Any]) -> Any:
        assert document["tokens"].all()
        return document["tokens"][::-1]

    docs = opened["train/web"]
    assert docs.map(first_two).lengths.tolist() == [0, 2, 0, 2]
    assert docs.filter(lambda document: document["tokens"][0] > 0).lengths.tolist() == [8, 6]
    was = opened.source("train", "web", generation=0)
    mapped = was.map(backwards, same_length=True)
    assert jaxdata.pack(mapped, seq_len=32)[0]["segment_ids"].astype(bool).sum() == 7 + 5
    with pytest.raises(DatasetError, match="documents were deleted of this generation, and what"):
        len(was.filter(lambda document: len(document["tokens"]) > 7))


def test_what_cannot_be_deleted_is_said(web: Path, tmp_path: Path) -> None:
    refusals: list[tuple[dict[str, Any], str]] = [
        ({}, "give one of documents, where and urls: which documents to delete"),
        ({"where": "n > 1", "urls": []}, "give one of documents, where and urls"),
        ({"documents": {"code": [1]}}, "no source 'code' in "),
        ({"documents": {"web": [29, 30]}}, "no document web:30: train/web has 0 to 29"),
        ({"documents": {"web": [10**19]}}, f"no document web:{10**19}: train/web has 0 to 29"),
        ({"documents": {"web": [True, False]}}, "documents of train/web are given as bool;"),
        ({"documents": {"web": [1.5]}}, "documents of train/web are given as float64;"),
        ({"where": "n + 1"}, "--where 'n + 1' is of type int64: expected true or false"),
        ({"where": "uri == 'a'"}, "--where names the field 'uri', which train/web does not"),
        ({"where": "n > 1", "sources": ["wep"]}, "no source 'wep' in "),
    ]
    for wrong, said in refusals:
        with pytest.raises(InputError, match=f"^{re.escape(said)}"):
            delete_documents(web, **wrong)
    (tmp_path / "ids.txt").write_text("web:1\nweb:-1\n")
    told = run("delete", web, "--documents", tmp_path / "ids.txt", status=2).stderr
    assert "'web:-1': expected [SPLIT/]SOURCE:ID, like web:17 or val/web:17" in told
    open_store(web).write("train/web/work/parameters.json", b"{}")
    with pytest.raises(DatasetError, match=r"d/train/web has unfinished work.*finish it with the"):
        delete_documents(web, documents={"web": [1]})
