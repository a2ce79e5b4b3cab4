"""From receipts to a finished source: index, quarantine file, and last the manifest."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdata.convert.collected import Collected
from jaxdata.convert.parameters import Parameters
from jaxdata.convert.refusals import check_dataset
from jaxdata.format.index import write_index
from jaxdata.format.manifest import Manifest, SourceEntry, digest, update_manifest
from jaxdata.format.storage import Store

__all__ = ["QUARANTINE", "publish"]

QUARANTINE = "quarantine.jsonl"


def publish(
    store: Store,
    split: str,
    source: str,
    parameters: Parameters,
    collected: Collected,
    tokenizer_files: dict[str, bytes],
) -> SourceEntry:
    """Make a source of a dataset from its receipts; its last act is the manifest."""
    folder = f"{split}/{source}"
    write_index(
        store,
        split,
        source,
        lengths=collected.lengths,
        origin_file=collected.origin_file,
        origin_row=collected.origin_row,
        layout=parameters.layout,
    )
    if collected.first_bad:
        with store.create(f"{folder}/{QUARANTINE}") as path:
            collected.write_quarantine(path)
    entry = _source_entry(parameters, collected)

    def add(manifest: Manifest | None) -> Manifest:
        if manifest is None:
            for name, data in tokenizer_files.items():
                store.write(f"tokenizer/{name}", data)
            manifest = Manifest(
                tokenizer=parameters.tokenizer,
                dtype=parameters.dtype,
                record_tokens=parameters.record_tokens,
            )
        check_dataset(manifest, parameters, store.url)
        return manifest.model_copy(update={"sources": manifest.sources | {folder: entry}})

    update_manifest(store, add)
    return entry


def _source_entry(parameters: Parameters, collected: Collected) -> SourceEntry:
    lengths = collected.lengths
    content: dict[str, Any] = {
        "tokenizer": parameters.tokenizer.model_dump(exclude={"name"}),
        "dtype": parameters.dtype,
        "record_tokens": parameters.record_tokens,
        "shards": [[shard.documents, shard.sha256] for shard in collected.shards],
    }
    return SourceEntry(
        documents=len(lengths),
        tokens=int(lengths.sum(dtype=np.int64)),
        shards=collected.shards,
        fingerprint=digest(content),
        inputs=list(parameters.inputs),
        parameters=parameters.of_source(),
        statistics={
            "text_bytes": collected.text_bytes,
            "longest_document": int(lengths.max(initial=0)),
            "quarantined": collected.reasons,
        },
    )
