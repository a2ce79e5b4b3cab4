"""Whether a dataset is, to the last bit, what its manifest says.

`checks` runs checks and reports them; `damage` compares single files and columns, `index` the index
with the manifest and the shards. Materialized rows are verified with the first two.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jaxdata.errors import DatasetError
from jaxdata.format.cache import CACHED_ARRAYS
from jaxdata.format.index import SourceIndex
from jaxdata.format.input_hashes import is_hashes_name, read_hashes
from jaxdata.format.manifest import MANIFEST, Manifest, SourceEntry, read_manifest
from jaxdata.format.storage import Store, open_store
from jaxdata.format.unfinished import unfinished_conversions
from jaxdata.format.verify.checks import Check, Verification, file_check, totals, verify_files
from jaxdata.format.verify.damage import Damage, damage_of_cached, damage_of_hashes
from jaxdata.format.verify.index import (
    damage_of_columns,
    damage_of_places,
    damage_of_shard,
    damage_of_view,
    unchecked_columns,
)
from jaxdata.format.views import ViewIndex, views_of
from jaxdata.progress import Advance

__all__ = ["Damage", "Verification", "verify"]

_REMEDY = (
    "restore these files from a copy; or convert the same input into another --output and copy "
    "them from there: the bytes are the same"
)


def verify(
    dataset: str | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: Advance | None = None,
) -> Verification:
    """Compare every file of a dataset with its checksum, and the index with the records.

    Each shard is read once, from beginning to end: its bytes must match the checksum in the
    manifest, and its records the sizes in the index. The columns of the index must match their
    checksums and add up to the numbers in the manifest.

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
    manifest = read_manifest(store, compare=False)
    names = store.list()
    return verify_files(
        store,
        MANIFEST,
        _checks(store, manifest, names),
        threads=threads,
        progress=progress,
        unchecked=_unchecked(store, manifest, names),
        counts=_counts(manifest),
        remedy=_REMEDY,
        links=tuple(_links_outside(store, manifest)),
        unknown_inputs=tuple(_unknown_inputs(store, manifest, names)),
        unfinished=tuple(sorted(unfinished_conversions(names) - manifest.sources.keys())),
    )


def _counts(manifest: Manifest) -> dict[str, int]:
    entries = manifest.sources.values()
    shards = [shard for entry in entries for shard in entry.shards]
    every = [shard for entry in entries for shard in entry.all_shards]
    counts = {"sources": len(entries), "shards": len(every)}
    return counts | totals(shards, "documents", "tokens") | totals(every, "bytes")


def _checks(store: Store, manifest: Manifest, names: list[str]) -> Iterator[Check]:
    for name, sha256 in (manifest.tokenizer.checksums | manifest.files).items():
        yield file_check(store, name, sha256)
    for name in names:
        if name.startswith("plans/") and name.endswith(CACHED_ARRAYS):
            yield 0, partial(damage_of_cached, store, name)
        elif is_hashes_name(name):
            yield 0, partial(damage_of_hashes, store, name)
    for name, entry in manifest.sources.items():
        yield 0, partial(_wrong_sums, name, entry)
    yield 0, partial(_named_twice, manifest)
    for index in _indexes(store, manifest):
        yield 0, partial(damage_of_columns, index)
        for side in index.sides.values():
            yield 0, partial(damage_of_places, side)
    for view in views_of(store, manifest):
        yield 0, partial(damage_of_view, view, _index_of(store, manifest, view))
    read: set[str] = set()
    for name, entry in manifest.sources.items():
        index = SourceIndex(store, name, entry, manifest.record_spec(name))
        for each in (index, *index.sides.values()):
            for number, shard in enumerate(each.entry.shards):
                if shard.name not in read:
                    yield shard.bytes, partial(damage_of_shard, each, number)
                read.add(shard.name)


def _indexes(store: Store, manifest: Manifest) -> Iterator[SourceIndex]:
    """The index of each source, and earlier ones that runs may still read after an addition."""
    for name, entry in manifest.sources.items():
        for generation in range(len(entry.generations) + 1):
            yield SourceIndex(store, name, entry.at(generation), manifest.record_spec(name))


def _index_of(store: Store, manifest: Manifest, view: ViewIndex) -> SourceIndex:
    """The index of the generation that a view is of; the last, where that is not known."""
    entry = manifest.sources[view.source]
    made = entry.generation_of(view.entry) or entry
    return SourceIndex(store, view.source, made, manifest.record_spec(view.source))


def _wrong_sums(name: str, entry: SourceEntry) -> list[Damage]:
    return [
        Damage(MANIFEST, f"{name} has {count:,} {what}, its shards together {total:,}")
        for what, total in totals(entry.shards, "documents", "tokens").items()
        if (count := getattr(entry, what)) != total
    ]


def _named_twice(manifest: Manifest) -> list[Damage]:
    shards = (shard.name for entry in manifest.sources.values() for shard in entry.all_shards)
    times = Counter(shards)
    return [Damage(MANIFEST, f"it names {name} {n} times") for name, n in times.items() if n > 1]


def _links_outside(store: Store, manifest: Manifest) -> Iterator[str]:
    """The files that are, or lie in, links to somewhere outside the dataset."""
    if not store.local:
        return
    root = Path(store.url).resolve()
    for name in _named(store, manifest):
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            yield f"{name} -> {path}"


def _unknown_inputs(store: Store, manifest: Manifest, names: list[str]) -> Iterator[str]:
    """The sources that have inputs of which there is no hash."""
    known: set[str] = set()
    for name in filter(is_hashes_name, names):
        try:
            hashes = read_hashes(store, name)
        except (DatasetError, OSError):  # which is damage
            return
        known |= hashes.contents.keys() if hashes else set()
    for name, entry in manifest.sources.items():
        if not known.issuperset(entry.inputs):
            yield name


def _named(store: Store, manifest: Manifest) -> Iterator[str]:
    """Every file that is read."""
    yield from (MANIFEST, *manifest.tokenizer.checksums, *manifest.files)
    for index in _indexes(store, manifest):
        for column in index.columns:
            yield from (f"{index.file(column)}/zarr.json", f"{index.file(column)}/c/0")
    for view in views_of(store, manifest):
        for column in view.columns:
            yield from (f"{view.file(column)}/zarr.json", f"{view.file(column)}/c/0")
    for entry in manifest.sources.values():
        yield from (shard.name for shard in entry.all_shards)


def _unchecked(store: Store, manifest: Manifest, names: list[str]) -> Iterator[str]:
    """Columns and files that no checksum covers."""
    for index in _indexes(store, manifest):
        yield from unchecked_columns(index)
    begun = unfinished_conversions(names)
    for name in names:
        folder, _, file = name.rpartition("/")
        quarantine = file.startswith("quarantine") and file.endswith(".jsonl")
        if quarantine and name not in manifest.files and folder not in begun:
            yield name
