"""Files whose pages have no checksums, as in older datasets: compared when all pages are here."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

from jaxdata.base.errors import DatasetError
from jaxdata.storage.pages.page_folder import PageFolder
from jaxdata.storage.pages.page_numbers import PageNumbers

_FOOTER = 1 / 16
"""of a file at most, and a page: its last pages hold no records, and no row needs them"""


class WholeFiles:
    """The files of which this process has fetched pages; each is compared once.

    Args:
        pages: of the files.
        folder: where pages are.
        fetch: gets a page without keeping it.
    """

    def __init__(self, pages: PageNumbers, folder: PageFolder, fetch: Callable[[int], Any]) -> None:
        self._pages, self._folder, self._fetch = pages, folder, fetch
        self._absent: dict[int, set[int]] = {}
        self._whole: list[int] = []
        self._seen = set[int]()
        self._lock = threading.Lock()

    def fetched(self, number: int) -> None:
        """Note that a page was fetched, which is about to be in the folder."""
        file = self._pages.file_of(number)
        numbers = self._pages.of_file(file)
        with self._lock:
            absent = self._absent.setdefault(file, set(numbers))
            absent.discard(number)
            absent -= {each for each in absent if self._folder.has(self._pages.name(each))}
            footer = set(numbers[len(numbers) - len(absent) :])
            if absent == footer and len(absent) <= len(numbers) * _FOOTER + 1:
                self._whole += [] if file in self._seen else [file]
                self._seen.add(file)

    def compare(self) -> dict[int, DatasetError]:
        """Compare files that became whole with their checksums; damaged ones leave the cache.

        Returns:
            The error for each page of a damaged file.
        """
        with self._lock:
            files, self._whole = self._whole, []
        return {
            number: self._pages.file_damage(file)
            for file in files
            if self._is_damaged(file)
            for number in self._pages.of_file(file)
        }

    def _is_damaged(self, file: int) -> bool:
        numbers = self._pages.of_file(file)
        names = [self._pages.name(number) for number in numbers]
        content = hashlib.sha256()
        for number, page in zip(numbers, self._folder.get(names), strict=True):
            content.update(self._fetch(number) if page is None else page)
        damaged = content.hexdigest() != self._pages.sha256_of(file)
        if damaged:
            self._folder.remove(names)
        return damaged
