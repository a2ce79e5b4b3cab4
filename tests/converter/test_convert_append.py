"""Documents added to a source: what was there stays, and old states go on with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata import DatasetError, InputError, StateMismatch, open_dataset
from jaxdata.converter import publish
from jaxdata.format.manifest import Manifest, read_manifest
from jaxdata.format.storage import Store
from tests.converter.test_convert import decoded, manifest, records, run, write_lines
from tests.format.trees import tree


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A dataset whose source was added to twice."""
    for name, words in {"a": "one two", "b": "three", "c": "four five six"}.items():
        write_lines(tmp_path / f"in/{name}.jsonl", [*records(*words.split()), b"{"])
        run(tmp_path / "in", tmp_path / "out", append=True)
    return tmp_path


def source(folder: Path, **options: Any) -> Any:
    return open_dataset(folder / "out").source("train", "web", **options)


def test_added_documents_come_after_those_that_were_there(grown: Path) -> None:
    assert decoded(grown / "out") == ["one", "two", "three", "four", "five", "six"]
    docs = source(grown)
    assert [docs.origin(i) for i in range(6)] == [
        *(("a.jsonl", 1), ("a.jsonl", 2), ("b.jsonl", 1)),
        *(("c.jsonl", n) for n in (1, 2, 3)),
    ]
    entry = manifest(grown / "out")["sources"]["train/web"]
    assert entry["inputs"] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert entry["statistics"]["text_bytes"] == 22
    assert entry["statistics"]["quarantined"] == {"not JSON": 3}
    assert [shard["name"].split("/")[-1] for shard in entry["shards"]] == [
        f"0000{n}-00000.array_record" for n in range(3)
    ]
    assert not list(grown.glob("out/train/web/work"))
    command = [sys.executable, "-m", "jaxdata", "verify", str(grown / "out")]
    subprocess.run(command, check=True, capture_output=True)


def test_each_generation_is_what_it_was(grown: Path, tmp_path: Path) -> None:
    run(grown / "in/a.jsonl", tmp_path / "first")
    first = open_dataset(tmp_path / "first").source("train", "web")
    was = source(grown, generation=0)
    assert was.fingerprint == first.fingerprint
    assert len(was) == 2
    assert was.lengths.tolist() == first.lengths.tolist()
    assert len(source(grown, generation=1)) == 3
    assert source(grown, generation=2).fingerprint == source(grown).fingerprint
    assert len({source(grown, generation=n).fingerprint for n in range(3)}) == 3
    for index, row in enumerate(jaxdata.pack(first, seq_len=4)):
        again = jaxdata.pack(was, seq_len=4)[index]
        assert all(np.array_equal(row[key], again[key]) for key in row)
    with pytest.raises(InputError, match=r"train/web of .* has no generation 3: it has 0 to 2"):
        source(grown, generation=3)


def test_the_same_again_adds_nothing(grown: Path) -> None:
    before = tree(grown / "out")
    assert run(grown / "in", grown / "out", append=True).already_complete
    assert run(grown / "in", grown / "out").already_complete
    assert run(grown / "in/a.jsonl", grown / "out").already_complete
    assert run(grown / "in/b.jsonl", grown / "out", append=True).already_complete
    assert tree(grown / "out") == before


def test_what_cannot_be_added_is_refused(grown: Path) -> None:
    before = tree(grown / "out")
    new = write_lines(grown / "new/d.jsonl", records("x"))
    with pytest.raises(InputError, match=r"settings: input 'a\.jsonl' \(and 2 more\) is mis"):
        run(new, grown / "out")
    for options, says in [
        ({"keep": ["url"]}, r"--append: train/web was made with .*: keep was \[\], is \['url'\]"),
        ({"bos": True, "tokenizer": jaxdata_bytes()}, "bos was False, is True"),
        ({"normalize": "NFC"}, "normalize was None, is 'NFC'"),
        ({"record_tokens": 5}, "record_tokens was 16384, is 5"),
    ]:
        with pytest.raises(InputError, match=says):
            run(new, grown / "out", append=True, **options)
    write_lines(grown / "in/a.jsonl", records("one", "two", "and more"))
    with pytest.raises(InputError, match=r"--append: 'a\.jsonl' was converted before with other"):
        run(grown / "in", grown / "out", append=True)
    assert tree(grown / "out") == before
    assert run(new, grown / "out", append=True, text_key="text, body").documents == 7


def test_nothing_is_added_to_a_damaged_index(grown: Path) -> None:
    new = write_lines(grown / "new/d.jsonl", records("x"))
    row = grown / "out/train/web/index-2/origin_row/c/0"
    content = row.read_bytes()
    row.write_bytes(b"\x07" + content[1:])
    before = tree(grown / "out")
    says = (
        r"nothing can be added to train/web of .*: train/web/index-2/origin_row: its content "
        r"differs from its checksum\. Restore it from a copy; jaxdata verify says whether"
    )
    with pytest.raises(DatasetError, match=says):
        run(new, grown / "out", append=True)
    assert run(grown / "in", grown / "out", append=True).already_complete
    assert tree(grown / "out") == before
    row.write_bytes(content)
    assert run(new, grown / "out", append=True).documents == 7


def jaxdata_bytes() -> Any:
    from jaxdata import tokenizers

    return tokenizers.load("bytes", bos=256)


def test_a_run_goes_on_with_the_documents_it_knew(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.jsonl", records(*(f"document {n}" for n in range(100))))
    run(tmp_path / "in", tmp_path / "out")

    def loader(**options: Any) -> jaxdata.Loader:
        docs = open_dataset(tmp_path / "out").source("train", "web", **options)
        return jaxdata.Loader(jaxdata.pack(docs, seq_len=16), batch_size=4, shard=(0, 1))

    undisturbed = [batch["inputs"].copy() for batch in loader()]
    running = loader()
    found = [next(running)["inputs"].copy() for _ in range(5)]
    state = json.loads(json.dumps(running.get_state()))
    write_lines(tmp_path / "in/b.jsonl", records(*(f"more {n}" for n in range(100))))
    run(tmp_path / "in", tmp_path / "out", append=True)
    found += [batch["inputs"].copy() for batch in running]
    assert all(map(np.array_equal, undisturbed, found))
    assert len(undisturbed) == len(found)
    with pytest.raises(StateMismatch, match=r"generation=0\), or in a config generations: \{name"):
        loader().set_state(state)
    restored = loader(generation=0)
    restored.set_state(state)
    assert all(map(np.array_equal, undisturbed[5:], [batch["inputs"] for batch in restored]))
    config = {"dataset": str(tmp_path / "out"), "pack.seq_len": 16, "loader.batch_size": 4}
    settings = {"dataset": config["dataset"], "pack": {"seq_len": 16}, "loader": {"batch_size": 4}}
    now = len(list(jaxdata.load(settings, shard=(0, 1))))
    was = jaxdata.load({**settings, "generations": {"web": 0}}, shard=(0, 1))
    assert len(list(was)) == len(undisturbed) < now


def test_kept_fields_and_splits_grow_together(tmp_path: Path) -> None:
    options = {"keep": ["n"], "split_ratio": "train=1,val=1", "append": True}
    for part in range(3):
        rows = [{"text": f"{part} {n}", "n": [part, n]} for n in range(2 if part else 40)]
        write_lines(tmp_path / f"in/{part}.jsonl", [json.dumps(row).encode() for row in rows])
        run(tmp_path / "in", tmp_path / "out", **options)
    found = []
    for split in ("train", "val"):
        docs = open_dataset(tmp_path / "out").source(split, "web")
        for i, text in enumerate(decoded(tmp_path / "out", f"{split}/web")):
            part, n = map(int, text.split())
            assert docs.kept(i) == {"n": [part, n]}
            assert docs.origin(i) == (f"{part}.jsonl", n + 1)
            found.append(text)
    assert len(set(found)) == len(found) == 44


def test_an_addition_that_is_killed_leaves_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "in/a.jsonl", records("one", "two"))
    for name in ("out", "expected"):
        run(tmp_path / "in", tmp_path / name)
    write_lines(tmp_path / "in/b.jsonl", records(*map(str, range(200))))
    run(tmp_path / "in", tmp_path / "expected", append=True, unit_bytes=300)
    script = f"""
import os, signal
from jaxdata.converter import convert
def kill(done, total):
    if done >= total * SHARE:
        os.kill(os.getpid(), signal.SIGKILL)
convert({str(tmp_path / "in")!r}, output={str(tmp_path / "out")!r}, source="web", append=True,
        tokenizer="bytes", unit_bytes=300, workers=1, progress=kill)
"""
    for share in ("0.2", "0.5", "0.9"):
        killed = subprocess.run([sys.executable, "-c", script.replace("SHARE", share)], check=False)
        assert killed.returncode == -9
        assert decoded(tmp_path / "out") == ["one", "two"]
        assert len(open_dataset(tmp_path / "out").source("train", "web")) == 2
    with pytest.raises(InputError, match="text_key was 'text', is 'x'"):
        run(tmp_path / "in", tmp_path / "out", append=True, unit_bytes=300, text_key="x")
    run(tmp_path / "in", tmp_path / "out", append=True, unit_bytes=300)
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


def test_a_source_that_somebody_else_changed_meanwhile(
    grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their addition would be lost: its documents are not in the index to be named."""
    update = publish.update_manifest

    def later(store: Store, change: Callable[[Manifest | None], Manifest]) -> None:
        entry = read_manifest(store).sources["train/web"]
        theirs = {"train/web": entry.model_copy(update={"inputs": [*entry.inputs, "theirs"]})}
        update(store, lambda now: now.model_copy(update={"sources": theirs}))  # type: ignore[union-attr]
        update(store, change)

    monkeypatch.setattr(publish, "update_manifest", later)
    write_lines(grown / "in/d.jsonl", records("seven"))
    with pytest.raises(DatasetError, match=r"train/web was changed by another process .* again"):
        run(grown / "in", grown / "out", append=True)
    assert len(source(grown)) == 6
