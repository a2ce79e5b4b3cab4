"""From raw records to records with fields, for the converter and for tokenizer training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxdata.convert.columns import check_strings
from jaxdata.convert.contents import Raw, raw_records
from jaxdata.convert.inputs import Inputs, find_inputs
from jaxdata.convert.parts import ReadSettings
from jaxdata.convert.records import BadRecord, decode, parse_line, text_of
from jaxdata.convert.splitting import TextFile, Unreadable
from jaxdata.convert.units import cut

__all__ = ["parse", "texts"]


def parse(raw: Raw, text_key: str) -> dict[str, Any] | None:
    """Return the fields of a raw record, None for a blank line; raises BadRecord.

    The text of a text file is its field `text_key`.
    """
    if type(raw) is bytes:
        return parse_line(raw)
    if isinstance(raw, TextFile):
        return {text_key: decode(raw)}
    if isinstance(raw, Unreadable):
        raise BadRecord(raw.reason)
    assert isinstance(raw, dict)
    return {name: decode(v) if isinstance(v, bytes) else v for name, v in raw.items()}


def texts(inputs: Inputs, text_key: str = "text") -> Iterator[str]:
    """Give the text of every good record of a corpus, in order; bad ones are passed over.

    >>> for text in texts("corpus/*.jsonl.gz"):  # doctest: +SKIP
    ...     print(len(text))
    """
    files = find_inputs(inputs)
    for file in files:
        if file.kind.table:
            check_strings(file, text_key)
    settings = ReadSettings((text_key,))
    for unit in cut(files, settings):
        for part in unit.parts:
            for raw in raw_records(files[part.file], part, settings):
                yield from _text(raw, text_key)


def _text(raw: Raw, key: str) -> Iterator[str]:
    try:
        record = parse(raw, key)
        if record is not None:
            yield text_of(record, key)
    except BadRecord:
        return
