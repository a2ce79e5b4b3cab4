"""Which files of a folder are read; those of other kinds are counted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import NamedTuple

from jaxdata.converter.inputs.file_types import is_readable
from jaxdata.converter.inputs.made_here import MadeHere


class Wanted(NamedTuple):
    """What a search is to find.

    Attributes:
        output: where the conversion writes, which is no input.
        texts: more suffixes of text files, without the dot.
        unread: gets the number of files of other kinds, by suffix.
    """

    output: str | os.PathLike[str] | None
    texts: tuple[str, ...]
    unread: Counter[str]


class WantedFiles(MadeHere):
    """Tells files and folders that are read from others."""

    def __init__(self, wanted: Wanted, read: Callable[[str], bytes | None]) -> None:
        super().__init__(wanted.output, read)
        self.texts, self._unread = wanted.texts, wanted.unread

    def takes(self, name: str) -> bool:
        """Whether a file that was found is read; it is counted if not."""
        found = is_readable(name, self.texts)
        if not found:
            self._unread[_suffix(name)] += 1
        return found


def text_suffixes(given: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Suffixes as users give them, without dots.

    >>> text_suffixes(".py, .rs"), text_suffixes(["PY"])
    (('py', 'rs'), ('py',))
    """
    several = given.split(",") if isinstance(given, str) else given
    return tuple(one.strip().lower().removeprefix(".") for one in several if one.strip(" ."))


def _suffix(name: str) -> str:
    suffixes = PurePosixPath(name).suffixes
    packed = suffixes[-1:] and suffixes[-1].lower() in (".gz", ".zst", ".zstd")
    return "".join(suffixes[-2:] if packed else suffixes[-1:]).lower() or "no suffix"
