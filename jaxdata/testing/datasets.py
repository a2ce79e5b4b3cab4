"""Small datasets for tests, in the format of the converter."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import InputError, digest
from jaxdata.dataset import manifest
from jaxdata.dataset.index import ShardWriter, write_index
from jaxdata.dataset.opening import ConvertedDataset
from jaxdata.dataset.records import RecordSpec
from jaxdata.storage import Store, open_store


def distinct_documents(lengths: Iterable[int], first: int = 1) -> list[NDArray[np.int64]]:
    """Documents without repeated token ids, so that a target identifies its document and position.

    Args:
        lengths: tokens of each.
        first: the first id.

    >>> [document.tolist() for document in distinct_documents([2, 3])]
    [[1, 2], [3, 4, 5]]
    """
    documents = []
    for length in lengths:
        documents.append(np.arange(first, first + length))
        first += length
    return documents


def write_dataset(
    path: str | Path,
    sources: Mapping[str, Sequence[ArrayLike]],
    masks: Mapping[str, Sequence[ArrayLike]] | None = None,
    *,
    side: Mapping[str, Mapping[str, Sequence[ArrayLike]]] = MappingProxyType({}),
    record_tokens: int = 16_384,
    shard_documents: int = 1_000,
) -> ConvertedDataset:
    """Write documents as a dataset in the format of the converter, and open it.

    Args:
        path: the folder, or a URL that `open_dataset` takes.
        sources: `"<split>/<source>"` -> documents, each its token ids with EOD.
        masks: `"<split>/<source>"` -> loss masks, for the sources that have them.
        side: `"<split>/<source>"` -> name -> arrays of one value a token, all of one dtype.
        record_tokens: most tokens of a record.
        shard_documents: documents of a shard.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dataset = write_dataset(folder, {"train/web": [[1, 2, 0], [3, 0]]})
    ...     dataset.source("train", "web")[0]["tokens"].tolist()
    [1, 2, 0]
    """
    store = open_store(path)
    arrays = {name: [np.asarray(document) for document in sources[name]] for name in sources}
    for name, documents in arrays.items():
        empty = [number for number, document in enumerate(documents) if not len(document)]
        if empty:
            raise InputError(f"{name}: document {empty[0]} is empty; EOD at least is expected")
    vocab = 1 + max((int(d.max()) for ds in arrays.values() for d in ds), default=0)
    dtype: Literal["uint16", "uint32"] = "uint16" if vocab <= 65_536 else "uint32"
    entries = {}
    for name, documents in arrays.items():
        own = masks.get(name) if masks else None
        spec = RecordSpec(dtype, own is not None, record_tokens)
        given = documents, own, side.get(name, {}), spec, shard_documents
        entries[name] = _write_source(store, name, *given)
    tokenizer = manifest.TokenizerEntry(
        kind="bytes", name="toy", files={}, vocab_size=vocab, eod_id=0, bos_id=None, pad_id=None
    )
    made = manifest.Manifest(
        tokenizer=tokenizer, dtype=dtype, record_tokens=record_tokens, sources=entries
    )
    manifest.update_manifest(store, lambda _: made)
    return ConvertedDataset(store)


def _write_source(
    store: Store,
    name: str,
    documents: list[NDArray[Any]],
    masks: Sequence[Any] | None,
    side: Mapping[str, Sequence[ArrayLike]],
    spec: RecordSpec,
    each: int,
) -> manifest.SourceEntry:
    columns, sides, dtypes = dict[str, NDArray[Any]](), {}, {}

    def written(arrays: Sequence[Any], spec: RecordSpec, of: str = "") -> list[Any]:
        """The shards of some arrays; the checksums of their pages become a column."""
        shards, pages = [], [np.empty(0, np.uint32)]
        for start in range(0, len(arrays), each):
            part = slice(start, start + each)
            shard = f"{name}/{start // each:05}-00000{of}.array_record"
            with store.create(shard) as file:
                with ShardWriter(file, spec) as writer:
                    own = None if masks is None or not spec.masked else masks[part]
                    writer.extend(arrays[part], own)
                shards.append(writer.entry(shard))
                pages.append(writer.pages)
        columns[f"{of}.page".removeprefix(".")] = np.concatenate(pages)
        return shards

    shards = written(documents, spec)
    for of, given in side.items():
        kind: Any = np.asarray(given[0]).dtype.name
        found = written(given, spec.of_side(kind), f".{of}")
        sides[of], dtypes[of] = manifest.SideEntry(dtype=kind, shards=found), kind
    lengths = np.array([len(document) for document in documents], np.uint32)
    columns["length"], columns["origin_file"] = lengths, np.zeros(len(lengths), np.uint32)
    columns["origin_row"] = np.arange(len(lengths)).astype(np.uint64)
    checksums = write_index(store, f"{name}/index", columns, spec, dtypes)
    return manifest.SourceEntry(
        documents=len(lengths),
        tokens=int(lengths.sum()),
        masked=spec.masked,
        shards=shards,
        fingerprint=digest([shard.sha256 for shard in shards]),
        inputs=["memory"],
        checksums=checksums,
        parameters={},
        statistics={},
        side=sides,
    )
