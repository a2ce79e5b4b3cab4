"""From receipts to finished sources: index, quarantine file, and last the manifest."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdata.convert.collected import Collected, CollectedOutput
from jaxdata.convert.job import Job
from jaxdata.convert.refusals import check_dataset
from jaxdata.convert.statistics import derived
from jaxdata.errors import DatasetError
from jaxdata.format.index import write_index
from jaxdata.format.manifest import Manifest, SourceEntry, update_manifest
from jaxdata.format.sealed import digest
from jaxdata.format.storage import Store

__all__ = ["publish", "quarantine_name"]


def publish(
    store: Store,
    job: Job,
    masked: bool,
    collected: Collected,
    base: dict[str, SourceEntry],
) -> dict[str, SourceEntry]:
    """Make sources of a dataset from their receipts; its last act is the manifest.

    Args:
        store: the dataset.
        job: the conversion.
        masked: whether its documents have loss masks.
        collected: its receipts, after what the sources have.
        base: the sources as they are, where documents are added to them.
    """
    entries = {
        name: _source_entry(job, masked, collected, name, base)
        for name in collected.outputs
        if name in collected.fed
    }
    for name, entry in entries.items():
        checksums = _write_index(store, name, entry, collected.outputs[name], job)
        entries[name] = entry.model_copy(update={"checksums": checksums})
    files = {}
    if collected.first_bad:
        quarantine = f"{job.folder}/{quarantine_name(base)}"
        with store.create(quarantine) as path:
            files[quarantine] = collected.write_quarantine(path)
    update_manifest(store, lambda manifest: _with(entries, files, base, store, job, manifest))
    return base | entries


def _write_index(
    store: Store, name: str, entry: SourceEntry, output: CollectedOutput, job: Job
) -> dict[str, str]:
    split, _, source = name.partition("/")
    return write_index(
        store,
        split,
        source,
        lengths=output.lengths,
        origin_file=output.origin_file,
        origin_row=output.origin_row,
        kept=output.kept if job.parameters.keep else None,
        members=output.members,
        layout=job.parameters.layout(entry.masked),
        folder=entry.index,
    )


def quarantine_name(sources: dict[str, SourceEntry]) -> str:
    """The file of a conversion's quarantined records; each that adds to sources has its own."""
    times = max((len(entry.generations) + 1 for entry in sources.values()), default=0)
    return f"quarantine-{times}.jsonl" if times else "quarantine.jsonl"


def _with(
    entries: dict[str, SourceEntry],
    files: dict[str, str],
    base: dict[str, SourceEntry],
    store: Store,
    job: Job,
    manifest: Manifest | None,
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
    for name, was in base.items():
        if manifest.sources.get(name) != was:
            raise DatasetError(
                f"{store.url}: {name} was changed by somebody else while documents were added to "
                "it; give the same command again"
            )
    return manifest.model_copy(
        update={"sources": manifest.sources | entries, "files": manifest.files | files}
    )


def _source_entry(
    job: Job, masked: bool, collected: Collected, name: str, base: dict[str, SourceEntry]
) -> SourceEntry:
    output, parameters, was = collected.outputs[name], job.parameters, base.get(name)
    lengths = output.lengths
    known = max(base.values(), key=lambda entry: len(entry.inputs), default=None)
    own = parameters.of_source()
    if known:
        own["input_digests"] = known.parameters["input_digests"] + own["input_digests"]
    generations = [*was.generations, was.as_generation()] if was else []
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
        inputs=[*(known.inputs if known else []), *parameters.inputs],
        parameters=own,
        statistics=_statistics(collected, output, was.statistics if was else {}),
        index=f"index-{len(generations)}" if generations else "index",
        generations=generations,
    )


def _statistics(
    collected: Collected, output: CollectedOutput, before: dict[str, Any]
) -> dict[str, Any]:
    """What is known of a source, and of the conversions that it came from."""
    conversion = {
        "files": collected.files,
        "records": collected.records,
        "blank": collected.counts["blank"],
        "added": collected.counts["added"],
        "quarantined": collected.reasons,
        "dropped": dict(collected.dropped),
    }
    return {
        **derived(output.counts, output.lengths),
        **{name: _sum(before.get(name), count) for name, count in conversion.items()},
    }


def _sum(before: Any, now: Any) -> Any:
    """Add a count, or counts by reason, to what was counted before."""
    if isinstance(now, dict):
        return {
            name: (before or {}).get(name, 0) + now.get(name, 0)
            for name in sorted({**(before or {}), **now})
        }
    return (before or 0) + now
