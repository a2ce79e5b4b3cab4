"""Arrays with a number for every sample or document: made once, kept in a file, mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.sealed import digest
from jaxdata.format.storage import KEPT_ARRAYS, LocalStore, Store, kept_file, map_file

__all__ = ["KeptArrays", "keep"]

Shape = tuple[str, int]
"""(dtype, length)"""
Origin = tuple[Path, Sequence[Shape]]


class KeptArrays:
    """Some arrays; those of a file go to another process as its path."""

    def __init__(self, arrays: Sequence[NDArray[Any]], origin: Origin | None = None) -> None:
        self.arrays, self._origin = list(arrays), origin

    def __reduce__(self) -> tuple[Any, ...]:
        return (KeptArrays, (self.arrays,)) if self._origin is None else (_mapped, self._origin)


def keep(
    key: dict[str, Any],
    shapes: Sequence[Shape],
    build: Callable[[], Sequence[NDArray[Any]]],
    store: Store | None,
) -> KeptArrays:
    """The arrays that `build` makes, from the file where they are kept if it did so before.

    Args:
        key: everything that they depend on: plain JSON values.
        shapes: (dtype, length) of each, the largest numbers first so that all are aligned.
        build: makes the arrays.
        store: a dataset to keep the file in; where it cannot be written, or is remote, it is kept
            in the user's cache. None for documents in memory: nothing is kept.
    """
    if store is None:
        return KeptArrays(build())

    def write(path: Path) -> None:
        content = hashlib.sha256()
        with path.open("wb") as file:
            for array, (dtype, _) in zip(build(), shapes, strict=True):
                data = np.ascontiguousarray(array, dtype).data
                content.update(data)
                file.write(data)
            file.write(content.digest())

    beside = store if isinstance(store, LocalStore) else None
    name = f"plans/megatron-{digest(key)[:32]}{KEPT_ARRAYS}"
    return _mapped(kept_file(name, write, beside), shapes)


def _mapped(path: Path, shapes: Sequence[Shape]) -> KeptArrays:
    data, at = map_file(path), 0
    arrays: list[NDArray[Any]] = []
    for dtype, length in shapes:
        arrays.append(np.frombuffer(data, dtype, length, at))
        at += arrays[-1].nbytes
    return KeptArrays(arrays, (path, shapes))
