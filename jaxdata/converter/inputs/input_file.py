"""One file of a corpus: a file of this machine, or an object of a bucket or web server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from jaxdata.converter.inputs.compression import Compression
from jaxdata.format.storage.objects import RangedFile, place_of

_EXPANSION = 4  # what gzip usually makes of text, for files too small to be worth looking


@dataclass(frozen=True)
class FileType:
    """How to read a file; see `file_types`."""

    format: str  # meaningless ("txt") for an archive
    compression: Compression = ""  # of the whole file
    archive: bool = False


class InputFile(NamedTuple):
    """One file of the corpus; there may be millions, so each is small.

    Attributes:
        root: the folder that holds all inputs, or the URL of it.
        name: its path below that, with "/".
        size: bytes.
        kind: how it is read.
        digest: 16 hex digits over size, head and tail; not over path and time.
        stamp: differs when the file may have changed.
        signed: its URL, if there are secrets in it; they are neither in root nor name.
        version: of an object, what was looked at and alone is read; None for a file of this
            machine.
    """

    root: str
    name: str
    size: int
    kind: FileType
    digest: str
    stamp: int
    version: str | None = None
    signed: str = ""

    @property
    def path(self) -> Path:
        """Where it is, on this machine."""
        return Path(self.root, self.name)

    @property
    def where(self) -> str:
        """Its path, or its URL."""
        return f"{self.root}/{self.name}" if self.is_object else str(self.path)

    @property
    def url(self) -> str:
        """The URL of an object, to open it; not to be shown."""
        return self.signed or self.where

    @property
    def is_object(self) -> bool:
        """Whether it is not on this machine."""
        return self.version is not None

    @property
    def text_bytes(self) -> int:
        """Bytes of its text, about."""
        return self.size * (_EXPANSION if self.kind.compression else 1)

    def open(self, ahead_to: int | None = None) -> IO[bytes]:
        """Open it to read; of an object nothing behind `ahead_to` is read ahead."""
        if self.version is None:
            return self.path.open("rb")
        read = partial(_read_version, self.url, self.version)
        return RangedFile(read, self.size, ahead_to).buffered()


def _read_version(url: str, version: str, start: int, stop: int) -> bytes:
    return place_of(url).read(url, start, stop, version)
