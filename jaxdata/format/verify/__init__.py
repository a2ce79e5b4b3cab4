"""Whether a dataset is, to the last bit, what its manifest says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from jaxdata.format.index import SourceIndex
from jaxdata.format.manifest import MANIFEST, Manifest, SourceEntry, read_manifest
from jaxdata.format.storage import KEPT_ARRAYS, Store, open_store
from jaxdata.format.verify.checks import Check, Verification, run_checks
from jaxdata.format.verify.damage import Damage, damage_of_file, damage_of_kept, damage_of_manifest
from jaxdata.format.verify.index import damage_of_columns, damage_of_shard, unchecked_columns
from jaxdata.progress import Advance

__all__ = ["Damage", "Verification", "verify"]

_REMEDY = (
    "restore these files from a copy; or convert the same input into another --output and take "
    "them from there: the same bytes come out"
)


def verify(
    dataset: str | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: Advance | None = None,
) -> Verification:
    """Compare every file of a dataset with its checksum, and the index with the records.

    Each shard is read once, from its beginning to its end: its bytes must have the checksum that
    the manifest says, and each of its records the size that follows from the index. The columns of
    the index must have theirs, and add up to the manifest's numbers.

    Args:
        dataset: a folder or URL.
        threads: files read at a time; None for one a core.
        progress: called with (bytes of shards done, bytes of all shards).

    Raises:
        DatasetError: there is no dataset, or its manifest cannot be read.

    >>> verify("data/mine").whole  # doctest: +SKIP
    True
    """
    store = open_store(dataset)
    manifest = read_manifest(store)
    damage, unchecked = damage_of_manifest(store, MANIFEST)
    names = store.list()
    return Verification(
        path=store.url,
        counts=_counts(manifest),
        damage=damage or run_checks(_checks(store, manifest, names), threads, progress),
        remedy=_REMEDY,
        unchecked=(*unchecked, *_unchecked(store, manifest, names)),
        unfinished=tuple(sorted(_begun(names) - manifest.sources.keys())),
    )


def _counts(manifest: Manifest) -> dict[str, int]:
    entries = manifest.sources.values()
    shards = [shard for entry in entries for shard in entry.shards]
    sums = {
        what: sum(getattr(shard, what) for shard in shards)
        for what in ("documents", "tokens", "bytes")
    }
    return {"sources": len(entries), "shards": len(shards)} | sums


def _checks(store: Store, manifest: Manifest, names: list[str]) -> Iterator[Check]:
    for name, sha256 in (manifest.tokenizer.checksums | manifest.files).items():
        yield 0, partial(damage_of_file, store, name, sha256)
    for name in names:
        if name.startswith("plans/") and name.endswith(KEPT_ARRAYS):
            yield 0, partial(damage_of_kept, store, name)
    for name, entry in manifest.sources.items():
        yield 0, partial(_wrong_sums, name, entry)
    for index in _indexes(store, manifest):
        yield 0, partial(damage_of_columns, index)
    for name, entry in manifest.sources.items():
        index = SourceIndex(store, name, entry, manifest.layout(name))
        for number, shard in enumerate(entry.shards):
            yield shard.bytes, partial(damage_of_shard, index, number)


def _indexes(store: Store, manifest: Manifest) -> Iterator[SourceIndex]:
    """The index of each source, and those that running runs still read after an addition."""
    for name, entry in manifest.sources.items():
        for generation in range(len(entry.generations) + 1):
            yield SourceIndex(store, name, entry.at(generation), manifest.layout(name))


def _wrong_sums(name: str, entry: SourceEntry) -> list[Damage]:
    sums = {
        what: (getattr(entry, what), sum(getattr(shard, what) for shard in entry.shards))
        for what in ("documents", "tokens")
    }
    return [
        Damage(MANIFEST, f"{name} has {says:,} {what}, its shards together {has:,}")
        for what, (says, has) in sums.items()
        if says != has
    ]


def _unchecked(store: Store, manifest: Manifest, names: list[str]) -> Iterator[str]:
    """What no checksum vouches for, and nothing else."""
    for index in _indexes(store, manifest):
        yield from unchecked_columns(index)
    begun = _begun(names)
    for name in names:
        folder, _, file = name.rpartition("/")
        quarantine = file.startswith("quarantine") and file.endswith(".jsonl")
        if quarantine and name not in manifest.files and folder not in begun:
            yield name


def _begun(names: list[str]) -> set[str]:
    """The sources that a conversion is at."""
    end = "/work/parameters.json"
    return {name.removesuffix(end) for name in names if name.endswith(end)}
