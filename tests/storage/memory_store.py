"""A store in memory (see `Store`), whose content tests change and see behind its back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError


class MemoryStore:
    """Files and arrays by name; what is `failing` is raised by every change."""

    def __init__(self, files: dict[str, bytes] | None = None, url: str = "memory:") -> None:
        self.url, self.local = url, True
        self.files = {} if files is None else files
        self.arrays: dict[str, NDArray[Any]] = {}
        self.deleted: list[str] = []
        self.sweeps = 0
        self.failing: Exception | None = None
        self._fence: Callable[[], None] | None = None

    def _allowed(self) -> None:
        if self._fence:
            self._fence()
        if self.failing:
            raise self.failing

    def fenced(self, fence: Callable[[], None]) -> MemoryStore:
        same = MemoryStore(self.files, self.url)
        same.arrays, same._fence = self.arrays, fence
        return same

    def read(self, name: str, most: int | None = None) -> bytes | None:
        return self.files.get(name)

    def exists(self, name: str) -> bool:
        return name in self.files

    def write(self, name: str, data: bytes) -> None:
        self._allowed()
        self.files[name] = data

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        self._allowed()
        data = change(self.files.get(name))
        if data is None:
            self.files.pop(name, None)
        else:
            self.files[name] = data

    def list(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.files if name.startswith(prefix))

    def delete(self, prefix: str) -> None:
        self._allowed()
        self.deleted.append(prefix)
        for name in list(self.files):
            if name == prefix or (prefix.endswith("/") and name.startswith(prefix)):
                del self.files[name]

    def sweep(self, *, below: bool = True) -> None:
        self._allowed()
        self.sweeps += 1

    def write_array(self, name: str, array: NDArray[Any]) -> str:
        self._allowed()
        self.arrays[name] = array
        little = array.astype(array.dtype.newbyteorder("<"))
        return hashlib.sha256(little.tobytes()).hexdigest()

    def read_array(
        self,
        name: str,
        dtype: type[np.generic] | None = None,
        size: int | None = None,
        sha256: str | None = None,
    ) -> NDArray[Any]:
        found = self.arrays[name]
        if found.dtype != dtype or size not in (None, len(found)):
            raise DatasetError(f"{name} has {len(found)} {found.dtype}, expected {size} {dtype}")
        return found
