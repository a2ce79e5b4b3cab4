"""`delete_documents`: overwrite documents of a dataset, so that no byte of them is left in it.

Their records become zeros in new shards beside the old ones, their kept fields `{}`, their hashes
zeros; each generation of the source gets a new index. Then the manifest names the new files, in one
step, and the old ones are removed. So a command that was killed has deleted all or nothing, and the
same command removes what is left of the old files.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import DatasetError, InputError, digest
from jaxdata.base.numbers import validated
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import AnyArray, AnyInts, Ints, consecutive
from jaxdata.dataset import manifest
from jaxdata.dataset.index import ShardWriter, SourceIndex, page_count, write_columns
from jaxdata.dataset.lease import leased, note_conversion
from jaxdata.dataset.opening import ConvertedDataset, ConvertedDocuments, open_converted
from jaxdata.dataset.records import RecordSpec, without_headers
from jaxdata.dataset.views.selecting import Expression, documents_where, documents_with
from jaxdata.dataset.views.writing import other_side
from jaxdata.storage import Store


@validated
def delete_documents(
    dataset: str | os.PathLike[str],
    *,
    documents: Mapping[str, ArrayLike] | None = None,
    where: str | None = None,
    urls: Iterable[str] | None = None,
    sources: Sequence[str] | None = None,
    command: str = "delete_documents",
    progress: Advance = lambda _done, _total: None,
) -> dict[str, manifest.Amount]:
    """Overwrite documents: their tokens, masks, side arrays, kept fields and hashes.

    Other documents keep their numbers. New runs do not see the deleted ones; a run under way reads
    `generation=n` of the source, where their slots are padding. Where they came from (file and
    line) stays known. Of preference pairs both sides are deleted.

    Args:
        dataset: a folder or URL.
        documents: numbers of documents by source, `"<split>/<source>"` or `"<source>"`; or
        where: an expression of which they are true, as `jaxdata.select` takes it; or
        urls: values of the kept field `url`.
        sources: where `where` and `urls` look, named likewise; None for all.
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
    >>> docs = open_converted(folder, "").source("train", "web")
    >>> docs.lengths.tolist(), docs[1]["tokens"].tolist()
    ([3, 0, 4], [])
    """
    if sum(each is not None for each in (documents, where, urls)) != 1:
        raise InputError("give one of documents, where and urls: which documents to delete")
    opened = open_converted(dataset, ": that tool may delete there")
    given: dict[str, list[ArrayLike]] = {}
    for each, numbers in (documents or {}).items():
        given.setdefault(opened[each].name, []).append(numbers)
    looked_at = [*given] if documents is not None else _looked_at(opened, sources)
    both = {each for name in looked_at for each in _sides(opened, name)}
    with leased(opened.store, both) as lease:
        opened = ConvertedDataset(lease.fenced(opened.store))
        _check_idle(opened.store)
        chosen: dict[str, Ints] = {name: np.empty(0, np.int64) for name in sorted(both)}
        for name in looked_at:
            docs = _source(opened, name)
            if documents is not None:
                found = _numbers_in(docs, given[name])
            elif where is not None:
                found = documents_where(docs, Expression(where, "--where"))
            else:
                found = documents_with(docs, {*(urls or ())})
            for side in _sides(opened, name):
                chosen[side] = np.union1d(chosen[side], found)
        deleted = _delete(opened, chosen, command, progress)
        for name in chosen:
            _remove_old_files(opened.store, name)
    return deleted


def _source(dataset: ConvertedDataset, name: str) -> ConvertedDocuments:
    found = dataset[name].base
    assert isinstance(found, ConvertedDocuments)
    return found


def _numbers_in(docs: ConvertedDocuments, given: Sequence[ArrayLike]) -> Ints:
    for array in map(np.asarray, given):
        if array.size and array.dtype.kind in "bf":  # a mask would be taken for 0 and 1
            raise InputError(
                f"documents of {docs.name} are given as {array.dtype}; expected their numbers, of "
                "a mask np.flatnonzero(mask)"
            )
    numbers = np.concatenate([np.asarray(each, object) for each in given])  # of any size
    for wrong in numbers[(numbers < 0) | (numbers >= len(docs))]:
        own = docs.name.partition("/")[2]
        raise InputError(f"no document {own}:{wrong}: {docs.name} has 0 to {len(docs) - 1:,}")
    return numbers.astype(np.int64)


def _looked_at(dataset: ConvertedDataset, sources: Sequence[str] | None) -> list[str]:
    """The names of some sources, of their split or of all splits; None for all."""
    for each in sources or ():
        if each not in dataset:
            _ = dataset[each]  # which says so
    return [
        name for name in dataset if sources is None or {name, name.partition("/")[2]} & {*sources}
    ]


def _sides(dataset: ConvertedDataset, name: str) -> set[str]:
    """The source, and the other side of its preference pairs."""
    return {name, other_side(name, dataset.manifest) or name}


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


def _remove_old_files(store: Store, source: str) -> None:
    """Remove shards and indexes of a source that have successors, or never came to be."""
    entry = manifest.read_manifest(store).sources[source]
    shards = {shard.name for shard in entry.all_shards}
    indexes = {stage.index for stage in entry.stages}
    for name in store.list(f"{source}/"):
        first, below, _ = name.removeprefix(f"{source}/").partition("/")
        if below and first.startswith("index") and first not in indexes:
            store.delete(f"{source}/{first}/")
        elif not below and first.endswith(".array_record") and name not in shards:
            store.delete(name)


def _delete(
    dataset: ConvertedDataset, chosen: Mapping[str, Ints], command: str, progress: Advance
) -> dict[str, manifest.Amount]:
    """Write the new files of sources, and last the manifest; returns what is deleted by that."""
    deleted, entries = dict[str, manifest.Amount](), dict[str, manifest.SourceEntry]()
    for name, numbers in chosen.items():
        index = _source(dataset, name).index
        new = np.setdiff1d(numbers, index.deleted.astype(np.int64))
        if len(new):
            deleted[name] = _amount(index, new)
            entries[name] = _rewritten(index, new, progress)
    if entries:
        # Before: one that is killed in between is noted again by the same command, not never.
        note_conversion(dataset.store, [*chosen], command)
        manifest.update_sources(dataset.store, lambda _: entries)
    return deleted


def _amount(index: SourceIndex, documents: AnyInts) -> manifest.Amount:
    tokens = int(index.stored[documents].sum(dtype=np.int64))
    return manifest.Amount(documents=len(documents), tokens=tokens)


def _rewritten(index: SourceIndex, new: Ints, progress: Advance) -> manifest.SourceEntry:
    """The entry of a source without some more documents; its files are written."""
    name, entry = index.name, index.entry
    number = len(entry.generations) + 1
    deleted = np.union1d(index.deleted, new.astype(np.uint64))
    shards: dict[str, list[manifest.ShardEntry]] = {}
    pages: dict[str, AnyArray] = {}
    statistics = dict(entry.statistics)
    for of in (index, *index.sides.values()):
        shards[of.prefix], pages[f"{of.prefix}page"], lost = _shards(of, new, number, progress)
        if of is index and "loss_tokens" in statistics:
            statistics["loss_tokens"] -= lost
    before = []
    for at in range(number):
        stage = replace(index, entry=entry.at(at))
        columns = _columns(stage, deleted, pages)
        mine = deleted[deleted < stage.entry.documents]
        columns["blanked"] = np.setdiff1d(mine, stage.deleted)
        folder = f"index-{at}-d{number}"
        sums = write_columns(index.store, f"{name}/{folder}", columns)
        was = stage.entry.as_generation()
        before.append(was.model_copy(update={"index": folder, "checksums": sums}))
    columns, folder = _columns(index, deleted, pages), f"index-{number}-d{number}"
    sums = write_columns(index.store, f"{name}/{folder}", columns | {"deleted": deleted})
    changed: dict[str, Any] = {
        "shards": shards[""],
        "side": {
            side: manifest.SideEntry(dtype=each.dtype, shards=shards[f"{side}."])
            for side, each in entry.side.items()
        },
        "generations": before,
        "index": folder,
        "checksums": sums,
        "fingerprint": digest([entry.fingerprint, "deleted", sums["deleted"]]),
        "deleted": _amount(index, deleted),
        "statistics": statistics,
    }
    return manifest.SourceEntry(**{**dict(entry), **changed})


def _columns(
    index: SourceIndex, deleted: NDArray[np.uint64], pages: Mapping[str, AnyArray]
) -> dict[str, AnyArray]:
    """The columns of a generation, without what they tell of documents."""
    mine = deleted[deleted < index.entry.documents]
    columns = {name: np.asarray(index.column(name)) for name in index.columns if name != "blanked"}
    if "kept" in columns:
        columns["kept"] = _without_kept(columns["kept"], columns["kept_end"], mine)
    for name in index.hashed:
        hashes = np.array(index.hashes(name))
        hashes[mine] = 0
        columns[name] = hashes.ravel()
    return columns | {name: each[: len(columns[name])] for name, each in pages.items()}


def _without_kept(kept: AnyArray, ends: AnyArray, deleted: AnyArray) -> AnyArray:
    """Lines of JSON of which some become `{}`, as long as they were: the others stay in place."""
    lines = np.array(kept)
    stop = ends[deleted].astype(np.int64) - 1  # before the end of the line
    start = np.where(deleted > 0, ends[deleted - (deleted > 0)], 0).astype(np.int64)
    lines[consecutive(start, stop - start)] = ord(" ")
    lines[start], lines[stop - 1] = ord("{"), ord("}")
    return lines


def _shards(
    index: SourceIndex, new: Ints, number: int, progress: Advance
) -> tuple[list[manifest.ShardEntry], AnyArray, int]:
    """Write those shards anew, of a source or a side array, that hold some documents.

    Returns:
        All shards, the checksums of their pages, and the targets with loss that the documents had.
    """
    entries, pages, before, lost = [], [index.column("page")[:0]], 0, 0
    for at, shard in enumerate(index.entry.shards):
        first, count = int(index.shard_starts[at]), page_count([shard])
        gone = new[slice(*np.searchsorted(new, [first, first + shard.documents]))] - first
        own = index.column("page")[before : before + count]
        if len(gone):
            lengths = np.asarray(index.stored[first : first + shard.documents])
            shard, own, loss = _without(index, shard, lengths, gone, number)
            lost += loss
        entries.append(shard)
        pages.append(own)
        before += count
        progress(at + 1, len(index.entry.shards))
    return entries, np.concatenate(pages), lost


def _without(
    index: SourceIndex, shard: manifest.ShardEntry, lengths: AnyArray, gone: Ints, number: int
) -> tuple[manifest.ShardEntry, AnyArray, int]:
    """Write a shard with zeros for some of its documents, past all caches of a host."""
    store, spec = index.store, index.spec
    data = b"".join(map(bytes, store.scan(shard.name)))
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        raise DatasetError(
            f"{store.url}/{shard.name} is damaged: restore it from a copy (jaxdata verify says "
            "what else is)"
        )
    stream = without_headers(np.frombuffer(data, np.uint8))
    spans = zip(*(each.tolist() for each in spec.record_spans(lengths)), strict=True)
    records = [stream[start : start + size].tobytes() for start, size in spans]
    ends, lost = np.append(0, np.cumsum(spec.records(lengths))).tolist(), 0
    for document in gone.tolist():
        own = range(ends[document], ends[document + 1])
        lost += _loss([records[at] for at in own], spec)
        for at in own:
            records[at] = bytes(len(records[at]))
    folder, _, file = shard.name.rpartition("/")
    stem, dot, ending = file.partition(".")
    name = f"{folder}/{re.sub(r'-d[0-9]+$', '', stem)}-d{number}{dot}{ending}"
    with store.create(name) as path:
        with ShardWriter(path, spec) as writer:
            writer.extend_records(records, lengths)
        entry = writer.entry(name)
    return entry, writer.pages, lost


def _loss(records: list[bytes], spec: RecordSpec) -> int:
    """Targets with loss of a document: all tokens but the first, less those masked."""
    tokens: list[int] = [len(each) // spec.item_with_mask for each in records]
    if not spec.masked:
        return sum(tokens) - 1
    masks = [each[count * spec.item :] for each, count in zip(records, tokens, strict=True)]
    return sum(b"".join(masks)[1:])
