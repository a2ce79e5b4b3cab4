"""Cutting a corpus into units of work.

The cuts follow from the files alone: about `unit_bytes` of text a unit, cut at record ends. Files
of 1 MiB and more never share a unit; smaller ones are grouped in sorted order.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxdata.convert import tables
from jaxdata.convert.inputs import InputFile, reading

__all__ = ["UNIT_BYTES", "Part", "Unit", "cut"]

UNIT_BYTES = 64 * 2**20
_ALONE = 2**20  # bytes from which a file shares no unit
_EXPANSION = 4  # what gzip usually makes of text, for files too small to be worth looking


@dataclass(frozen=True)
class Part:
    """A run of records of one file.

    Attributes:
        file: number of the file among the inputs.
        start: first byte of the run, or first row group of a table.
        stop: the byte or row group after it; None for the end of the file.
        data: the lines themselves, where only the parent can read them.
    """

    file: int
    start: int = 0
    stop: int | None = None
    data: bytes | None = None


@dataclass(frozen=True)
class Unit:
    """What one worker does at a time; becomes at most one shard, called by its name.

    Attributes:
        name: "<file>-<block>", the number of its first file and of its block in that file.
        parts: what it covers, in order.
        size: the bytes of input it covers as they lie on disk; for the progress bar.
        text_bytes: the bytes of its records, about; likewise.
    """

    name: str
    parts: tuple[Part, ...]
    size: int
    text_bytes: int

    @property
    def place(self) -> tuple[int, int]:
        """Where it begins, (file, start): units are in the order of their places."""
        return self.parts[0].file, self.parts[0].start

    def without_data(self) -> Unit:
        """Return what is worth keeping when a worker has the unit."""
        return replace(self, parts=tuple(replace(part, data=None) for part in self.parts))


def cut(
    files: list[InputFile], columns: Sequence[str], unit_bytes: int = UNIT_BYTES
) -> Iterator[Unit]:
    """Give the units of a corpus in order.

    Args:
        files: the inputs, sorted.
        columns: the columns of tables that are read.
        unit_bytes: text a unit holds, about.
    """
    small: list[int] = []
    for number, file in enumerate(files):
        alone = file.size >= min(_ALONE, unit_bytes)
        if small and (alone or _text_bytes(files, [*small, number]) > unit_bytes):
            yield _group(files, small)
            small = []
        if alone:
            yield from _cut_file(files, number, columns, unit_bytes)
        else:
            small.append(number)
    if small:
        yield _group(files, small)


def _group(files: list[InputFile], numbers: list[int]) -> Unit:
    size = sum(files[number].size for number in numbers)
    parts = tuple(Part(number) for number in numbers)
    return Unit(_name(numbers[0], 0), parts, size, _text_bytes(files, numbers))


def _text_bytes(files: list[InputFile], numbers: list[int]) -> int:
    return sum(files[n].size * (_EXPANSION if files[n].compressed else 1) for n in numbers)


def _cut_file(
    files: list[InputFile], number: int, columns: Sequence[str], unit_bytes: int
) -> Iterator[Unit]:
    file = files[number]
    if file.format == "txt":
        yield _group(files, [number])
        return
    if file.format == "parquet":
        blocks = _cut_table(number, file, columns, unit_bytes)
    elif file.compressed:
        blocks = _cut_stream(number, file, unit_bytes)
    else:
        blocks = _cut_lines(number, file, unit_bytes)
    for block, (part, size, text_bytes) in enumerate(blocks):
        yield Unit(_name(number, block), (part,), size, text_bytes)


_Block = tuple[Part, int, int]  # part, its bytes on disk, its bytes of records


def _cut_lines(number: int, file: InputFile, unit_bytes: int) -> Iterator[_Block]:
    """Cut after the first line end at or behind each multiple of `unit_bytes`."""
    with reading(file), file.path.open("rb") as lines:
        start = 0
        while start < file.size:
            lines.seek(_next_multiple(start, unit_bytes))
            lines.readline()
            stop = min(lines.tell(), file.size)
            yield Part(number, start, stop), stop - start, stop - start
            start = stop


def _cut_stream(number: int, file: InputFile, unit_bytes: int) -> Iterator[_Block]:
    """Decompress a file here, cut as `_cut_lines` does: nobody can begin in its middle."""
    with reading(file), file.path.open("rb") as packed, gzip.open(packed) as lines:
        start = packed_start = 0
        while data := lines.read(_next_multiple(start, unit_bytes) - start):
            data += lines.readline()
            packed_stop = packed.tell()
            yield Part(number, start, data=data), packed_stop - packed_start, len(data)
            start, packed_start = start + len(data), packed_stop


def _cut_table(
    number: int, file: InputFile, columns: Sequence[str], unit_bytes: int
) -> Iterator[_Block]:
    """Runs of row groups, each closed when its text reaches `unit_bytes`."""
    sizes = tables.group_sizes(file, columns)
    share = file.size / max(1, sum(sizes))
    start = held = 0
    for group, size in enumerate(sizes, start=1):
        held += size
        if held >= unit_bytes or group == len(sizes):
            yield Part(number, start, group), int(held * share), held
            start, held = group, 0


def _next_multiple(start: int, unit_bytes: int) -> int:
    return (start // unit_bytes + 1) * unit_bytes


def _name(file: int, block: int) -> str:
    return f"{file:05d}-{block:05d}"
