"""From receipts to finished sources: index, quarantine file, and last the manifest."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdata.convert.collected import Collected, CollectedOutput
from jaxdata.convert.job import Job
from jaxdata.convert.refusals import check_dataset
from jaxdata.convert.statistics import derived
from jaxdata.format.index import write_index
from jaxdata.format.manifest import Manifest, SourceEntry, digest, update_manifest
from jaxdata.format.storage import Store

__all__ = ["QUARANTINE", "publish"]

QUARANTINE = "quarantine.jsonl"


def publish(store: Store, job: Job, masked: bool, collected: Collected) -> dict[str, SourceEntry]:
    """Make sources of a dataset from their receipts; its last act is the manifest."""
    for name, output in collected.outputs.items():
        split, _, source = name.partition("/")
        write_index(
            store,
            split,
            source,
            lengths=output.lengths,
            origin_file=output.origin_file,
            origin_row=output.origin_row,
            kept=output.kept if job.parameters.keep else None,
            layout=job.parameters.layout(masked),
        )
    if collected.first_bad:
        with store.create(f"{job.folder}/{QUARANTINE}") as path:
            collected.write_quarantine(path)
    entries = {
        name: _source_entry(job, masked, collected, output)
        for name, output in collected.outputs.items()
    }
    update_manifest(store, lambda manifest: _with(entries, store, job, manifest))
    return entries


def _with(
    entries: dict[str, SourceEntry], store: Store, job: Job, manifest: Manifest | None
) -> Manifest:
    if manifest is None:
        for name, data in job.tokenizer_files.items():
            store.write(f"tokenizer/{name}", data)
        manifest = Manifest(
            tokenizer=job.parameters.tokenizer,
            dtype=job.parameters.dtype,
            record_tokens=job.parameters.record_tokens,
        )
    check_dataset(manifest, job.parameters, store.url)
    return manifest.model_copy(update={"sources": manifest.sources | entries})


def _source_entry(
    job: Job, masked: bool, collected: Collected, output: CollectedOutput
) -> SourceEntry:
    lengths, parameters = output.lengths, job.parameters
    content: dict[str, Any] = {
        "tokenizer": parameters.tokenizer.model_dump(exclude={"name"}),
        "dtype": parameters.dtype,
        "record_tokens": parameters.record_tokens,
        "shards": [[shard.documents, shard.sha256] for shard in output.shards],
    }
    return SourceEntry(
        documents=len(lengths),
        tokens=int(lengths.sum(dtype=np.int64)),
        masked=masked,
        shards=output.shards,
        fingerprint=digest(content),
        inputs=list(parameters.inputs),
        parameters=parameters.of_source(),
        statistics=_statistics(collected, output),
    )


def _statistics(collected: Collected, output: CollectedOutput) -> dict[str, Any]:
    """What is known of a source, and of the conversion that it came from."""
    return {
        **derived(output.counts, output.lengths),
        "files": collected.files,
        "records": collected.records,
        "blank": collected.counts["blank"],
        "added": collected.counts["added"],
        "quarantined": collected.reasons,
        "dropped": dict(sorted(collected.dropped.items())),
    }
