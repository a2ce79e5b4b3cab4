"""Whether a dataset is, to the last bit, what its manifest says.

The manifest, which opening checks, has a checksum of every other file. Many files are compared at
once, a thread a core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from jaxdata.base.errors import DatasetError
from jaxdata.base.processes import available_cores
from jaxdata.base.progress import Advance
from jaxdata.base.threads import Threads
from jaxdata.dataset.checksums import (
    Damage,
    damage_of_array,
    damage_of_cached,
    damage_of_file,
    damage_of_json,
)
from jaxdata.dataset.history import is_hashes_name, read_hashes
from jaxdata.dataset.index import Columns, SourceIndex
from jaxdata.dataset.manifest import MANIFEST, Manifest, read_manifest
from jaxdata.dataset.unfinished import unfinished_conversions
from jaxdata.dataset.views.columns import views_of
from jaxdata.storage import Store, open_store
from jaxdata.storage.cached_files import CACHED_ARRAYS

_NAMED = 8  # files that a line names

Check = tuple[int, Callable[[], list[Damage]]]
"""(bytes of shards it reads, what to do)"""


def file_check(store: Store, name: str, sha256: str, size: int | None = None) -> Check:
    """Compare a file with its checksum; only files of a known size count as progress."""
    return size or 0, partial(damage_of_file, store, name, sha256, size)


def totals(shards: Iterable[Any], *names: str) -> dict[str, int]:
    """The sums of some fields of shards, by name."""
    entries = list(shards)
    return {name: sum(getattr(entry, name) for entry in entries) for name in names}


@dataclass(frozen=True)
class Verification:
    """The result of checking files.

    Attributes:
        path: their folder or URL.
        counts: what they hold according to their manifest: shards, bytes of shards, ….
        damage: the damaged files, each once.
        remedy: what to do about damage.
        unfinished: sources whose conversion is not finished; this is no damage.
        unknown_inputs: sources of whose inputs nothing tells a later conversion whether they have
            changed: `inputs.json` was deleted, or was never there; no damage.
        links: files that are links to somewhere outside the folder; no damage either.
    """

    path: str
    counts: dict[str, int]
    damage: tuple[Damage, ...]
    remedy: str
    unfinished: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    unknown_inputs: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.damage

    def as_json(self) -> dict[str, Any]:
        return {"whole": self.whole} | asdict(self)

    def __str__(self) -> str:
        """A line for each damaged file, what to do, and a summary."""
        lines = [f"DAMAGED {one}" for one in self.damage]
        lines += [self.remedy] if any(not one.remedy for one in self.damage) else []
        if self.unknown_inputs:
            named = _some(self.unknown_inputs)
            lines.append(f"without inputs.json, inputs that change are not noticed: {named}")
        if self.links:
            lines.append(f"links to files outside the folder: {_some(self.links)}")
        lines += [
            f"unfinished: {name}; run the same conversion again to finish it"
            for name in self.unfinished
        ]
        counts = [f"{n:,} {what}" for what, n in self.counts.items() if what != "bytes"]
        size = f"{self.counts['bytes'] / 1e6:,.1f} MB"
        found = f"{len(self.damage)} damaged" if self.damage else "whole"
        return "\n".join([*lines, f"{self.path}: {found} ({', '.join([*counts, size])})"])


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED:,} more (--json names all)" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def run_checks(
    checks: Iterable[Check], threads: int | None, progress: Advance | None
) -> tuple[Damage, ...]:
    """Run all checks; returns the first damage of each file, in the order of the checks."""
    checks = list(checks)
    done, total = 0, sum(size for size, _ in checks)
    found: dict[int, list[Damage]] = {}
    with Threads(threads or available_cores()) as pool:
        numbers = {pool.submit(check): number for number, (_, check) in enumerate(checks)}
        for future in pool.ended(numbers):
            number = numbers[future]
            found[number] = future.result()
            done += checks[number][0]
            if progress:
                progress(done, total)
    first: dict[str, Damage] = {}
    for number in range(len(checks)):
        for one in found[number]:
            first.setdefault(one.file, one)
    return tuple(first.values())


def damage_of_columns(columns: Columns) -> list[Damage]:
    """Compare every column of an index, or of a view, with its checksum."""
    found = (
        damage_of_array(columns.store, columns.file(name), columns.checksums[name], *kind)
        for name, kind in columns.columns.items()
    )
    return [*chain(*found)]


_FORGET_INPUTS = "restore it, or delete it: then inputs that changed are not noticed"
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
    """Compare every file of a dataset with its checksum.

    Args:
        dataset: a folder or URL.
        threads: files read at a time; None for one a core.
        progress: called with (bytes of shards done, bytes of all shards).

    Raises:
        DatasetError: there is no dataset, or its manifest is damaged.

    >>> verify("data/mine").whole  # doctest: +SKIP
    True
    """
    store = open_store(dataset)
    manifest = read_manifest(store)
    names = store.list()
    return Verification(
        path=store.url,
        counts=_counts(manifest),
        damage=run_checks(_checks(store, manifest, names), threads, progress),
        remedy=_REMEDY,
        unfinished=tuple(sorted(unfinished_conversions(names) - manifest.sources.keys())),
        links=tuple(_links_outside(store, manifest)),
        unknown_inputs=tuple(_unknown_inputs(store, manifest, names)),
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
            yield 0, partial(damage_of_json, store, name, _FORGET_INPUTS)
    for columns in _columns(store, manifest):
        yield 0, partial(damage_of_columns, columns)
    for entry in manifest.sources.values():
        for shard in entry.all_shards:
            yield file_check(store, shard.name, shard.sha256, shard.bytes)


def _columns(store: Store, manifest: Manifest) -> Iterator[Columns]:
    """The index of each source, earlier ones that runs may still read, and the views."""
    for name, entry in manifest.sources.items():
        for generation in range(len(entry.generations) + 1):
            yield SourceIndex(store, name, entry.at(generation), manifest.record_spec(name))
    yield from views_of(store, manifest)


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
    for columns in _columns(store, manifest):
        for column in columns.columns:
            yield from (f"{columns.file(column)}/zarr.json", f"{columns.file(column)}/c/0")
    for entry in manifest.sources.values():
        yield from (shard.name for shard in entry.all_shards)
