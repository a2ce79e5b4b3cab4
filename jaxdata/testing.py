"""Proofs that a run can make of its own data, and small datasets to make them on.

What jaxdata's own tests stand on, for the tests of a user's pipeline as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.feed.loader import Loader
from jaxdata.format.index import write_index
from jaxdata.format.manifest import (
    Manifest,
    ShardEntry,
    SourceEntry,
    TokenizerEntry,
    digest,
    update_manifest,
)
from jaxdata.format.records import RecordLayout
from jaxdata.format.shards import ShardWriter
from jaxdata.format.storage import Store, open_store
from jaxdata.rows.dataset import Dataset, open_dataset
from jaxdata.rows.documents import Documents

__all__ = [
    "assert_exactly_once",
    "assert_resumes_everywhere",
    "assert_same_batches",
    "distinct_documents",
    "write_dataset",
]

Batch = Mapping[str, Any]


def distinct_documents(lengths: Iterable[int], first: int = 1) -> list[NDArray[np.int64]]:
    """Documents in which no token id comes twice, so that a target names its document and place.

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
    record_tokens: int = 16_384,
    shard_documents: int = 1_000,
) -> Dataset:
    """Write documents as a dataset on disk, as the converter would, and open it.

    Args:
        path: the folder, or a URL that `open_dataset` takes.
        sources: `"<split>/<source>"` -> documents, each its token ids with EOD.
        masks: likewise, the loss masks of the sources that have them.
        record_tokens: most tokens of a record.
        shard_documents: documents of a shard.
    """
    store = open_store(path)
    arrays = {name: [np.asarray(document) for document in sources[name]] for name in sources}
    vocab = 1 + max((int(d.max()) for ds in arrays.values() for d in ds if len(d)), default=0)
    dtype: Literal["uint16", "uint32"] = "uint16" if vocab <= 65_536 else "uint32"
    entries = {}
    for name, documents in arrays.items():
        layout = RecordLayout(dtype, name in (masks or {}), record_tokens)
        own: Sequence[Any] = (masks or {}).get(name) or [None] * len(documents)
        shards = _write_shards(
            store, name, list(zip(documents, own, strict=True)), layout, shard_documents
        )
        lengths = np.array([len(document) for document in documents], np.uint32)
        entries[name] = _write_entry(store, name, lengths, shards, layout)
    tokenizer = TokenizerEntry(
        kind="bytes", name="toy", files={}, vocab_size=vocab, eod_id=0, bos_id=None, pad_id=None
    )
    manifest = Manifest(
        tokenizer=tokenizer, dtype=dtype, record_tokens=record_tokens, sources=entries
    )
    update_manifest(store, lambda _: manifest)
    return open_dataset(path)


def _write_shards(
    store: Store, name: str, documents: list[Any], layout: RecordLayout, each: int
) -> list[ShardEntry]:
    shards = []
    for start in range(0, len(documents), each):
        shard = f"{name}/{start // each:05}-00000.array_record"
        with store.create(shard) as file:
            with ShardWriter(file, layout) as writer:
                for tokens, mask in documents[start : start + each]:
                    writer.add(tokens, mask)
            shards.append(writer.entry(shard))
    return shards


def _write_entry(
    store: Store,
    name: str,
    lengths: NDArray[np.uint32],
    shards: list[ShardEntry],
    layout: RecordLayout,
) -> SourceEntry:
    split, _, source = name.partition("/")
    write_index(
        store,
        split,
        source,
        lengths=lengths,
        origin_file=np.zeros(len(lengths), np.uint32),
        origin_row=np.arange(len(lengths)).astype(np.uint64),
        layout=layout,
    )
    return SourceEntry(
        documents=len(lengths),
        tokens=int(lengths.sum()),
        masked=layout.masked,
        shards=shards,
        fingerprint=digest([shard.sha256 for shard in shards]),
        inputs=["memory"],
        parameters={},
        statistics={},
    )


def assert_exactly_once(
    batches: Iterable[Batch], documents: Sequence[Documents], epochs: int = 1
) -> int:
    """The conservation law: every token but the first of each document is a target just once.

    Counts (input, target) pairs with loss in what was delivered, and compares with the documents.
    Where token ids are distinct (:func:`distinct_documents`) that is each token; in real text
    each pair as often as it occurs. Stored masks are heeded.

    Args:
        batches: all that was delivered, the parts of all hosts.
        documents: the sources, as `dataset.source(...)` gives them.
        epochs: how often each token is expected.

    Returns:
        The number of targets with loss.
    """
    delivered = _sorted([_pairs_of_batch(batch) for batch in batches])
    once = [pairs for source in documents for pairs in _pairs_of_source(source)]
    expected = _sorted(once * epochs)
    if not np.array_equal(delivered, expected):
        missing, extra = _difference(expected, delivered), _difference(delivered, expected)
        raise AssertionError(
            f"{len(expected)} targets expected exactly {epochs}x, {len(delivered)} delivered: "
            f"{len(missing)} missing (e.g. {_show(missing)}), {len(extra)} too often "
            f"(e.g. {_show(extra)})"
        )
    return len(delivered)


def assert_same_batches(one: Iterable[Batch], other: Iterable[Batch]) -> int:
    """Two streams of batches are equal to the bit; returns how many batches there are."""
    count = 0
    for count, (a, b) in enumerate(zip(one, other, strict=True), 1):
        if set(a) != set(b):
            raise AssertionError(f"batch {count - 1}: keys {sorted(a)} against {sorted(b)}")
        for name in a:
            x, y = np.asarray(a[name]), np.asarray(b[name])
            if x.dtype != y.dtype or not np.array_equal(x, y):
                raise AssertionError(f"batch {count - 1}: {name} differs")
    return count


def assert_resumes_everywhere(
    loader_factory: Callable[[], Loader], *, tail: int | None = None
) -> int:
    """Restoring at every step gives the same state and the same batches from there on.

    Args:
        loader_factory: makes the loader anew, at its first row.
        tail: batches to compare after each restore; None for all (quadratic in the steps).

    Returns:
        The number of steps at which it was restored.
    """
    loader = loader_factory()
    states, batches = [loader.get_state()], []
    for batch in loader:
        batches.append(batch)
        states.append(json.loads(json.dumps(loader.get_state())))
    for step, state in enumerate(states):
        restored = loader_factory()
        restored.set_state(state)
        if restored.get_state() != state:
            raise AssertionError(f"step {step}: the state changed in restoring it")
        expected = batches[step:] if tail is None else batches[step : step + tail]
        assert_same_batches(expected, [next(restored) for _ in expected])
        restored.close()
    return len(states)


def _pairs_of_batch(batch: Batch) -> NDArray[np.int64]:
    loss = np.asarray(batch["loss_mask"], bool)
    return _pairs(np.asarray(batch["inputs"])[loss], np.asarray(batch["targets"])[loss])


def _pairs_of_source(source: Documents) -> Iterable[NDArray[np.int64]]:
    for number in range(len(source)):
        item = source[number]
        pairs = _pairs(item["tokens"][:-1], item["tokens"][1:])
        yield pairs[item["loss_mask"][1:]] if source.masked else pairs


def _pairs(inputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.int64]:
    return (inputs.astype(np.int64) << 32) | targets.astype(np.int64)


def _sorted(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))


def _difference(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Elements that `a` has more often than `b`."""
    values, counts = np.unique(a, return_counts=True)
    place = np.searchsorted(b, values, side="right") - np.searchsorted(b, values)
    return np.asarray(values[counts > place], np.int64)


def _show(pairs: NDArray[np.int64]) -> str:
    return ", ".join(f"{pair >> 32}->{pair & 0xFFFFFFFF}" for pair in pairs[:3].tolist()) or "none"
