"""`delete_documents`: overwrite documents of a dataset, so that no byte of them is left in it.

Their records become zeros in new shards beside the old ones, their kept fields `{}`, their hashes
zeros; each generation of the source gets a new index. Then the manifest names the new files, in one
step, and the old ones are removed. So a command that was killed has deleted all or nothing, and the
same command removes what is left of the old files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.facts import digest
from jaxdata.base.numbers import validated
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import Ints, consecutive
from jaxdata.base.wording import nearest
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.history import maker_of, note_conversion, read_history
from jaxdata.dataset.index import HASH_COLUMNS, SourceIndex, write_columns
from jaxdata.dataset.lease import leased
from jaxdata.dataset.manifest import (
    Amount,
    Generation,
    Manifest,
    ShardEntry,
    SideEntry,
    SourceEntry,
    read_manifest,
    update_manifest,
)
from jaxdata.dataset.opening import ConvertedDataset, open_dataset
from jaxdata.dataset.records import without_headers
from jaxdata.dataset.shards import ShardWriter, page_count
from jaxdata.dataset.views.expressions import Expression
from jaxdata.dataset.views.selecting import OneOf, documents_where
from jaxdata.dataset.views.writing import other_side
from jaxdata.storage import Store

_OWN = re.compile(r"(?P<stem>[^/]+?)(-d\d+)?(?P<end>(\.\w+)?\.array_record)")
_INDEX = re.compile(r"index(-\d+)?(-d\d+)?")
Column = NDArray[Any]


@validated
def delete_documents(
    dataset: str | os.PathLike[str],
    *,
    documents: Mapping[str, ArrayLike] | None = None,
    where: str | None = None,
    values: Iterable[str] | None = None,
    key: str = "url",
    sources: Sequence[str] | None = None,
    split: str | None = None,
    command: str = "delete_documents",
    progress: Advance = lambda _done, _total: None,
) -> dict[str, Amount]:
    """Overwrite documents: their tokens, masks, side arrays, kept fields and hashes.

    Other documents keep their numbers. New runs do not see the deleted ones; a run under way reads
    `generation=n` of the source, where their slots are padding. Where they came from (file and
    line) stays known. Of preference pairs both sides are deleted.

    Args:
        dataset: a folder or URL.
        documents: numbers of documents by source, `"<split>/<source>"` or `"<source>"`; or
        where: an expression of which they are true, as `jaxdata.select` takes it; or
        values: those of a kept field that they have.
        key: the name of that field.
        sources: the names of sources where `where` and `values` look; None for all.
        split: the split where they look; None for all.
        command: what the dataset's history calls it: no text of a document should be in it.
        progress: called with (shards done, all).

    Returns:
        What was deleted now of each source, `"<split>/<source>"`.

    Raises:
        InputError: a source, number, field or expression is wrong.
        DatasetError: there is no dataset, it is damaged, or something else is written there.

    >>> import tempfile
    >>> from jaxdata.testing import write_dataset
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_dataset(folder, {"train/web": [[1, 2, 0], [3, 0], [4, 5, 6, 0]]})
    >>> delete_documents(folder, documents={"web": [1]})["train/web"].tokens
    2
    >>> docs = open_dataset(folder).source("train", "web")
    >>> docs.lengths.tolist(), docs[1]["tokens"].tolist()
    ([3, 0, 4], [])
    """
    if sum(each is not None for each in (documents, where, values)) != 1:
        raise InputError("give one of documents, where and values: which documents to delete")
    opened = open_dataset(dataset)
    if not isinstance(opened, ConvertedDataset):
        raise InputError(f"{opened.url} is another tool's dataset: that tool may delete there")
    named = None if documents is None else _by_source(documents, opened.manifest)
    looked_at = list(named) if named is not None else _looked_at(opened.manifest, sources, split)
    both = {each for name in looked_at for each in _sides(opened.manifest, name)}
    with leased(opened.store, both) as lease:
        store = lease.fenced(opened.store)
        opened = ConvertedDataset(store)
        _check_idle(store)
        if named is None:
            named = dict(_chosen(opened, looked_at, where, key, values or ()))
        deletion = _Deletion(store, opened.manifest, progress)
        deleted = deletion.run(_with_other_sides(opened.manifest, named))
        _note(store, sorted(both), command)
        for name in sorted(both):
            _remove_old_files(store, name)
    return deleted


def _chosen(
    dataset: ConvertedDataset,
    sources: Iterable[str],
    where: str | None,
    key: str,
    values: Iterable[str],
) -> Iterator[tuple[str, Ints]]:
    """The numbers of the documents of which an expression holds, or whose field has a value."""
    one = OneOf(key, frozenset(values)) if where is None else Expression(where, "--where")
    for name in sources:
        docs = dataset[name].base
        assert isinstance(docs, ConvertedDocuments)
        yield name, documents_where(docs, one, "--key" if where is None else "--where")


def _by_source(given: Mapping[str, ArrayLike], manifest: Manifest) -> dict[str, Ints]:
    """The numbers by `"<split>/<source>"`, ascending, each once."""
    found: dict[str, Ints] = {}
    for name, numbers in given.items():
        full = _full_name(name, manifest)
        mine, most = np.unique(np.asarray(numbers, np.int64)), manifest.sources[full].documents
        if len(mine) and not 0 <= mine[0] <= mine[-1] < most:
            wrong = mine[0] if mine[0] < 0 else mine[-1]
            raise InputError(f"no document {name}:{wrong}: {full} has 0 to {most - 1:,}")
        found[full] = np.union1d(found.get(full, mine), mine)
    return found


def _full_name(name: str, manifest: Manifest) -> str:
    places = [full for full in manifest.sources if name in (full, full.partition("/")[2])]
    if len(places) > 1:
        raise InputError(f"{name!r} names no split: give {' or '.join(map(repr, places))}")
    if not places:
        known = sorted(manifest.sources)
        raise InputError(f"no source {name!r}: it has {', '.join(known)}{nearest(name, known)}")
    return places[0]


def _looked_at(manifest: Manifest, sources: Sequence[str] | None, split: str | None) -> list[str]:
    known = [name for name in manifest.sources if split in (None, name.partition("/")[0])]
    if not known:
        splits = sorted({name.partition("/")[0] for name in manifest.sources})
        raise InputError(f"no split {split!r}: the dataset has {', '.join(splits) or 'none'}")
    if sources is None:
        return known
    for each in sources:
        if not any(each in (name, name.partition("/")[2]) for name in known):
            raise InputError(f"no source {each!r}: it has {', '.join(known)}{nearest(each, known)}")
    return [name for name in known if {name, name.partition("/")[2]} & {*sources}]


def _sides(manifest: Manifest, name: str) -> set[str]:
    """The source, and the other side of its preference pairs."""
    return {name, other_side(name, manifest) or name}


def _with_other_sides(manifest: Manifest, chosen: Mapping[str, Ints]) -> dict[str, Ints]:
    both: dict[str, Ints] = {}
    for name, numbers in chosen.items():
        for side in _sides(manifest, name):
            both[side] = np.union1d(both.get(side, numbers), numbers)
    return both


def _check_idle(store: Store) -> None:
    """Refuse where an unfinished job keeps texts or hashes that are not yet of a source."""
    work = next((name for name in store.list() if "work" in name.split("/")[:-1]), None)
    if work is not None:
        folder = work[: work.index("work/")].rstrip("/")
        raise DatasetError(
            f"{store.url}/{folder} has unfinished work, which may keep what is to be deleted: "
            "finish it with the same command as before, or delete that folder's work/; then "
            "delete the documents"
        )


def _note(store: Store, sources: Sequence[str], command: str) -> None:
    """Write into the history what no line of it has made, be it a killed process that did."""
    history, manifest = read_history(store), read_manifest(store)
    made = {
        name: entry.fingerprint
        for name in sources
        if (entry := manifest.sources[name]).deleted.documents
        and entry.generations[-1].deleted != entry.deleted
        and maker_of(history, name, entry.fingerprint) is None
    }
    if made:
        note_conversion(store, sources, command, made)


def _remove_old_files(store: Store, source: str) -> None:
    """Remove shards and indexes of a source that have successors, or never came to be."""
    entry = read_manifest(store).sources[source]
    shards = {shard.name for shard in entry.all_shards}
    stems = {_stem(name.rpartition("/")[2]) for name in shards}
    indexes = {stage.index for stage in [*entry.generations, entry.as_generation()]}
    old: set[str] = set()
    for name in store.list(f"{source}/"):
        first, below, _ = name.removeprefix(f"{source}/").partition("/")
        if below and _INDEX.fullmatch(first) and first not in indexes:
            old.add(f"{source}/{first}/")
        elif not below and name not in shards and _stem(first) in stems:
            old.add(name)
    for name in sorted(old):
        store.delete(name)


def _stem(file: str) -> str | None:
    """The name of a shard before documents were deleted from it; None for other files."""
    found = _OWN.fullmatch(file)
    return found and found["stem"] + found["end"]


@dataclass(frozen=True)
class _Deletion:
    """Writes the new files of sources, and last the manifest."""

    store: Store
    manifest: Manifest
    progress: Advance

    def run(self, chosen: Mapping[str, Ints]) -> dict[str, Amount]:
        """Delete documents by source; returns those that were not deleted before."""
        indexes = {name: self._index(name, self.manifest.sources[name]) for name in chosen}
        new = {
            name: np.setdiff1d(numbers, indexes[name].deleted.astype(np.int64))
            for name, numbers in sorted(chosen.items())
        }
        new = {name: numbers for name, numbers in new.items() if len(numbers)}
        entries = {name: self._rewritten(indexes[name], new[name]) for name in new}
        if entries:
            update_manifest(self.store, lambda now: self._with(now, entries))
        return {
            name: Amount(
                documents=len(numbers),
                tokens=int(indexes[name].stored[numbers].sum(dtype=np.int64)),
            )
            for name, numbers in new.items()
        }

    def _index(self, name: str, entry: SourceEntry) -> SourceIndex:
        return SourceIndex(self.store, name, entry, self.manifest.record_spec(name))

    def _with(self, now: Manifest | None, entries: Mapping[str, SourceEntry]) -> Manifest:
        same = now is not None and all(
            now.sources.get(name) == self.manifest.sources[name] for name in entries
        )
        if now is None or not same:
            raise DatasetError(
                f"{self.store.url} was changed by another process while documents were deleted "
                "from it; run the same command again"
            )
        return now.model_copy(update={"sources": {**now.sources, **entries}})

    def _rewritten(self, index: SourceIndex, new: Ints) -> SourceEntry:
        """The entry of a source without some more documents; its files are written."""
        name, entry = index.name, index.entry
        number = len(entry.generations) + 1
        deleted = np.union1d(index.deleted, new.astype(np.uint64))
        own = _Shards(self.store, index, new, number)
        sides = {side: _Shards(self.store, each, new, number) for side, each in index.sides.items()}
        files = {"page": own.write(self.progress)}
        files |= {f"{side}.page": each.write(self.progress) for side, each in sides.items()}
        before: list[Generation] = []
        for at in range(number):
            stage = self._index(name, entry.at(at))
            columns = self._columns(stage, deleted, files)
            mine = deleted[deleted < stage.entry.documents]
            columns["blanked"] = np.setdiff1d(mine, stage.deleted)
            folder = f"index-{at}-d{number}"
            sums = write_columns(self.store, f"{name}/{folder}", columns)
            was = stage.entry.as_generation()
            before.append(was.model_copy(update={"index": folder, "checksums": sums}))
        columns = self._columns(index, deleted, files) | {"deleted": deleted}
        folder = f"index-{number}-d{number}"
        sums = write_columns(self.store, f"{name}/{folder}", columns)
        changed: dict[str, Any] = {
            "shards": own.entries,
            "side": {
                side: SideEntry(dtype=entry.side[side].dtype, shards=each.entries)
                for side, each in sides.items()
            },
            "generations": before,
            "index": folder,
            "checksums": sums,
            "fingerprint": digest([entry.fingerprint, "deleted", sums["deleted"]]),
            "deleted": Amount(
                documents=len(deleted),
                tokens=int(index.stored[deleted].sum(dtype=np.int64)),
            ),
            "statistics": _statistics(entry, own.lost_loss),
        }
        return SourceEntry(**{**dict(entry), **changed})

    def _columns(
        self, index: SourceIndex, deleted: NDArray[np.uint64], files: Mapping[str, Column]
    ) -> dict[str, Column]:
        """The columns of a generation, without what they tell of documents."""
        mine = deleted[deleted < index.entry.documents]
        columns = {name: np.asarray(index.column(name)) for name in index.columns}
        columns.pop("blanked", None)
        if "kept" in columns:
            columns["kept"] = _without_kept(columns["kept"], columns["kept_end"], mine)
        for name in index.hashed:
            hashes = np.array(columns[name]).reshape(-1, HASH_COLUMNS[name])
            hashes[mine] = 0
            columns[name] = hashes.ravel()
        return columns | {name: pages[: len(columns[name])] for name, pages in files.items()}


def _statistics(entry: SourceEntry, lost_loss: int) -> dict[str, Any]:
    """Those of the conversion; targets with loss are counted without the deleted ones."""
    found = dict(entry.statistics)
    if "loss_tokens" in found:
        found["loss_tokens"] -= lost_loss
    return found


def _without_kept(kept: Column, ends: Column, deleted: Column) -> Column:
    """Lines of JSON of which some become `{}`, as long as they were: the others stay in place."""
    lines = np.array(kept)
    stop = ends[deleted].astype(np.int64) - 1  # before the end of the line
    start = np.where(deleted > 0, ends[deleted - (deleted > 0)], 0).astype(np.int64)
    lines[consecutive(start, stop - start)] = ord(" ")
    lines[start], lines[stop - 1] = ord("{"), ord("}")
    return lines


class _Shards:
    """The shards of a source, or of a side array, of which some are written anew."""

    def __init__(self, store: Store, index: SourceIndex, new: Ints, number: int) -> None:
        self._store, self._index, self._new, self._number = store, index, new, number
        self._lengths = np.asarray(index.stored)
        self.entries: list[ShardEntry] = []
        self.lost_loss = 0
        """targets with loss that the documents had"""

    def write(self, progress: Advance) -> Column:
        """Write those that hold the documents; returns the checksums of the pages of all."""
        index, before, total = self._index, 0, len(self._index.entry.shards)
        pages: list[Column] = [index.pages[:0]]
        for at, shard in enumerate(index.entry.shards):
            first, count = int(index.shard_starts[at]), page_count([shard])
            low, high = np.searchsorted(self._new, [first, first + shard.documents])
            if low < high:
                entry, own = self._rewrite(shard, first, self._new[low:high] - first)
                shard = entry
            else:
                own = index.pages[before : before + count]
            self.entries.append(shard)
            pages.append(own)
            before += count
            progress(at + 1, total)
        return np.concatenate(pages)

    def _rewrite(self, shard: ShardEntry, first: int, gone: Ints) -> tuple[ShardEntry, Column]:
        """Write a shard with zeros for some of its documents."""
        spec = self._index.spec
        lengths = self._lengths[first : first + shard.documents]
        records = list(_records(self._read(shard), *spec.record_spans(lengths)))
        ends = np.cumsum(spec.records(lengths))
        for document in gone.tolist():
            start = int(ends[document - 1]) if document else 0
            own = range(start, int(ends[document]))
            self.lost_loss += self._loss([records[at] for at in own])
            for at in own:
                records[at] = bytes(len(records[at]))
        name = self._renamed(shard.name)
        with self._store.create(name) as path:
            with ShardWriter(path, spec) as writer:
                writer.extend_records(records, lengths)
            entry = writer.entry(name)
        return entry, writer.pages

    def _loss(self, records: list[bytes]) -> int:
        """Targets with loss of a document: all tokens but the first, less those masked."""
        item, masked = self._index.spec.item, self._index.spec.masked
        tokens = [len(each) // (item + masked) for each in records]
        if not masked:
            return sum(tokens) - 1
        masks = [each[count * item :] for each, count in zip(records, tokens, strict=True)]
        return sum(b"".join(masks)[1:])

    def _renamed(self, name: str) -> str:
        folder, _, file = name.rpartition("/")
        found = _OWN.fullmatch(file)
        if found is None:
            raise DatasetError(f"{self._store.url}/{name} is no name of a shard of the converter")
        return f"{folder}/{found['stem']}-d{self._number}{found['end']}"

    def _read(self, shard: ShardEntry) -> bytes:
        """The whole file; past all caches of a host."""
        data = b"".join(map(bytes, self._store.scan(shard.name)))
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            raise DatasetError(
                f"{self._store.url}/{shard.name} is damaged: restore it from a copy (jaxdata "
                "verify says what else is)"
            )
        return data


def _records(data: bytes, starts: Ints, sizes: Ints) -> Iterator[bytes]:
    """The records of a file."""
    stream = without_headers(np.frombuffer(data, np.uint8))
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        yield stream[start : start + size].tobytes()
