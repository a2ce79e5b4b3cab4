"""From receipts to finished sources: index, quarantine file, and last the manifest."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.facts import digest
from jaxdata.converter.changes import check_dataset, check_unchanged, times_made
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import Parameters
from jaxdata.converter.receipts import MergedReceipts
from jaxdata.converter.statistics import DROPPED, derived
from jaxdata.converter.tasks.base import Task
from jaxdata.dataset.index import write_index
from jaxdata.dataset.lease import leased
from jaxdata.dataset.manifest import (
    MANIFEST,
    Amount,
    Manifest,
    ShardEntry,
    SideEntry,
    SourceEntry,
    update_manifest,
)
from jaxdata.storage import Store


def publish(
    store: Store, job: Job, task: Task, merged: MergedReceipts, base: dict[str, SourceEntry]
) -> dict[str, SourceEntry]:
    """Make sources of a dataset from their receipts; its last act is the manifest.

    `base` has the sources as they are, where documents are added to them; `merged` begins with
    theirs.
    """
    entries = {}
    for name in [name for name in merged.outputs if name in merged.fed]:
        output, (split, _, source) = merged.outputs[name], name.partition("/")
        columns, was = output.columns(), base.get(name)
        folder = f"index-{len(was.generations) + 1}" if was else "index"
        checksums = write_index(
            store,
            split,
            source,
            **columns,
            kept=output.kept if job.parameters.keep else None,
            more=output.members | output.hashes | output.deleted,
            pages=output.pages,
            side_pages={side: (task.side[side], all_) for side, all_ in output.side_pages.items()},
            spec=job.parameters.record_spec(task.masked),
            folder=folder,
        )
        written = {"index": folder, "checksums": checksums}
        entries[name] = _source_entry(job, task, merged, name, base, columns["lengths"], written)
    files = {}
    if merged.first_bad:
        quarantine = f"{job.folder}/{_quarantine_name(base)}"
        with store.create(quarantine) as path:
            files[quarantine] = merged.write_quarantine(path)
    with _first_alone(store):
        update_manifest(store, lambda manifest: _with(entries, files, base, store, job, manifest))
    return base | entries


def _first_alone(store: Store) -> AbstractContextManager[object]:
    """The files of the tokenizer and the first manifest do not change in one moment."""
    first = store.read(MANIFEST) is None
    return leased(store, [""], wait=True) if first else nullcontext()


def _quarantine_name(sources: dict[str, SourceEntry]) -> str:
    """The file of a conversion's quarantined records; each that adds to sources has its own."""
    times = times_made(sources.values())
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
    check_unchanged(manifest, {*base, *entries}, base, store.url)
    return manifest.model_copy(
        update={"sources": manifest.sources | entries, "files": manifest.files | files}
    )


def _source_entry(
    job: Job,
    task: Task,
    merged: MergedReceipts,
    name: str,
    base: dict[str, SourceEntry],
    lengths: NDArray[np.uint32],
    written: dict[str, Any],
) -> SourceEntry:
    output, parameters, was = merged.outputs[name], job.parameters, base.get(name)
    known = max(base.values(), key=lambda entry: len(entry.inputs), default=None)
    own = parameters.of_source()
    if known:
        own["input_digests"] = known.parameters["input_digests"] + own["input_digests"]
    side = {
        name: SideEntry(dtype=task.side[name], shards=shards)  # type: ignore[arg-type]
        for name, shards in output.sides.items()
    }
    return SourceEntry(
        documents=len(lengths),
        tokens=int(lengths.sum(dtype=np.int64)),
        masked=task.masked,
        shards=output.shards,
        fingerprint=_fingerprint(parameters, output.shards, side, was),
        inputs=[*(known.inputs if known else []), *parameters.inputs],
        parameters=own,
        statistics=derived(output.counts, lengths)
        | _of_conversions(merged, was.statistics if was else {})
        | ({"files_not_read": dict(job.unread)} if job.unread else {}),
        **written,
        generations=[*was.generations, was.as_generation()] if was else [],
        views=was.views if was else {},
        side=side,
        deleted=was.deleted if was else Amount(),
    )


def _fingerprint(
    parameters: Parameters,
    shards: list[ShardEntry],
    side: dict[str, SideEntry],
    was: SourceEntry | None,
) -> str:
    """A digest of all that determines the content of a source."""
    content: dict[str, Any] = {
        "tokenizer": parameters.tokenizer.model_dump(exclude={"name"}),
        "dtype": parameters.dtype,
        "record_tokens": parameters.record_tokens,
        "shards": [[shard.documents, shard.sha256] for shard in shards],
    }
    if side:
        content["side"] = {
            name: [each.dtype, *(shard.sha256 for shard in each.shards)]
            for name, each in side.items()
        }
    if was and was.deleted.documents:
        content["deleted"] = was.checksums["deleted"]
    return digest(content)


def _of_conversions(merged: MergedReceipts, before: dict[str, Any]) -> dict[str, Any]:
    """What is known of the conversions that a source came from."""
    conversion = {
        "files": merged.files,
        "records": merged.records,
        "blank": merged.counts["blank"],
        "added": merged.counts["added"],
        "quarantined": merged.reasons,
        "dropped": dict(merged.dropped),
    }
    rare = {name: merged.counts[name] for name in DROPPED}
    conversion |= {name: n for name, n in rare.items() if n or name in before}
    return {name: _sum(before.get(name), count) for name, count in conversion.items()}


def _sum(before: Any, now: Any) -> Any:
    """Add a count, or counts by reason, to what was counted before."""
    if isinstance(now, dict):
        known = before or {}
        return {name: known.get(name, 0) + now.get(name, 0) for name in sorted(known | now)}
    return (before or 0) + now
