"""Sources of very many shards, made in seconds: each file has many names."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import digest
from jaxdata.dataset.index import page_count, write_index
from jaxdata.dataset.manifest import update_manifest
from jaxdata.testing import write_dataset

__all__ = ["write_many_shards"]

SPLIT, SOURCE = "train", "web"


def write_many_shards(
    path: Path, documents: Sequence[NDArray[np.integer]], shards: int, shard_documents: int = 1
) -> None:
    """Write `train/web`: the shards that the documents make, again and again.

    Its files are hard links to those shards, which no reader can tell from copies.
    """
    name = f"{SPLIT}/{SOURCE}"
    written = write_dataset(path, {name: documents}, shard_documents=shard_documents)
    was = written.manifest.sources[name]
    entries = [was.shards[k % len(was.shards)] for k in range(shards)]
    names = [f"{name}/{k:06}-00001.array_record" for k in range(shards)]
    for entry, link in zip(entries, names, strict=True):
        os.link(path / entry.name, path / link)
    for entry in was.shards:
        (path / entry.name).unlink()
    total = sum(entry.documents for entry in entries)
    index = written.source(SPLIT, SOURCE).index
    lengths = np.resize(index.lengths, total)
    ends = np.cumsum([page_count([entry]) for entry in was.shards])
    pages = np.split(index.column("page"), ends[:-1])
    columns = {
        "length": lengths,
        "origin_file": np.zeros(total, np.uint32),
        "origin_row": np.arange(total, dtype=np.uint64),
        "page": np.concatenate([pages[k % len(pages)] for k in range(shards)]),
    }
    spec = written.manifest.record_spec(name)
    checksums = write_index(written.store, f"{name}/index", columns, spec, {})
    source = was.model_copy(
        update={
            "documents": total,
            "tokens": int(lengths.sum(dtype=np.int64)),
            "shards": [
                entry.model_copy(update={"name": link})
                for entry, link in zip(entries, names, strict=True)
            ],
            "checksums": checksums,
            "fingerprint": digest(names),
        }
    )
    manifest = written.manifest.model_copy(update={"sources": {name: source}})
    update_manifest(written.store, lambda _: manifest)
