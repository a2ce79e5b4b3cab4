"""Cutting a corpus into units of work.

The cuts follow from the files alone: about `unit_bytes` of text a unit, cut at record ends. Files
of 1 MiB and more never share a unit; smaller ones are grouped in sorted order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jaxdata.converter.inputs.file_types import reader_of
from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.inputs.units import UNIT_BYTES, FilePart, ReadSettings, Unit
from jaxdata.converter.inputs.unsplittable import feed_blocks

_ALONE = 2**20  # bytes from which a file shares no unit


def cut(
    files: list[InputFile],
    settings: ReadSettings,
    unit_bytes: int = UNIT_BYTES,
    first_file: int = 0,
) -> Iterator[Unit]:
    """Give the units of a corpus in order, of about `unit_bytes` of text each.

    `files` are sorted; `first_file` is the number of the first in the names of units.
    """
    for unit in _units(files, settings, unit_bytes):
        file, block = unit.place
        own = tuple(files[part.file] for part in unit.parts)
        yield replace(unit, name=_name(first_file + file, block), files=own)


def _units(files: list[InputFile], settings: ReadSettings, unit_bytes: int) -> Iterator[Unit]:
    small: list[int] = []
    held = 0  # bytes of text in the small ones
    for number, file in enumerate(files):
        alone = file.size >= min(_ALONE, unit_bytes)
        if small and (alone or held + file.text_bytes > unit_bytes):
            yield _group(files, small)
            small, held = [], 0
        if alone:
            yield from _cut_file(files, number, settings, unit_bytes)
        else:
            small.append(number)
            held += file.text_bytes
    if small:
        yield _group(files, small)


def _group(files: list[InputFile], numbers: list[int]) -> Unit:
    parts = tuple(FilePart(number) for number in numbers)
    size = sum(files[number].size for number in numbers)
    text_bytes = sum(files[number].text_bytes for number in numbers)
    return Unit(_name(numbers[0], 0), parts, size, text_bytes)


def _cut_file(
    files: list[InputFile], number: int, settings: ReadSettings, unit_bytes: int
) -> Iterator[Unit]:
    file = files[number]
    kind = file.kind
    if not kind.archive and reader_of(kind).is_one_unit(file, settings):
        yield _group(files, [number])
        return
    blocks = None
    if not (kind.compression or kind.archive):
        blocks = reader_of(kind).cut(number, file, settings, unit_bytes)
    blocks = blocks or feed_blocks(number, file, settings, unit_bytes)
    for block, (parts, size, text_bytes) in enumerate(blocks):
        yield Unit(_name(number, block), parts, size, text_bytes)


def _name(file: int, block: int) -> str:
    return f"{file:05d}-{block:05d}"
