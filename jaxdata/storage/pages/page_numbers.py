"""The pages of some files: their numbers, names, bytes and checksums."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.ragged import Ints
from jaxdata.storage.pages.page_folder import PAGE_BYTES, key_of

_PAGES_A_FILE = 2**24
Checksums = Callable[[], NDArray[np.uint32] | None]
"""The CRC-32 of every page of all files; None where they are not known."""


class StoredFile(NamedTuple):
    """What is known of a file before it is read."""

    name: str
    size: int
    version: str
    """what no other content has: its sha256, or what the bucket calls this version of it"""
    sha256: str | None = None


class PageRanges(NamedTuple):
    """Ranges of bytes of files; (ranges,) each."""

    file: Ints
    start: Ints
    stop: Ints
    home: NDArray[np.bool_]
    """whether the page of a range is worth fetching for it, where documents are read in any
    order"""

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return int((self.stop - self.start).sum())


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

    def file_of(self, number: int) -> int:
        """The file that a page is of."""
        return number // _PAGES_A_FILE

    def of_file(self, file: int) -> list[int]:
        """All pages of a file."""
        first, stop = self._first[file : file + 2].tolist()
        return [file * _PAGES_A_FILE + page for page in range(stop - first)]

    def range(self, number: int) -> tuple[int, int, int]:
        """The file of a page, its first byte and the byte after its last."""
        file, page = divmod(number, _PAGES_A_FILE)
        start = page * PAGE_BYTES
        return file, start, min(start + PAGE_BYTES, self._files[file].size)

    @property
    def count(self) -> int:
        """Pages of all files."""
        return int(self._first[-1])

    def size_of(self, number: int) -> int:
        """How many a page has."""
        _, start, stop = self.range(number)
        return stop - start

    def label(self, number: int) -> tuple[str, str]:
        """The checksum of the file of a page, and what `PageFolder.label` says of it."""
        file = self._files[number // _PAGES_A_FILE]
        return file.version, f"{self._url}\n{file.name}"

    def name(self, number: int) -> str:
        """What the cache calls a page: it is the same in every copy of the file."""
        file, start, stop = self.range(number)
        return f"{key_of(self._files[file].version)}/{start}-{stop}"

    def sha256_of(self, file: int) -> str | None:
        """The checksum of a file."""
        return self._files[file].sha256

    @property
    def only_of_files(self) -> bool:
        """Whether there are checksums of files, and none of pages."""
        return self._checksums is None and all(file.sha256 for file in self._files)

    def is_whole(self, number: int, data: bytes) -> bool:
        """Whether a page is what was written, as far as that is known."""
        file, page = divmod(number, _PAGES_A_FILE)
        known = self._checksums
        return known is None or zlib.crc32(data) == known[self._first[file] + page]

    def damage(self, number: int) -> DatasetError:
        """The error for a page that is not."""
        file, start, stop = self.range(number)
        return self._damage(file, f"bytes {start:,} to {stop:,} are not what was written")

    def file_damage(self, file: int) -> DatasetError:
        """The error for a file whose pages together are not."""
        said = "its bytes, of which some were read in this run, are not those that were written"
        return self._damage(file, said)

    def _damage(self, file: int, said: str) -> DatasetError:
        return DatasetError(
            f"{self._url}/{self._files[file].name}: {said}: restore it from a copy; jaxdata verify "
            f"{self._url} names what is damaged"
        )
