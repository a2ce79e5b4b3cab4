"""Tables as text: values between commas (.csv) or tabs (.tsv), the first line the columns' names.

As Python's csv reads them, strictly: a value in quotes may hold separators, line ends and doubled
quotes. All values are texts. A row that is not as its header says is set aside.
"""

import csv
import re
from collections.abc import Iterator
from typing import IO, Any

from jaxdata.converter.inputs.files import ReadSettings
from jaxdata.converter.inputs.parsing import BYTE_ORDER_MARK, Raw, Unreadable, too_long
from jaxdata.converter.inputs.reading import Format, register
from jaxdata.converter.inputs.streams import pass_line

_KEPT = 1_024  # characters of a malformed row
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # what Python decodes other bytes to


class Delimited(Format):
    """Rows of text. One process reads a file: a line end may be inside a value.

    A record is a line, so that lines are numbered as an editor does; the header and the further
    lines of a row count as blank.
    """

    counted = "line"

    def __init__(self, name: str, delimiter: str) -> None:
        self.name, self.suffixes, self._delimiter = name, (name,), delimiter

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[Any]:
        limit = settings.record_bytes
        csv.field_size_limit(max(limit, csv.field_size_limit()))  # of the whole process
        long: list[Unreadable] = []
        rows = csv.reader(_lines(stream, limit, long), delimiter=self._delimiter, strict=True)
        if (header := self._next(rows)) is None:
            return
        wanted = _wanted(header, settings.columns)
        yield from [b""] * (before := rows.line_num)
        while (row := self._next(rows)) is not None:
            whole = isinstance(row, list) and not long
            yield self._record(row, header, wanted) if whole else long[-1] if long else row
            yield from [b""] * (rows.line_num - before - 1)
            before = rows.line_num
            long.clear()

    def _next(self, rows: Iterator[list[str]]) -> Any:
        try:
            return next(rows, None)
        except csv.Error as error:
            return Unreadable(f"malformed {self.name.upper()}: {error}", None)

    def _record(self, row: list[str], header: Any, wanted: list[int]) -> Raw:
        if not row:
            return b""
        text, reason = self._delimiter.join(row), ""
        if len(row) != len(header):
            reason = "not as many values as the header has columns"
        elif not text.isascii() and _NO_UTF8.search(text):
            reason = "not UTF-8"
        if reason:
            return Unreadable(reason, text[:_KEPT].encode(errors="surrogateescape"))
        return {header[number]: row[number] for number in wanted}


def _lines(stream: IO[bytes], limit: int, long: list[Unreadable]) -> Iterator[str]:
    """The lines as texts; one that is too long goes to `long`, and is empty here."""
    mark = BYTE_ORDER_MARK
    while line := stream.readline(limit + 2):
        if len(line) > limit and not line.endswith(b"\n"):
            long.append(too_long(line, limit))
            pass_line(stream)
            line = b"\n"
        yield line.removeprefix(mark).decode(errors="surrogateescape")
        mark = b""


def _wanted(header: list[str] | Unreadable, columns: tuple[str, ...] | None) -> list[int]:
    """The numbers of the columns that are read; all where none is: errors name those there are."""
    if isinstance(header, Unreadable):
        raise ValueError(header.reason)
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise ValueError(f"its header names the column {twice!r} twice")
    wanted = [n for n, name in enumerate(header) if columns is None or name in columns]
    return wanted or list(range(len(header)))


register(Delimited("csv", ","))
register(Delimited("tsv", "\t"))
