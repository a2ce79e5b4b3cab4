"""Columns: arrays side by side in a folder of a dataset, each with its checksum in the manifest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.storage import Store


class Columns(ABC):
    """The columns of an index, or of a view."""

    store: Store

    @property
    @abstractmethod
    def checksums(self) -> Mapping[str, str]:
        """Column -> sha256 of its values, where it is known."""

    @property
    @abstractmethod
    def columns(self) -> dict[str, tuple[type[np.generic], int | None]]:
        """Name -> (dtype, entries) of each; None if only the column itself says how many."""

    @abstractmethod
    def file(self, column: str) -> str:
        """The folder of the chunks of a column."""

    def _column(self, name: str) -> NDArray[Any]:
        dtype, size = self.columns[name]
        sha256 = self.checksums.get(name)
        return self.store.read_array(self.file(name), dtype, size, sha256=sha256)


def write_columns(store: Store, folder: str, columns: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Write arrays below a folder; returns their checksums."""
    return {name: store.write_array(f"{folder}/{name}", each) for name, each in columns.items()}
