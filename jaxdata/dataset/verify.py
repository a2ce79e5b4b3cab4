"""Whether a dataset is, to the last bit, what its manifest says.

Many files are checked at once, a thread a core; the index is compared with the shards.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.processes import available_cores
from jaxdata.base.progress import Advance
from jaxdata.base.threads import Threads
from jaxdata.dataset.checksums import (
    Damage,
    damage_of_array,
    damage_of_cached,
    damage_of_file,
    damage_of_hashes,
    damage_of_manifest,
    unreadable,
)
from jaxdata.dataset.history import is_hashes_name, read_hashes
from jaxdata.dataset.index import Columns, SourceIndex, anchor_chunks
from jaxdata.dataset.manifest import MANIFEST, Manifest, SourceEntry, read_manifest
from jaxdata.dataset.records import RecordSpec, file_offset
from jaxdata.dataset.unfinished import unfinished_conversions
from jaxdata.dataset.views.columns import ViewIndex, views_of
from jaxdata.storage import Store, open_store
from jaxdata.storage.cached_files import CACHED_ARRAYS

_NAMED = 8  # files that a line names
_NO_CHECKSUM = "no checksum (written by an earlier jaxdata), so damage may go unnoticed"

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
        unchecked: columns and files without a checksum, written by an earlier jaxdata.
        unfinished: sources whose conversion is not finished; this is no damage.
        unknown_inputs: sources of whose inputs nothing tells a later conversion whether they have
            changed: `inputs.json` was deleted, or was never there; no damage.
        links: files that are links to somewhere outside the folder; no damage either.
    """

    path: str
    counts: dict[str, int]
    damage: tuple[Damage, ...]
    remedy: str
    unchecked: tuple[str, ...] = ()
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
        if self.unchecked:
            lines.append(f"{_NO_CHECKSUM}: {_some(self.unchecked)}")
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


def verify_files(
    store: Store,
    manifest: str,
    checks: Iterable[Check],
    *,
    threads: int | None,
    progress: Advance | None,
    unchecked: Iterable[str] = (),
    **found: Any,
) -> Verification:
    """Compare a manifest with its own checksum and, unless it is damaged, run the checks.

    `found` are the other attributes of :class:`Verification`.
    """
    damage, no_checksum = damage_of_manifest(store, manifest)
    return Verification(
        path=store.url,
        damage=damage or run_checks(checks, threads, progress),
        unchecked=(*no_checksum, *unchecked),
        **found,
    )


def run_checks(
    checks: Iterable[Check], threads: int | None, progress: Advance | None
) -> tuple[Damage, ...]:
    """Run all checks; returns the first damage of each file, in the order of the checks."""
    checks = list(checks)
    done, total = 0, sum(size for size, _ in checks)
    found: dict[int, list[Damage]] = {}
    with Threads(threads or available_cores()) as pool:
        for number, damage in pool.ended((n, check) for n, (_, check) in enumerate(checks)):
            found[number] = damage
            done += checks[number][0]
            if progress:
                progress(done, total)
    first: dict[str, Damage] = {}
    for number in range(len(checks)):
        for one in found[number]:
            first.setdefault(one.file, one)
    return tuple(first.values())


_SIZE_BYTES = 4  # of the eight that hold a record's size: none reaches 4 GiB
_RECORDS = 2**18  # whose headers are in memory at a time
_FOLLOWING = ("length", "anchor")  # the first from the records, the second from the first
_COMPARED = (*_FOLLOWING, "origin_file")


def damage_of_columns(index: SourceIndex) -> list[Damage]:
    """Compare every column with its checksum, and the sound ones with the manifest."""
    damage = _damage_of_each(index)
    sound = [name for name in _COMPARED if not damage[name]]
    return [*chain(*damage.values()), *damage_of_index(index, sound)]


def damage_of_view(view: ViewIndex, index: SourceIndex) -> list[Damage]:
    """Compare the columns of a view with their checksums, and its list with the source's index."""
    damage = [*chain(*_damage_of_each(view).values())]
    if damage or view.entry.generation != index.entry.fingerprint:
        return damage
    try:
        problem = view.misfit(index.lengths)
    except (DatasetError, OSError, ValueError):  # `damage_of_columns` names it
        return []
    return [Damage(view.file("document"), problem)] if problem else []


def _damage_of_each(columns: Columns) -> dict[str, list[Damage]]:
    """The damage of each column, compared with its checksum."""
    return {
        name: damage_of_array(
            columns.store, columns.file(name), columns.checksums.get(name), dtype, size
        )
        for name, (dtype, size) in columns.columns.items()
    }


def damage_of_places(index: SourceIndex) -> list[Damage]:
    """Compare the lengths and anchors of an index whose other columns are another's."""
    return list(damage_of_index(index, _FOLLOWING))


def damage_of_index(
    index: SourceIndex, names: Collection[str] = (*_COMPARED, "origin_row")
) -> Iterator[Damage]:
    """Compare some columns with the manifest, and with each other."""
    columns: dict[str, NDArray[Any]] = {}
    for name in names:
        try:
            columns[name] = index.store.read_array(index.file(name), *index.columns[name])
        except (DatasetError, OSError, ValueError) as error:
            yield unreadable(index.file(name), error)
    if "length" in columns:
        yield from _wrong_sums_of_shards(index, columns["length"])
    if {*_FOLLOWING} <= columns.keys() and not _follow(index, columns["length"], columns["anchor"]):
        yield Damage(index.file("anchor"), "it does not follow from the lengths")
    files = len(index.entry.inputs)
    if columns.get("origin_file", np.zeros(0)).max(initial=0) >= files:
        yield Damage(index.file("origin_file"), f"it names more files than the {files} there are")


def _wrong_sums_of_shards(index: SourceIndex, lengths: NDArray[np.uint32]) -> Iterator[Damage]:
    for number, shard in enumerate(index.entry.shards):
        tokens, records = _sums(index, _of_shard(index, number, lengths))
        if (tokens, records) != (shard.tokens, shard.records):
            yield Damage(
                index.file("length"),
                f"for {shard.name} it adds up to {tokens:,} tokens in {records:,} records, not to "
                f"{shard.tokens:,} in {shard.records:,}",
            )


def _sums(index: SourceIndex, lengths: NDArray[np.uint32]) -> tuple[int, int]:
    """Tokens and records of documents."""
    return int(lengths.sum(dtype=np.int64)), int(index.spec.records(lengths).sum())


def _follow(index: SourceIndex, lengths: NDArray[np.uint32], anchors: NDArray[np.uint64]) -> bool:
    at = 0
    for expected in anchor_chunks(lengths, index.spec):
        if not np.array_equal(anchors[at : at + len(expected)], expected):
            return False
        at += len(expected)
    return True


def unchecked_columns(index: SourceIndex) -> list[str]:
    """The columns that are covered neither by a checksum nor by another column or file."""
    known = {*index.entry.checksums, *_FOLLOWING}
    return [index.file(name) for name in index.columns if name not in known]


def damage_of_shard(index: SourceIndex, number: int) -> list[Damage]:
    """Compare a shard with its checksum, and its records with the index."""
    shard = index.entry.shards[number]
    headers = _Headers(_known_lengths(index, number), index.spec)
    damage = damage_of_file(index.store, shard.name, shard.sha256, shard.bytes, headers.compare)
    if not damage and not headers.fit:
        what = f"its lengths are not those of the records in {shard.name}"
        return [Damage(index.file("length"), what)]
    return damage


def _known_lengths(index: SourceIndex, number: int) -> NDArray[np.uint32]:
    """Lengths of the documents of a shard; none if the index is damaged."""
    shard, none = index.entry.shards[number], np.zeros(0, np.uint32)
    try:
        lengths = _of_shard(index, number, index.lengths)
    except (DatasetError, OSError, ValueError):  # `damage_of_columns` names it
        return none
    return lengths if _sums(index, lengths) == (shard.tokens, shard.records) else none


def _of_shard(index: SourceIndex, number: int, column: NDArray[np.uint32]) -> NDArray[np.uint32]:
    start = index.shard_starts[number]
    return column[start : start + index.entry.shards[number].documents]


class _Headers:
    """The sizes in the chunk headers of a file that holds documents of `lengths`."""

    def __init__(self, lengths: NDArray[np.uint32], spec: RecordSpec) -> None:
        self._pieces = _expected(lengths, spec)
        self._places, self._content = np.empty(0, np.int64), np.empty(0, np.uint8)
        self._fit = True

    def compare(self, buffer: memoryview | bytes, start: int) -> None:
        """Compare the next buffer of the file, which begins at byte `start`."""
        stop = start + len(buffer)
        while not len(self._places) or self._places[-1] < stop:
            if not self._expect_more():
                break
        inside = int(np.searchsorted(self._places, stop))
        found = np.frombuffer(buffer, np.uint8)[self._places[:inside] - start]
        self._fit &= np.array_equal(found, self._content[:inside])
        self._places, self._content = self._places[inside:], self._content[inside:]

    def _expect_more(self) -> bool:
        """Take the next headers; False if there are no more."""
        for places, content in self._pieces:
            self._places = np.concatenate([self._places, places])
            self._content = np.concatenate([self._content, content])
            return True
        return False

    @property
    def fit(self) -> bool:
        """Whether all of them were in the file."""
        return self._fit and not len(self._places) and not self._expect_more()


def _expected(
    lengths: NDArray[np.uint32], spec: RecordSpec
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
    """The places of the bytes that hold sizes of records, and these bytes, in order."""
    before = 0
    for some in _of_few_records(lengths, spec):
        fields, sizes = spec.size_fields(some)
        places = file_offset(before + fields[:, None] + np.arange(_SIZE_BYTES)).ravel()
        yield places, sizes.astype("<u4").view(np.uint8)
        before += int(spec.stream_bytes(some).sum())


def _of_few_records(lengths: NDArray[np.uint32], spec: RecordSpec) -> Iterator[NDArray[np.int64]]:
    """Lengths of some documents at a time; one of very many records in parts of whole records."""
    first = 0
    while first < len(lengths):
        some = lengths[first : first + _RECORDS].astype(np.int64)
        fitting = int(np.searchsorted(np.cumsum(spec.records(some)), _RECORDS, side="right"))
        if fitting:
            yield some[:fitting]
        else:
            step, long = _RECORDS * spec.record_tokens, int(some[0])
            yield from (np.array([min(step, long - at)]) for at in range(0, long, step))
        first += max(fitting, 1)


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
