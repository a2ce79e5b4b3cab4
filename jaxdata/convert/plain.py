"""The usual case, many records at a time: each is a JSON object, or a row, with its text.

What is done with one record after the other costs more than the tokens of a short document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from jaxdata.convert.contents import Raw

__all__ = ["in_runs", "plain_texts"]

_RECORDS = 256
_BYTES = 2**20


def in_runs(records: Iterable[Raw]) -> Iterator[list[Raw]]:
    """Runs of records: enough to pay, little enough for the memory."""
    run: list[Raw] = []
    size = 0
    for record in records:
        run.append(record)
        size += _size(record)
        if size >= _BYTES or len(run) == _RECORDS:
            yield run
            run, size = [], 0
    if run:
        yield run


def _size(record: Raw) -> int:
    if isinstance(record, dict):
        return sum([len(value) for value in record.values() if isinstance(value, str | bytes)])
    return len(record)


def plain_texts(records: list[Raw], key: str) -> tuple[list[str], list[int]] | None:
    r"""The text of each record, and its bytes in UTF-8; None if one of them is out of the ordinary.

    >>> plain_texts([b'{"text": "one"}', b'{"text": "\xc3\xa9"}'], "text")
    (['one', 'é'], [3, 2])
    >>> plain_texts([b'{"text": "one"}', b'{"text": null}'], "text")
    """
    kinds = set(map(type, records))
    try:
        if kinds == {bytes}:
            texts = [orjson.loads(line)[key] for line in records]  # type: ignore[arg-type]
        elif kinds == {dict}:
            texts = [row[key] for row in records]  # type: ignore[call-overload]
        else:
            return None
        if set(map(type, texts)) != {str}:
            return None
        return texts, [len(text) if text.isascii() else len(text.encode()) for text in texts]
    except (orjson.JSONDecodeError, KeyError, TypeError, UnicodeEncodeError):
        return None
