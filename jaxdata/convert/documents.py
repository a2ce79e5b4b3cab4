"""From raw records to records with fields, for the converter and for tokenizer training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxdata.convert.columns import check_strings
from jaxdata.convert.contents import Raw, raw_records
from jaxdata.convert.inputs import Inputs, find_inputs
from jaxdata.convert.parts import ReadSettings
from jaxdata.convert.records import BadRecord, decode, joined_text_of, parse_line
from jaxdata.convert.splitting import Unreadable
from jaxdata.convert.tasks import LmSettings
from jaxdata.convert.text_files import Stretch, TextFile
from jaxdata.convert.units import cut

__all__ = ["parse", "texts"]


def parse(raw: Raw, text_key: str, texts_only: bool = False) -> dict[str, Any] | None:
    """Return the fields of a raw record, None for a blank line; raises BadRecord.

    The text of a text file is its field `text_key`. With `texts_only`, as for `parse_line`.
    """
    if type(raw) is bytes:
        return parse_line(raw, texts_only)
    if isinstance(raw, TextFile):
        return {text_key: Stretch.like(decode(raw), raw)}
    if isinstance(raw, Unreadable):
        raise BadRecord(raw.reason)
    assert isinstance(raw, dict)
    return raw


def texts(
    inputs: Inputs,
    text_key: str = "text",
    *,
    text_joiner: str = "\n\n",
    files_from: Sequence[str | Path] = (),
) -> Iterator[str]:
    """Give the text of every good record of a corpus, in order; bad ones are passed over.

    The arguments are those of :func:`jaxdata.convert.convert`.

    >>> for text in texts("corpus/*.jsonl.gz"):  # doctest: +SKIP
    ...     print(len(text))
    """
    files = find_inputs(inputs, files_from)
    keys = LmSettings(text_key=text_key).text_keys
    for file in files:
        if file.kind.table:
            check_strings(file, keys)
    settings = ReadSettings(keys)
    for unit in cut(files, settings):
        for part in unit.parts:
            for raw in raw_records(files[part.file], part, settings):
                yield from _text(raw, keys, text_joiner)


def _text(raw: Raw, keys: tuple[str, ...], joiner: str) -> Iterator[str]:
    try:
        record = parse(raw, keys[0], texts_only=True)
        if record is not None:
            yield joined_text_of(record, keys, joiner)
    except BadRecord:
        return
