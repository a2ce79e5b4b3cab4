"""The contract of an input format, and which formats there are."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import IO

from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.inputs.raw_records import Raw, TextPiece, Unreadable, size_of
from jaxdata.converter.inputs.read_errors import reading
from jaxdata.converter.inputs.scanning import lines
from jaxdata.converter.inputs.units import Block, Data, FilePart, ReadSettings
from jaxdata.errors import InputError

_formats: dict[str, Format] = {}


class Format(ABC):
    """How the records of a file are written. One object serves all files of the format."""

    name: str
    """What a :class:`FileType` calls it."""
    suffixes: tuple[str, ...]
    """How names of files end, without the dot; the first is named in messages."""
    counted: str = "row"
    """What its records are called: a "line" or "piece" is numbered from 1, a "row" from 0."""
    table: bool = False
    """Whether it holds columns; such a file is neither compressed nor in an archive."""

    def claims(self, head: bytes, tail: bytes) -> bool:  # noqa: ARG002
        """Tell from its first and last bytes whether a file is of this format for certain."""
        return False

    def recognized(self, head: bytes) -> str:  # noqa: ARG002
        """Return the format that the first bytes show, of a file that is named as of this one."""
        return self.name

    @abstractmethod
    def records(
        self, stream: IO[bytes], settings: ReadSettings
    ) -> Iterator[bytes | TextPiece | Unreadable]:
        """Give the records of a whole file, decompressed. Bytes are parsed as a JSON object."""

    def is_one_unit(self, file: InputFile, settings: ReadSettings) -> bool:  # noqa: ARG002
        """Tell whether one worker reads the whole file, however large it is."""
        return False

    def cut(
        self,
        number: int,  # noqa: ARG002
        file: InputFile,  # noqa: ARG002
        settings: ReadSettings,  # noqa: ARG002
        unit_bytes: int,  # noqa: ARG002
    ) -> Iterator[Block] | None:
        """Cut an uncompressed file into blocks of about `unit_bytes`.

        None where workers cannot begin in the middle of it: then one process reads it and feeds
        them all.
        """
        return None

    def read_part(self, file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Raw]:
        """Give the records of a part that :meth:`cut` made."""
        raise AssertionError(f"{file.where} is never cut: {part}, {settings}")

    def read_data(self, data: bytes, settings: ReadSettings) -> Iterator[Raw]:
        """Give the records of bytes that :meth:`cut` or :meth:`blocks` sends with a part."""
        return lines(BytesIO(data), settings.record_bytes)

    def blocks(
        self, stream: IO[bytes], settings: ReadSettings, room: Callable[[], int]
    ) -> Iterator[tuple[Data, int]]:
        """Give the records of a stream, and their bytes, as many at a time as there is room for."""
        records: list[bytes | TextPiece | Unreadable] = []
        size = 0
        for record in self.records(stream, settings):
            records.append(record)
            size += size_of(record)
            if size >= room():
                yield tuple(records), size
                records, size = [], 0
        if records:
            yield tuple(records), size


class SplittableFormat(Format):
    """A format whose files are cut between bytes."""

    @abstractmethod
    def cut(
        self, number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
    ) -> Iterator[Block]: ...

    @abstractmethod
    def records_between(
        self, stream: IO[bytes], start: int, stop: int, size: int, settings: ReadSettings
    ) -> Iterator[bytes | TextPiece | Unreadable]:
        """Give the records between two bytes of a file of `size` bytes, which is at `start`."""

    def read_part(self, file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Raw]:
        assert part.stop is not None
        with reading(file.where), file.open(ahead_to=part.stop) as stream:
            stream.seek(part.start)
            yield from self.records_between(stream, part.start, part.stop, file.size, settings)
            if stream.tell() != part.stop:
                raise InputError(
                    f"{file.where} was truncated while being read; do not modify inputs during a "
                    "conversion"
                )


def register(new: Format) -> None:
    """Make a format known; a module does so when it is imported."""
    _formats[new.name] = new


@cache
def _import_all() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")


def all_formats() -> list[Format]:
    """Every format."""
    _import_all()
    return list(_formats.values())


def format_named(name: str) -> Format:
    """Return the format of a name."""
    _import_all()
    return _formats[name]
