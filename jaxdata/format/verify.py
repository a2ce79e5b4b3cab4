"""Whether a dataset is, to the last bit, what its manifest says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

from jaxdata.format.damage import Damage, damage_of_index, damage_of_shard, damage_of_tokenizer
from jaxdata.format.index import SourceIndex
from jaxdata.format.manifest import MANIFEST, Manifest, SourceEntry, read_manifest
from jaxdata.format.storage import Store, open_store
from jaxdata.processes import available_cores
from jaxdata.progress import Advance

__all__ = ["Damage", "Verification", "verify"]

_REMEDY = (
    "restore these files from a copy; or convert the same input into another --output and take "
    "them from there: the same bytes come out"
)


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        dataset: where it is.
        sources: sources of all splits that the manifest has.
        shards: their files.
        documents: documents in them.
        tokens: tokens of those, with EOD.
        bytes: bytes of the shards.
        damage: what is not as it should be; nothing where the dataset is whole.
        unfinished: sources that a conversion has begun and not finished; no damage.
    """

    dataset: str
    sources: int
    shards: int
    documents: int
    tokens: int
    bytes: int
    damage: tuple[Damage, ...]
    unfinished: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"whole": self.whole} | asdict(self)

    def __str__(self) -> str:
        """Return a line for each damaged file, what to do, and a line for the whole."""
        lines = [f"DAMAGED {one}" for one in self.damage]
        lines += [_REMEDY] if self.damage else []
        lines += [
            f"unfinished: {name}; the command that began it finishes it" for name in self.unfinished
        ]
        counts = (
            f"{self.sources:,} sources, {self.shards:,} shards, {self.documents:,} documents, "
            f"{self.tokens:,} tokens, {self.bytes / 1e6:,.1f} MB"
        )
        found = f"{len(self.damage)} damaged" if self.damage else "whole"
        return "\n".join([*lines, f"{self.dataset}: {found} ({counts})"])


def verify(
    dataset: str | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: Advance | None = None,
) -> Verification:
    """Compare every file of a dataset with its checksum, and the index with the records.

    Each shard is read once, from its beginning to its end: its bytes must have the checksum that
    the manifest says, and each of its records the size that follows from the index. The index must
    add up to the manifest's numbers.

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
    checks = list(_checks(store, manifest))
    done, total = 0, sum(size for size, _ in checks)
    with ThreadPoolExecutor(threads or available_cores()) as pool:
        running = {pool.submit(check): size for size, check in checks}
        try:
            for finished in as_completed(running):
                done += running[finished]
                if progress:
                    progress(done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return _verification(store, manifest, list(running))


def _verification(
    store: Store, manifest: Manifest, finished: list[Future[list[Damage]]]
) -> Verification:
    entries = manifest.sources.values()
    shards = [shard for entry in entries for shard in entry.shards]
    return Verification(
        dataset=store.url,
        sources=len(entries),
        shards=len(shards),
        documents=sum(shard.documents for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        damage=tuple(dict.fromkeys(one for future in finished for one in future.result())),
        unfinished=tuple(_unfinished(store, manifest)),
    )


_Check = Callable[[], list[Damage]]


def _checks(store: Store, manifest: Manifest) -> Iterator[tuple[int, _Check]]:
    """Give (bytes it reads of shards, what to do) of every check."""
    yield 0, lambda: list(damage_of_tokenizer(store, manifest.tokenizer))
    for name, entry in manifest.sources.items():
        yield from _source_checks(SourceIndex(store, name, entry, manifest.layout(name)))


def _source_checks(index: SourceIndex) -> Iterator[tuple[int, _Check]]:
    yield 0, lambda: [*_wrong_sums(index.name, index.entry), *damage_of_index(index)]
    for number, shard in enumerate(index.entry.shards):
        yield shard.bytes, lambda number=number: list(damage_of_shard(index, number))  # type: ignore[misc]


def _wrong_sums(name: str, entry: SourceEntry) -> Iterator[Damage]:
    for what in ("documents", "tokens"):
        says, has = getattr(entry, what), sum(getattr(shard, what) for shard in entry.shards)
        if says != has:
            yield Damage(MANIFEST, f"{name} has {says:,} {what}, its shards together {has:,}")


def _unfinished(store: Store, manifest: Manifest) -> list[str]:
    begun = {
        name.removesuffix("/work/parameters.json")
        for name in store.list()
        if name.endswith("/work/parameters.json")
    }
    return sorted(begun - manifest.sources.keys())
