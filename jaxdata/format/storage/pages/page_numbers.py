"""The pages of some files: their numbers, names, bytes and checksums."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.storage.pages.page_folder import PAGE_BYTES
from jaxdata.ragged import Ints

_PAGES_A_FILE = 2**24
Checksums = Callable[[], NDArray[np.uint32] | None]
"""The CRC-32 of every page of all files; None where they are not known."""


class StoredFile(NamedTuple):
    """What is known of a file before it is read."""

    name: str
    size: int
    sha256: str


class PageNumbers:
    """A number for each page of some files in a bucket."""

    def __init__(self, url: str, files: Sequence[StoredFile], checksums: Checksums) -> None:
        self._url, self._files, self._read_checksums = url, files, checksums
        self._first = np.cumsum([0, *(-(-file.size // PAGE_BYTES) for file in files)])

    @cached_property
    def _checksums(self) -> NDArray[np.uint32] | None:
        return self._read_checksums()

    def of(self, file: Ints, start: Ints) -> Ints:
        """The page that a byte of a file lies in."""
        return file * _PAGES_A_FILE + start // PAGE_BYTES

    def range(self, number: int) -> tuple[int, int, int]:
        """The file of a page, its first byte and the byte after its last."""
        file, page = divmod(number, _PAGES_A_FILE)
        start = page * PAGE_BYTES
        return file, start, min(start + PAGE_BYTES, self._files[file].size)

    def name(self, number: int) -> str:
        """What the cache calls a page: it is the same in every copy of the file."""
        file, start, stop = self.range(number)
        return f"{self._files[file].sha256[:32]}/{start}-{stop}"

    def is_whole(self, number: int, data: bytes) -> bool:
        """Whether a page is what was written, as far as that is known."""
        file, page = divmod(number, _PAGES_A_FILE)
        known = self._checksums
        return known is None or zlib.crc32(data) == known[self._first[file] + page]

    def damage(self, number: int) -> DatasetError:
        """The error for a page that is not."""
        file, start, stop = self.range(number)
        return DatasetError(
            f"{self._url}/{self._files[file].name}: bytes {start:,} to {stop:,} are not what was "
            f"written: restore it from a copy; jaxdata verify {self._url} names what is damaged"
        )
