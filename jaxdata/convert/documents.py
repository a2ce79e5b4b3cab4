"""Reading the records of a corpus, for the converter and for tokenizer training."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxdata.convert import tables
from jaxdata.convert.inputs import InputFile, Inputs, find_inputs, reading
from jaxdata.convert.records import BadRecord, decode, parse_line, text_of
from jaxdata.convert.units import Part, cut
from jaxdata.errors import InputError

__all__ = ["Raw", "parser", "raw_records", "texts"]

Raw = bytes | dict[str, Any]
"""A line or a text file as it lies there, or a row of a table."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def raw_records(file: InputFile, part: Part, columns: Sequence[str]) -> Iterator[Raw]:
    r"""Give every record of a part of a file: lines without their end, table rows, whole files.

    Blank lines are given too, so that counting what comes counts lines. A line ends with \n or
    \r\n; a byte order mark at the beginning of a file is left out. Of tables the named columns
    are read.
    """
    if file.format == "parquet":
        yield from tables.rows(file, columns, part.start, part.stop)
        return
    data = _read(file, part) if part.data is None else part.data
    if part.start == 0:
        data = data.removeprefix(_BYTE_ORDER_MARK)
    if file.format == "jsonl":
        yield from (line.removesuffix(b"\n").removesuffix(b"\r") for line in io.BytesIO(data))
    elif data:
        yield data


def parser(file: InputFile, text_key: str) -> Callable[[Any], dict[str, Any] | None]:
    """Return the function from a raw record to its fields.

    It returns None for a blank line and raises BadRecord where there are none. The text of a text
    file is its field `text_key`.
    """
    if file.format == "jsonl":
        return parse_line
    if file.format == "txt":
        return lambda raw: {text_key: decode(raw)}
    return _parse_row


def _parse_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: decode(v) if isinstance(v, bytes) else v for name, v in row.items()}


def texts(inputs: Inputs, text_key: str = "text") -> Iterator[str]:
    """Give the text of every good record of a corpus, in order; bad ones are passed over.

    >>> for text in texts("corpus/*.jsonl.gz"):  # doctest: +SKIP
    ...     print(len(text))
    """
    files = find_inputs(inputs)
    for file in files:
        if file.format == "parquet":
            tables.check_column(file, text_key)
    for unit in cut(files, [text_key]):
        for part in unit.parts:
            yield from _good_texts(files[part.file], part, text_key)


def _good_texts(file: InputFile, part: Part, key: str) -> Iterator[str]:
    parse = parser(file, key)
    for raw in raw_records(file, part, [key]):
        try:
            record = parse(raw)
            if record is not None:
                yield text_of(record, key)
        except BadRecord:
            continue


def _read(file: InputFile, part: Part) -> bytes:
    with reading(file), file.path.open("rb") as raw:
        if file.compressed:
            return gzip.open(raw).read()
        raw.seek(part.start)
        stop = file.size if part.stop is None else part.stop
        data = raw.read(stop - part.start)
    if len(data) != stop - part.start:
        raise InputError(f"{file.path} became shorter while it was read; leave it alone")
    return data
