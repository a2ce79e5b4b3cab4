"""What is computed once of documents: kept in the dataset or the user's cache, found by its key.

Small ones are read and verified whole. Large ones, with a number for every sample or document, are
memory-mapped, and only `jaxdata verify` reads their checksum.
"""

import hashlib
import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError, digest
from jaxdata.base.ragged import AnyArray, Ints
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.manifest import CHECKSUM_BYTES, checked_bytes, with_checksum
from jaxdata.storage import LocalStore, Store
from jaxdata.storage.cached_files import CACHED_ARRAYS, find_kept, keep
from jaxdata.storage.contract import MOST_READ
from jaxdata.storage.local import map_file

Compute = Callable[[], Ints]
Holds = Callable[[Ints], bool]
"""Makes a table; says whether one that was kept can be that of the documents."""
Shape = tuple[str, int | None]
"""(dtype, length); None for one that only the computation knows, the same for all that have it"""
Origin = tuple[Path, Sequence[Shape]]


def _name(key: dict[str, Any], documents: Documents, prefix: str, suffix: str) -> str:
    """The name of the file of a key."""
    stated = documents.stated_lengths
    if stated:  # others may claim the same fingerprint
        key = key | {"lengths": stated.sha256}
    return f"plans/{prefix}{digest(key)[:32]}{suffix}"


def cached_table(documents: Documents, key: dict[str, Any], compute: Compute, holds: Holds) -> Ints:
    """A small array that `compute` makes, from the cache if it was made before.

    Args:
        documents: what it was computed from. It is kept in their dataset; if that is read-only, in
            the user's cache. Nothing is kept of documents in memory.
        key: everything else that it depends on: plain JSON values.
        compute: makes it.
        holds: whether a table can be that of the documents.
    """
    if documents.store is None:
        return compute()
    return kept_table(documents.store, _name(key, documents, "", ".npy"), compute, holds)


def kept_table(
    beside: Store, name: str, compute: Compute, holds: Holds, most: int | None = MOST_READ
) -> Ints:
    """The same of what has this name `beside` the data; one of more than `most` bytes is none."""
    for place, kept in find_kept(name, beside):
        # A file as large as no plan, a damaged one, or one whose header says what it likes.
        with suppress(DatasetError, OSError, ValueError, EOFError, MemoryError):
            content = checked_bytes(place.read(kept, most) or b"") or b""
            found: Ints = np.load(io.BytesIO(content), allow_pickle=False)
            if found.dtype == np.int64 and holds(found):
                return found
    table = compute()
    with suppress(OSError, ValueError):  # it is computed again next time
        keep(name, beside, lambda place, free: place.write(free, _encode(table)))
    return table


def _encode(table: Ints) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, table, allow_pickle=False)
    return with_checksum(buffer.getvalue())


class CachedArrays:
    """Some arrays; those of a file are sent to another process as its path."""

    def __init__(self, arrays: Sequence[AnyArray], origin: Origin | None = None) -> None:
        self.arrays, self._origin = list(arrays), origin

    def damaged(self, what: str) -> DatasetError:
        """The error for arrays that cannot be `what` they should be."""
        where = self._origin[0] if self._origin else "memory"
        return DatasetError(
            f"{where} is damaged: it is not {what}; delete it; it is computed again when needed"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (CachedArrays, (self.arrays,)) if self._origin is None else (_opened, self._origin)


def cached_arrays(
    documents: Documents,
    key: dict[str, Any],
    compute: Callable[[], Sequence[AnyArray]],
    shapes: Sequence[Shape],
    prefix: str,
) -> CachedArrays:
    """Large arrays that `compute` makes, mapped from the cache.

    Args:
        documents: as of `cached_table`; a remote dataset keeps nothing, the user's cache does.
        key: as of `cached_table`.
        compute: makes the arrays.
        shapes: (dtype, length) of each, the widest dtype first so that all are aligned.
        prefix: how the name of the file begins.
    """
    store = documents.store
    if store is None:
        return CachedArrays(compute())

    beside = store if isinstance(store, LocalStore) else None
    name = _name(key, documents, prefix, CACHED_ARRAYS)
    for place, kept in find_kept(name, beside):
        with suppress(DatasetError):
            return _opened(Path(place.url) / kept, shapes)

    def write(place: Store, free: str) -> None:
        content = hashlib.sha256()
        with place.create(free) as path, path.open("wb") as file:
            for array, (dtype, _) in zip(compute(), shapes, strict=True):
                data = np.ascontiguousarray(array, dtype).data
                content.update(data)
                file.write(data)
            file.write(content.digest())

    place, kept = keep(name, beside, write)
    return _opened(Path(place.url) / kept, shapes)


def _opened(path: Path, shapes: Sequence[Shape]) -> CachedArrays:
    """The arrays of a file; raises DatasetError if it has another size."""
    known = sum(np.dtype(dtype).itemsize * (length or 0) for dtype, length in shapes)
    unknown = sum(np.dtype(dtype).itemsize for dtype, length in shapes if length is None)
    left = path.stat().st_size - CHECKSUM_BYTES - known
    found = left // max(unknown, 1)
    if left < 0 or found * unknown != left:
        raise DatasetError(f"{path} is damaged: delete it; it is computed again when needed")
    data, at = map_file(path), 0
    arrays: list[AnyArray] = []
    for dtype, length in shapes:
        arrays.append(np.frombuffer(data, dtype, found if length is None else length, at))
        at += arrays[-1].nbytes
    return CachedArrays(arrays, (path, shapes))
