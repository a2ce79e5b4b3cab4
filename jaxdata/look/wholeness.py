"""Whether a dataset, its index and its shards are whole and agree: in seconds, at any size.

Reads the index and the first and last records of each shard; `jaxdata verify` reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxdata.errors import DatasetError
from jaxdata.format.damage import damage_of_index, damage_of_tokenizer
from jaxdata.format.index import SourceIndex
from jaxdata.format.records import file_offset
from jaxdata.progress import Advance
from jaxdata.rows.dataset import Dataset
from jaxdata.rows.sources import Sources

__all__ = ["Check", "check_dataset"]

_SIZE_FIELD = np.arange(32, 36)  # of a chunk's header: the size of its record, little-endian


@dataclass(frozen=True)
class Check:
    """Something that was looked at, and what was found."""

    name: str
    holds: bool
    says: str


def check_dataset(dataset: Sources, names: Sequence[str], progress: Advance) -> Iterator[Check]:
    """Look at the tokenizer, and at the index and the shards of the sources `names`."""
    if not isinstance(dataset, Dataset):
        yield Check("dataset", True, f"{dataset.url} is another tool's: it keeps no checksums")
        return
    store, manifest = dataset.store, dataset.manifest
    files = len(manifest.tokenizer.files)
    damage = [str(each) for each in damage_of_tokenizer(store, manifest.tokenizer)]
    yield _check("tokenizer", damage, f"{files} file(s) as they were")
    wrong_index: list[str] = []
    wrong_shards: list[str] = []
    documents = shards = 0
    for done, name in enumerate(names, 1):
        entry = manifest.sources[name]
        index = SourceIndex(store, name, entry, manifest.layout(name))
        found = [str(each) for each in damage_of_index(index)]
        wrong_index += found
        wrong_shards += [] if found else list(_wrong_shards(index))
        documents, shards = documents + entry.documents, shards + len(entry.shards)
        progress(done, len(names))
    yield _check("index", wrong_index, f"{documents:,} documents of {len(names)} source(s)")
    yield _check("shards", wrong_shards, f"{shards:,} file(s) begin and end as the index says")


def _check(name: str, wrong: list[str], fine: str) -> Check:
    return Check(name, not wrong, "\n".join(wrong) or fine)


def _wrong_shards(index: SourceIndex) -> Iterator[str]:
    for number, shard in enumerate(index.entry.shards):
        first = int(index.shard_starts[number])
        ends = {first, first + shard.documents - 1} if shard.documents else set()
        try:
            if not all(_as_indexed(index, shard.name, document) for document in ends):
                yield f"{shard.name}: its records are not those of the index"
            last = np.array([shard.bytes])
            index.store.gather([shard.name], np.zeros(1, np.int64), last - 1, last)
        except (DatasetError, OSError) as error:
            yield str(error)


def _as_indexed(index: SourceIndex, shard: str, document: int) -> bool:
    """Whether the header of a document's first record is there and gives its length."""
    _, stream = index.locate(np.array([document]))
    places = file_offset(stream + _SIZE_FIELD)
    file = np.zeros(len(places), np.int64)
    found = index.store.gather([shard], file, places, places + 1).join()
    layout = index.layout
    tokens = min(int(index.lengths[document]), layout.record_tokens)
    return int.from_bytes(found, "little") == tokens * (layout.item + layout.masked)
