"""What a source of receipts says in the manifest, the first time and when it grows."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.converter.conversion_run import ConversionRun, _summed
from jaxdata.converter.inputs.files import FilePart, Unit
from jaxdata.converter.job import Job
from jaxdata.converter.merging import MergedReceipts
from jaxdata.converter.receipts import Quarantined, Receipt
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import SourceEntry, read_manifest
from jaxdata.dataset.records import RecordSpec
from jaxdata.storage import Store, open_store
from tests.converter.decisions.made import BYTES, input_file, parameters, wrote


def opened(store: Store, name: str, entry: SourceEntry) -> SourceIndex:
    return SourceIndex(store, name, entry, RecordSpec("uint16"))


class Dataset:
    """Conversions to `train/web` whose units are given."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = open_store(str(folder))
        self.base: dict[str, SourceEntry] = {}

    def add(
        self,
        names: list[str],
        receipts: list[Receipt],
        unread: dict[str, int] | None = None,
        side: dict[str, str] | None = None,
        **options: Any,
    ) -> dict[str, SourceEntry]:
        files, made = [input_file(name) for name in names], parameters(*names, **options)
        tokenizer = {"made.json": names[0].encode()}
        url = self.store.url
        job = Job(url, "train", "web", files, made, tokenizer, False, 2, unread=unread or {})
        first = max((len(entry.inputs) for entry in self.base.values()), default=0)
        indexes = {name: opened(self.store, name, entry) for name, entry in self.base.items()}
        merged = MergedReceipts(files, first, indexes)
        for number, receipt in enumerate(receipts):
            parts = tuple(FilePart(number) for _ in receipt.records)
            merged.add(Unit(f"{number:05}-00000", parts, 1, 1), receipt)
        task = job.task(BYTES)
        task.side = side or task.side
        self.base, _ = ConversionRun(job, task, BYTES, self.base)._publish(merged)
        return self.base


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(tmp_path / "d")


def fingerprint(**content: Any) -> str:
    """Of the content of a source, as JSON."""
    tokenizer = {"kind": "bytes", "files": {}, "vocab_size": 257}
    tokenizer |= {"eod_id": 256, "bos_id": 2, "pad_id": None}
    content |= {"tokenizer": tokenizer, "dtype": "uint16", "record_tokens": 16_384}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def receipt(at: int, lengths: list[int], name: str = "train/web", bad: int = 0) -> Receipt:
    documents = [(length, 0, record) for record, length in enumerate(lengths)]
    outputs = {name: wrote(f"{name}/{at:05}", documents, counts={"characters": sum(lengths)})}
    wrong = [Quarantined(0, len(lengths) + n, "not JSON", b"x") for n in range(bad)]
    sizes = Counter({"dropped_characters": bad})
    given: dict[str, Any] = {"quarantined": wrong, "counts": sizes, "contents": ["0" * 16]}
    return Receipt("", [len(lengths) + bad], outputs=outputs if lengths else {}, **given)


def test_a_source_is_what_its_receipts_say(dataset: Dataset) -> None:
    entries = dataset.add(["a", "b"], [receipt(0, [3, 4]), receipt(1, [5], bad=2)], strip=True)
    [(name, entry)] = entries.items()
    manifest = read_manifest(dataset.store)
    assert (name, manifest.sources) == ("train/web", entries)
    assert (entry.documents, entry.tokens, entry.masked) == (3, 12, False)
    assert [shard.name for shard in entry.shards] == ["train/web/00000", "train/web/00001"]
    assert (entry.inputs, entry.index, entry.generations) == (["a", "b"], "index", [])
    assert entry.parameters["input_digests"] == ["digest of a", "digest of b"]
    assert entry.parameters["strip"] is True
    statistics = entry.statistics
    assert statistics["files"] == {"processed": 2, "successful": 2, "discarded": 0}
    known = [statistics[each] for each in ("records", "blank", "added", "quarantined", "dropped")]
    assert known == [5, 0, 0, {"not JSON": 2}, {}]
    assert (statistics["characters"], statistics["longest_document"]) == (12, 5)
    assert statistics["dropped_characters"] == 2
    assert not {"files_not_read", "dropped_raw_bytes"} & statistics.keys(), "what there is none of"
    shards = [[2, "sum of train/web/00000"], [1, "sum of train/web/00001"]]
    assert entry.fingerprint == fingerprint(shards=shards)
    assert (manifest.dtype, manifest.record_tokens) == ("uint16", 16_384)
    assert dataset.store.read("tokenizer/made.json") == b"a"
    bad = dataset.store.read("train/web/quarantine.jsonl")
    assert bad is not None
    assert [json.loads(line)["line"] for line in bad.splitlines()] == [2, 3]
    assert manifest.files == {"train/web/quarantine.jsonl": hashlib.sha256(bad).hexdigest()}


def test_a_source_that_grows_keeps_what_it_was(dataset: Dataset) -> None:
    first = dataset.add(["a", "b"], [receipt(0, [3, 4])])["train/web"]
    unread = {".pdf": 2}
    entry = dataset.add(["c"], [receipt(2, [9], bad=1)], unread=unread)["train/web"]
    assert entry.generations == [first.as_generation()]
    assert (entry.documents, entry.tokens, entry.index) == (3, 16, "index-1")
    assert entry.inputs == ["a", "b", "c"]
    assert entry.parameters["input_digests"] == [f"digest of {name}" for name in "abc"]
    assert entry.statistics["files"] == {"processed": 3, "successful": 2, "discarded": 1}
    assert (entry.statistics["records"], entry.statistics["characters"]) == (4, 16)
    assert entry.statistics["files_not_read"] == {".pdf": 2}
    assert entry.fingerprint != first.fingerprint
    index = opened(dataset.store, "train/web", entry)
    assert index.column("origin_file").tolist() == [0, 0, 2]
    assert index.column("origin_row").tolist() == [1, 2, 1]
    assert {*read_manifest(dataset.store).files} == {"train/web/quarantine-1.jsonl"}
    third = dataset.add(["d"], [receipt(3, [2])])["train/web"]
    assert (third.index, len(third.generations)) == ("index-2", 2)
    assert third.statistics["records"] == 5
    assert third.statistics["dropped_characters"] == 1, "what there was stays"


def test_a_source_without_new_documents_stays(dataset: Dataset) -> None:
    both = [receipt(0, [3]), receipt(1, [5], "val/web")]
    first = dataset.add(["a", "b"], both, split_ratio="train=1,val=1")
    grown = dataset.add(["c"], [receipt(2, [7])], split_ratio="train=1,val=1")
    assert grown["val/web"] == first["val/web"]
    assert grown["train/web"].documents == 2
    assert {*read_manifest(dataset.store).sources} == {"train/web", "val/web"}
    again = dataset.add(["d"], [receipt(3, [7], "val/web")])["val/web"]
    assert again.inputs == ["a", "b", "c", "d"], "all that the sources made together know"
    assert again.parameters["input_digests"] == [f"digest of {name}" for name in "abcd"]


def test_side_arrays_and_kept_fields_are_part_of_a_source(dataset: Dataset) -> None:
    output = wrote("train/web/0", [(2, 0, 0)], kept=b'{"url": 1}\n', sides=["w"])
    options: dict[str, Any] = {"task": "ids", "ids_key": "ids", "keep": ["url"], "mask_key": "m"}
    made = [Receipt("", [1], outputs={"train/web": output}, contents=["0" * 16])]
    entry = dataset.add(["a"], made, side={"w": "float32"}, **options)["train/web"]
    assert entry.side["w"].dtype == "float32"
    assert [shard.name for shard in entry.side["w"].shards] == ["train/web/0.w"]
    assert opened(dataset.store, "train/web", entry).column("kept").tobytes() == b'{"url": 1}\n'
    assert entry.masked
    side = {"w": ["float32", "sum of train/web/0.w"]}
    assert entry.fingerprint == fingerprint(shards=[[1, "sum of train/web/0"]], side=side)


def test_another_tokenizer_or_a_source_that_is_there_is_refused(dataset: Dataset) -> None:
    dataset.add(["a"], [receipt(0, [3])])
    dataset.base = {}
    with pytest.raises(DatasetError, match="train/web was changed by another process"):
        dataset.add(["b"], [receipt(1, [3])])
    url = dataset.store.url
    other = Job(
        url, "train", "new", [input_file("b")], parameters("b", record_tokens=7), {}, False, 2
    )
    merged = MergedReceipts([input_file("b")])
    merged.add(Unit("", (FilePart(0),), 1, 1), receipt(1, [3], "train/new"))
    with pytest.raises(InputError, match="record_tokens was 16384, is 7"):
        ConversionRun(other, other.task(BYTES), BYTES)._publish(merged)
    assert {*read_manifest(dataset.store).sources} == {"train/web"}
    assert dataset.store.read("tokenizer/made.json") == b"a"


REASONS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))


@given(st.none() | REASONS, REASONS)
def test_counts_are_added_reason_by_reason(
    known: dict[str, int] | None, new: dict[str, int]
) -> None:
    before = {} if known is None else {"dropped": known, "records": 3, "dropped_raw_bytes": 5}
    found = _summed(before, {"dropped": new, "records": 4, "dropped_raw_bytes": 0})
    assert found["records"] == 4 + before.get("records", 0)
    assert found.get("dropped_raw_bytes") == before.get("dropped_raw_bytes")
    names = {*new, *(known or {})}
    assert found["dropped"] == {
        name: (known or {}).get(name, 0) + new.get(name, 0) for name in names
    }
