"""Whether a dataset is, to the last bit, what its manifest says.

The manifest, which opening checks, has a checksum of every other file. Many files are compared at
once, a thread a core.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from jaxdata.base.errors import DatasetError
from jaxdata.base.processes import available_cores
from jaxdata.base.progress import Advance
from jaxdata.base.threads import Threads
from jaxdata.dataset.index import Columns, SourceIndex
from jaxdata.dataset.lease import unfinished_conversions
from jaxdata.dataset.manifest import Manifest, ends_with_checksum, read_manifest
from jaxdata.dataset.views.kept_documents import views_of
from jaxdata.storage import Store, open_store
from jaxdata.storage.cached_files import CACHED_ARRAYS
from jaxdata.storage.contract import Kind
from jaxdata.storage.zarr import scan_array

_DIFFERS = "its content differs from its checksum"


class Damage(NamedTuple):
    """One damaged file."""

    file: str
    """its name in the dataset; for a column, the folder of its chunks"""
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


class Check(NamedTuple):
    """A file to be compared with its checksum."""

    file: str
    problem: Callable[[], str | None]
    """reads it and says what is wrong, None for nothing; raises where it cannot be read"""
    size: int = 0
    """bytes, of files that count as progress"""

    def damage(self) -> Damage | None:
        """What is wrong with the file, if anything."""
        try:
            problem = self.problem()
        except OSError as error:
            problem = f"it cannot be read: {error.strerror or error}"
        except (DatasetError, ValueError) as error:
            problem = str(error)
        return None if problem is None else Damage(self.file, problem)


def file_check(store: Store, name: str, sha256: str, size: int | None = None) -> Check:
    """Compare a file, which may be known to have `size` bytes, with its checksum."""

    def problem() -> str | None:
        content, read = hashlib.sha256(), 0
        for buffer in store.scan(name):
            content.update(buffer)
            read += len(buffer)
            if size is not None and read > size:
                return f"it has more than {size:,} bytes"
        if size is not None and read != size:
            return f"it has {read:,} bytes, not {size:,}"
        return None if content.hexdigest() == sha256 else _DIFFERS

    return Check(name, problem, size or 0)


def array_check(store: Store, name: str, sha256: str, kind: Kind) -> Check:
    """Compare an array of this kind with the checksum of its values."""

    def problem() -> str | None:
        content = hashlib.sha256()
        for buffer in scan_array(store, name, kind):
            content.update(buffer)
        return None if content.hexdigest() == sha256 else _DIFFERS

    return Check(name, problem)


def _plan_check(store: Store, name: str) -> Check:
    """Compare a file that was computed from the others with the checksum at its end."""

    def problem() -> str | None:
        try:
            whole = ends_with_checksum(store.scan(name))
        except DatasetError:
            whole = not store.exists(name)  # deleted meanwhile
        return None if whole else f"{_DIFFERS}; delete it: it is computed again when needed"

    return Check(name, problem)


def _column_checks(columns: Columns) -> Iterator[Check]:
    for name, kind in columns.columns.items():
        sha256 = columns.entry.checksums[name]
        yield array_check(columns.store, columns.file(name), sha256, kind)


def damage_of_columns(columns: Columns) -> tuple[Damage, ...]:
    """Compare every column of an index, or of a view, with its checksum."""
    return run_checks(_column_checks(columns), threads=1)


def run_checks(
    checks: Iterable[Check], threads: int | None = None, progress: Advance | None = None
) -> tuple[Damage, ...]:
    """Run all checks; returns the damage that they find, in their order."""
    checks = list(checks)
    done, total = 0, sum(check.size for check in checks)
    with Threads(threads or available_cores()) as pool:
        futures = {pool.submit(check.damage): check for check in checks}
        for future in pool.ended(futures):
            done += futures[future].size
            if progress:
                progress(done, total)
        return tuple(damage for future in futures if (damage := future.result()))


@dataclass(frozen=True)
class Verification:
    """The result of checking files.

    Attributes:
        path: their folder or URL.
        counts: what they hold according to their manifest: shards, bytes of shards, ….
        damage: the damaged files.
        remedy: what to do about damage.
        unfinished: sources whose conversion is not finished; this is no damage.
    """

    path: str
    counts: dict[str, int]
    damage: tuple[Damage, ...]
    remedy: str
    unfinished: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.damage

    def as_json(self) -> dict[str, Any]:
        damage = [each._asdict() for each in self.damage]
        return {"whole": self.whole} | asdict(self) | {"damage": damage}

    def __str__(self) -> str:
        """A line for each damaged file, what to do, and a summary."""
        lines = [f"DAMAGED {one}" for one in self.damage]
        lines += [self.remedy] if self.damage else []
        again = "run the same conversion again to finish it"
        lines += [f"unfinished: {name}; {again}" for name in self.unfinished]
        counts = [f"{n:,} {what}" for what, n in self.counts.items() if what != "bytes"]
        size = f"{self.counts['bytes'] / 1e6:,.1f} MB"
        found = f"{len(self.damage)} damaged" if self.damage else "whole"
        return "\n".join([*lines, f"{self.path}: {found} ({', '.join([*counts, size])})"])


def totals(shards: Iterable[Any], *names: str) -> dict[str, int]:
    """The sums of some fields of shards, by name."""
    entries = list(shards)
    return {name: sum(getattr(entry, name) for entry in entries) for name in names}


def verify(
    dataset: str | os.PathLike[str], *, threads: int | None = None, progress: Advance | None = None
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
    manifest, names = read_manifest(store), store.list()
    entries = manifest.sources.values()
    shards = [shard for entry in entries for shard in entry.shards]
    every = [shard for entry in entries for shard in entry.all_shards]
    counts = {"sources": len(entries), "shards": len(every)}
    return Verification(
        path=store.url,
        counts=counts | totals(shards, "documents", "tokens") | totals(every, "bytes"),
        damage=run_checks(_checks(store, manifest, names), threads, progress),
        remedy="restore these files from a copy; or convert the same input into another --output "
        "and copy them from there: the bytes are the same",
        unfinished=tuple(sorted(unfinished_conversions(names) - manifest.sources.keys())),
    )


def _checks(store: Store, manifest: Manifest, names: list[str]) -> Iterator[Check]:
    """Of all files; of an index also those of earlier generations, which runs may still read."""
    for name, sha256 in (manifest.tokenizer.checksums | manifest.files).items():
        yield file_check(store, name, sha256)
    for name in names:
        if name.startswith("plans/") and name.endswith(CACHED_ARRAYS):
            yield _plan_check(store, name)
    for source, entry in manifest.sources.items():
        for generation in range(len(entry.stages)):
            spec = manifest.record_spec(source)
            yield from _column_checks(SourceIndex(store, source, entry.at(generation), spec))
    for view in views_of(store, manifest):
        yield from _column_checks(view)
    for entry in manifest.sources.values():
        for shard in entry.all_shards:
            yield file_check(store, shard.name, shard.sha256, shard.bytes)
