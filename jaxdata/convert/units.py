"""Cutting a corpus into units of work.

The cuts follow from the files alone: about `unit_bytes` of text a unit, cut at record ends. Files
of 1 MiB and more never share a unit; smaller ones are grouped in sorted order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jaxdata.convert.feeding import Block, fed, next_multiple
from jaxdata.convert.inputs import InputFile, reading
from jaxdata.convert.parts import UNIT_BYTES, Batches, Part, ReadSettings, Unit
from jaxdata.convert.tables import Table, in_pieces, open_table, packed
from jaxdata.convert.text_files import huge, piece_end

__all__ = ["cut"]

_ALONE = 2**20  # bytes from which a file shares no unit
_LINE = 2**20  # bytes of a long line looked at at a time


def cut(
    files: list[InputFile],
    settings: ReadSettings,
    unit_bytes: int = UNIT_BYTES,
    first_file: int = 0,
) -> Iterator[Unit]:
    """Give the units of a corpus in order.

    Args:
        files: the inputs, sorted.
        settings: which columns are read, and how much is too much.
        unit_bytes: text a unit holds, about.
        first_file: the number of the first file in the names of units.
    """
    for unit in _units(files, settings, unit_bytes):
        file, block = unit.place
        yield replace(unit, name=_name(first_file + file, block))


def _units(files: list[InputFile], settings: ReadSettings, unit_bytes: int) -> Iterator[Unit]:
    small: list[int] = []
    for number, file in enumerate(files):
        alone = file.size >= min(_ALONE, unit_bytes)
        if small and (alone or _text_bytes(files, [*small, number]) > unit_bytes):
            yield _group(files, small)
            small = []
        if alone:
            yield from _cut_file(files, number, settings, unit_bytes)
        else:
            small.append(number)
    if small:
        yield _group(files, small)


def _group(files: list[InputFile], numbers: list[int]) -> Unit:
    size = sum(files[number].size for number in numbers)
    parts = tuple(Part(number) for number in numbers)
    return Unit(_name(numbers[0], 0), parts, size, _text_bytes(files, numbers))


def _text_bytes(files: list[InputFile], numbers: list[int]) -> int:
    return sum(files[number].text_bytes for number in numbers)


def _cut_file(
    files: list[InputFile], number: int, settings: ReadSettings, unit_bytes: int
) -> Iterator[Unit]:
    file = files[number]
    if _is_one_text(file, settings):
        yield _group(files, [number])
        return
    if file.kind.table:
        blocks = _cut_table(number, file, settings, unit_bytes)
    elif file.kind.format == "jsonl" and not file.kind.compression:
        blocks = _cut_lines(number, file, unit_bytes)
    elif file.kind.format == "txt" and not (file.kind.compression or file.kind.archive):
        blocks = _cut_text(number, file, settings, unit_bytes)
    else:
        blocks = fed(number, file, settings, unit_bytes)
    for block, (parts, size, text_bytes) in enumerate(blocks):
        yield Unit(_name(number, block), parts, size, text_bytes)


def _cut_lines(number: int, file: InputFile, unit_bytes: int) -> Iterator[Block]:
    """Cut after the first line end at or behind each multiple of `unit_bytes`."""
    with reading(file.path), file.path.open("rb") as lines:
        start = 0
        while start < file.size:
            lines.seek(next_multiple(start, unit_bytes))
            while (piece := lines.readline(_LINE)) and not piece.endswith(b"\n"):
                pass
            stop = min(lines.tell(), file.size)
            yield (Part(number, start, stop),), stop - start, stop - start
            start = stop


def _is_one_text(file: InputFile, settings: ReadSettings) -> bool:
    """Tell whether a file is a text that one worker reads; of a compressed one it is a guess."""
    text = file.kind.format == "txt" and not file.kind.archive
    return text and not huge(_text_bytes([file], [0]), settings)


def _cut_text(
    number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
) -> Iterator[Block]:
    """Cut where the first piece ends at or behind each multiple of `unit_bytes`."""
    size = settings.piece_bytes
    with reading(file.path), file.path.open("rb") as text:
        start = 0
        while start < file.size:
            wanted = next_multiple(start, unit_bytes)
            piece = max(wanted // size, start // size + 1)
            stop = piece_end(text, piece * size, file.size, settings)
            if stop < wanted:
                stop = piece_end(text, (piece + 1) * size, file.size, settings)
            yield (Part(number, start, stop),), stop - start, stop - start
            start = stop


def _cut_table(
    number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
) -> Iterator[Block]:
    """Runs of groups, each closed when its text reaches `unit_bytes`; a huge group is cut."""
    with open_table(file) as table:
        sizes = table.sizes(settings.columns)
        share = file.size / max(1, sum(sizes))
        start = held = 0
        for group, size in enumerate(sizes):
            if size >= 2 * unit_bytes:
                if group > start:
                    yield (Part(number, start, group),), int(held * share), held
                yield from _cut_group(number, table, group, settings, unit_bytes, share)
                start, held = group + 1, 0
                continue
            held += size
            if held >= unit_bytes or group + 1 == len(sizes):
                yield (Part(number, start, group + 1),), int(held * share), held
                start, held = group + 1, 0


def _cut_group(
    number: int, table: Table, group: int, settings: ReadSettings, unit_bytes: int, share: float
) -> Iterator[Block]:
    """Read a group here: nobody can begin in its middle."""
    batches = []
    size = 0
    read = table.batches(settings.columns, group, group + 1)
    for batch in (piece for whole in read for piece in in_pieces(whole, unit_bytes)):
        batches.append(batch)
        size += batch.nbytes
        if size >= unit_bytes:
            yield (Part(number, group, data=Batches(packed(batches))),), int(size * share), size
            batches, size = [], 0
    if batches:
        yield (Part(number, group, data=Batches(packed(batches))),), int(size * share), size


def _name(file: int, block: int) -> str:
    return f"{file:05d}-{block:05d}"
