"""Checks that a dataset, its index and its shards are intact and agree, in seconds at any size.

Reads the index and the first and last record of each shard; `jaxdata verify` reads everything, and
`not_compared` says what that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.progress import Advance
from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import read_manifest
from jaxdata.dataset.records import file_offset
from jaxdata.dataset.verify import damage_of_columns, file_check, run_checks
from jaxdata.dataset.views.kept_documents import KeptDocuments


class Check(NamedTuple):
    """The result of one check."""

    name: str
    holds: bool
    says: str
    warning: str = ""
    """a word instead of "ok", where it holds but should be noticed"""

    def described(self) -> dict[str, Any]:
        """The same as plain values, with the word that is printed before it."""
        mark = (self.warning or "ok") if self.holds else "FAILED"
        return {"name": self.name, "ok": self.holds, "mark": mark, "says": self.says}


def check_dataset(dataset: Dataset, names: Sequence[str], progress: Advance) -> Iterator[Check]:
    """Check the tokenizers, and the index and shards of the sources `names`.

    Opening the dataset checked the manifests. Sources of other tools have no checksums: nothing is
    compared for them.
    """
    wrong: dict[str, list[str]] = {"tokenizer": [], "index": [], "shards": []}
    opened = [dataset.source(*name.split("/", 1)) for name in names]
    ours = [each.base for each in opened if isinstance(each.base, ConvertedDocuments)]
    views = [each.view for each in opened if isinstance(each, KeptDocuments)]
    stores = {each.store.url: each.store for each in ours}
    for store in stores.values():
        files = read_manifest(store).tokenizer.checksums.items()
        wrong["tokenizer"] += map(str, run_checks([file_check(store, *each) for each in files]))
    for done, source in enumerate(ours, 1):
        index = source.index
        found = [str(each) for each in damage_of_columns(index)]
        for each in () if found else (index, *index.sides.values()):
            wrong["shards"] += _wrong_shards(each)
        wrong["index"] += found
        progress(done, len(names))
    for view in views:
        wrong.setdefault("views", []).extend(map(str, damage_of_columns(view)))
    shards = sum(len(each.entry.all_shards) for each in ours)
    documents = sum(map(len, ours))
    fine = {
        "tokenizer": "its files are unchanged",
        "index": f"{documents:,} documents of {counted(len(ours), 'source')}",
        "shards": f"{counted(shards, 'file')}: first and last records match the index",
        "views": f"{counted(len(views), 'list')} of kept documents, as written",
    }
    yield Check("manifest", True, counted(len(stores), "dataset"))
    for kind, damage in wrong.items():
        yield Check(kind, not damage, "\n".join(damage) or fine[kind])
    if others := len(opened) - len(ours):
        says = f"{counted(others, 'source')} of other tools, which have no checksums"
        yield Check("others", True, says)


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
