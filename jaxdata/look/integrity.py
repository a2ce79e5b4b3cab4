"""Checks that a dataset, its index and its shards are intact and agree, in seconds at any size.

Reads the index and the first and last record of each shard; `jaxdata verify` reads everything, and
`not_compared` says what that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.progress import Advance
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import read_manifest
from jaxdata.dataset.records import file_offset
from jaxdata.dataset.verify import damage_of_columns, file_check, run_checks
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.look.terminal import counted


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    holds: bool
    says: str
    warning: str = ""
    """a word instead of "ok", where it holds but should be noticed"""

    @property
    def mark(self) -> str:
        """The word that is printed before it."""
        return (self.warning or "ok") if self.holds else "FAILED"

    def described(self) -> dict[str, Any]:
        """The same as plain values."""
        return {"name": self.name, "ok": self.holds, "mark": self.mark, "says": self.says}


def check_dataset(dataset: Dataset, names: Sequence[str], progress: Advance) -> Iterator[Check]:
    """Check the tokenizers, and the index and shards of the sources `names`.

    Opening the dataset checked the manifests. Sources of other tools have no checksums: nothing is
    compared for them.
    """
    wrong: dict[str, list[str]] = {"tokenizer": [], "index": [], "shards": [], "views": []}
    stores: set[str] = set()
    documents = shards = others = views = 0
    for done, name in enumerate(names, 1):
        split, _, own = name.partition("/")
        read = dataset.source(split, own)
        source = read.base
        if not isinstance(source, ConvertedDocuments):
            others += 1
            continue
        if source.store.url not in stores:
            stores.add(source.store.url)
            for file, sha256 in read_manifest(source.store).tokenizer.checksums.items():
                check = file_check(source.store, file, sha256)
                wrong["tokenizer"] += map(str, run_checks([check]))
        found = [str(each) for each in damage_of_columns(source.index)]
        if isinstance(read, KeptDocuments):
            wrong["views"] += map(str, damage_of_columns(read.view))
            views += 1
        wrong["index"] += found
        for each in () if found else (source.index, *source.index.sides.values()):
            wrong["shards"] += _wrong_shards(each)
        documents, shards = documents + len(source), shards + len(source.entry.all_shards)
        progress(done, len(names))
    yield Check("manifest", True, counted(len(stores), "dataset"))
    fine = {
        "tokenizer": "its files are unchanged",
        "index": f"{documents:,} documents of {counted(len(names) - others, 'source')}",
        "shards": f"{counted(shards, 'file')}: first and last records match the index",
        "views": f"{counted(views, 'list')} of kept documents, as written",
    }
    for kind, damage in wrong.items():
        if kind == "views" and not views:
            continue
        yield Check(kind, not damage, "\n".join(damage) or fine[kind])
    if others:
        yield Check(
            "others", True, f"{counted(others, 'source')} of other tools, which have no checksums"
        )


def not_compared(dataset: Dataset, names: Sequence[str]) -> list[str]:
    """What is taken on trust when the sources `names` are opened, a line each; reads nothing."""
    sources = {name: dataset.source(*name.split("/", 1)).base for name in names}
    ours = [each for each in sources.values() if isinstance(each, ConvertedDocuments)]
    shards = [shard for source in ours for shard in source.entry.all_shards]
    size = sum(shard.bytes for shard in shards) / 1e6
    columns = sum(len(source.entry.checksums) for source in ours)
    commands = dict.fromkeys(f"jaxdata verify {source.store.url}" for source in ours)
    without = [name for name, source in sources.items() if source not in ours]
    lines = []
    if ours:
        lines.append(
            f"not compared with their checksums: {counted(len(shards), 'shard')} ({size:,.1f} MB) "
            f"and {counted(columns, 'column')} of the index; to compare them: {', '.join(commands)}"
        )
    if without:
        lines.append(f"without checksums, so damage may go unnoticed: {', '.join(without)}")
    return lines


def _wrong_shards(index: SourceIndex) -> Iterator[str]:
    for number, shard in enumerate(index.entry.shards):
        first = int(index.shard_starts[number])
        ends = {first, first + shard.documents - 1} if shard.documents else set()
        try:
            if not all(_as_indexed(index, shard.name, document) for document in ends):
                yield f"{shard.name}: its records do not match the index"
            last = np.array([shard.bytes])
            index.store.gather([shard.name], np.zeros(1, np.int64), last - 1, last)
        except (DatasetError, OSError) as error:
            yield str(error)


def _as_indexed(index: SourceIndex, shard: str, document: int) -> bool:
    """Whether the header of a document's first record exists and gives its length."""
    number = np.array([document])
    _, stream = index.locate(number)
    field, size = index.spec.size_field(index.stored[number], 0)
    places = file_offset(stream + field + np.arange(4))
    found = index.store.gather([shard], np.zeros_like(places), places, places + 1).join()
    return int.from_bytes(found, "little") == int(size[0])
