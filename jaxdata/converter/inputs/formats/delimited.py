"""Tables as text: values between commas (.csv) or tabs (.tsv), the first line the columns' names.

As Python's csv reads them, strictly: a value in quotes may hold separators, line ends and doubled
quotes. All values are texts. A row that is not as its header says is set aside.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import IO, Any

from jaxdata.converter.inputs.formats.base import Format, register
from jaxdata.converter.inputs.parsing import BYTE_ORDER_MARK, Raw, Unreadable, too_long
from jaxdata.converter.inputs.units import ReadSettings

_KEPT = 1_024  # characters of a malformed row
_CHUNK = 2**18


class Delimited(Format):
    """Rows of text. One process reads a file: a line end may be inside a value.

    A record is a line, so that lines are numbered as an editor does; the header and the further
    lines of a row count as blank.
    """

    counted = "line"

    def __init__(self, name: str, delimiter: str) -> None:
        self.name, self.suffixes, self._delimiter = name, (name,), delimiter

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[Any]:
        lines = _Lines(stream, settings.record_bytes)
        rows = csv.reader(lines, delimiter=self._delimiter, strict=True)
        try:
            header = self._next(rows, settings.record_bytes)
        except StopIteration:
            return
        yield from [b""] * rows.line_num
        wanted = _wanted(header, settings.columns)
        while (before := rows.line_num) >= 0:
            try:
                row = self._next(rows, settings.record_bytes)
            except StopIteration:
                return
            except csv.Error as error:
                yield Unreadable(f"malformed {self.name.upper()}: {error}", None)
            else:
                yield lines.too_long or self._record(row, header, wanted)
            lines.too_long = None
            yield from [b""] * (rows.line_num - before - 1)

    @staticmethod
    def _next(rows: Iterator[list[str]], limit: int) -> list[str]:
        """The next row, no field of it above `limit`, which csv keeps for the whole process."""
        before = csv.field_size_limit(limit)
        try:
            return next(rows)
        finally:
            csv.field_size_limit(before)

    def _record(self, row: list[str], header: list[str], wanted: list[int]) -> Raw:
        if not row:
            return b""
        text = self._delimiter.join(row)
        if len(row) != len(header):
            raw = text[:_KEPT].encode(errors="surrogateescape")
            return Unreadable("not as many values as the header has columns", raw)
        if not (text.isascii() or _is_utf8(text)):
            return Unreadable("not UTF-8", text[:_KEPT].encode(errors="surrogateescape"))
        return {header[number]: row[number] for number in wanted}


class _Lines:
    """The lines of a stream as texts; of one that is too long the head, and why."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._limit = stream, limit
        self._first = True
        self.too_long: Unreadable | None = None

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._stream.readline(self._limit + 2)
        if not line:
            raise StopIteration
        if len(line) > self._limit and not line.endswith(b"\n"):
            self.too_long = too_long(line, self._limit)
            line = b"\n"
            while (more := self._stream.readline(_CHUNK)) and not more.endswith(b"\n"):
                pass
        if self._first:
            self._first, line = False, line.removeprefix(BYTE_ORDER_MARK)
        return line.decode(errors="surrogateescape")


def _wanted(header: list[str], columns: tuple[str, ...] | None) -> list[int]:
    """The numbers of the columns that are read."""
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise ValueError(f"its header names the column {twice!r} twice")
    wanted = [n for n, name in enumerate(header) if columns is None or name in columns]
    return wanted or list(range(len(header)))  # of none of them: errors name those that it has


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


register(Delimited("csv", ","))
register(Delimited("tsv", "\t"))
