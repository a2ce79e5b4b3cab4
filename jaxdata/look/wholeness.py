"""Whether a dataset, its index and its shards are whole and agree: in seconds, at any size.

Reads the index and the first and last records of each shard; `jaxdata verify` reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxdata.errors import DatasetError
from jaxdata.format.index import SourceIndex
from jaxdata.format.manifest import MANIFEST, read_manifest
from jaxdata.format.records import file_offset
from jaxdata.format.verify.damage import damage_of_file, damage_of_manifest
from jaxdata.format.verify.index import damage_of_index
from jaxdata.progress import Advance
from jaxdata.rows.sources import Sources
from jaxdata.rows.stored import StoredDocuments

__all__ = ["Check", "check_dataset"]

_SIZE_FIELD = np.arange(32, 36)  # of a chunk's header: the size of its record, little-endian


@dataclass(frozen=True)
class Check:
    """Something that was looked at, and what was found."""

    name: str
    holds: bool
    says: str


def check_dataset(dataset: Sources, names: Sequence[str], progress: Advance) -> Iterator[Check]:
    """Look at the manifests and tokenizers, and at the index and the shards of the sources `names`.

    Sources of other tools keep no checksums: of them there is nothing to compare.
    """
    wrong: dict[str, list[str]] = {"manifest": [], "tokenizer": [], "index": [], "shards": []}
    stores: set[str] = set()
    documents = shards = others = 0
    for done, name in enumerate(names, 1):
        split, _, own = name.partition("/")
        source = dataset.source(split, own)
        if not isinstance(source, StoredDocuments):
            others += 1
            continue
        if source.store.url not in stores:
            stores.add(source.store.url)
            wrong["manifest"] += map(str, damage_of_manifest(source.store, MANIFEST)[0])
            for file, sha256 in read_manifest(source.store).tokenizer.checksums.items():
                wrong["tokenizer"] += map(str, damage_of_file(source.store, file, sha256))
        found = [str(each) for each in damage_of_index(source.index)]
        wrong["index"] += found
        wrong["shards"] += [] if found else list(_wrong_shards(source.index))
        documents, shards = documents + len(source), shards + len(source.entry.shards)
        progress(done, len(names))
    fine = {
        "manifest": f"{len(stores)} dataset(s)",
        "tokenizer": "its files are as they were",
        "index": f"{documents:,} documents of {len(names) - others} source(s)",
        "shards": f"{shards:,} file(s) begin and end as the index says",
    }
    for kind, damage in wrong.items():
        yield Check(kind, not damage, "\n".join(damage) or fine[kind])
    if others:
        yield Check("others", True, f"{others} source(s) of other tools, which keep no checksums")


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
