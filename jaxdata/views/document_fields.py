"""Fields of documents as Arrow arrays: those that were kept, those of a scores file, and built-in.

A field of a scores file comes before a kept one of the same name, and that before a built-in one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from jaxdata.documents.converted import ConvertedDocuments
from jaxdata.errors import DatasetError, InputError
from jaxdata.views.score_files import Scores
from jaxdata.wording import nearest

BUILT_IN = {
    "tokens": "tokens of the document, with EOD",
    "document": "its number in the source, from 0",
    "source": "the source's name",
    "file": "the input file that it came from",
}
"""Fields that every document has."""


class DocumentFields:
    """The fields of the documents of one source.

    Args:
        docs: the source.
        scores: further fields; None for none.
    """

    def __init__(self, docs: ConvertedDocuments, scores: Scores | None) -> None:
        self._docs, self._scores = docs, scores
        self._kept: Sequence[str] = docs.entry.parameters.get("keep") or ()

    def check(self, names: Collection[str], option: str) -> None:
        """Raise InputError if a name is of no field."""
        for name in sorted(names):
            if not self._has(name):
                raise self._unknown(name, option)

    def _has(self, name: str) -> bool:
        own = self._scores.names if self._scores else ()
        return name in (*own, *self._kept, *BUILT_IN) or name.partition(".")[0] in self._kept

    def _unknown(self, name: str, option: str) -> InputError:
        groups = {
            "of the scores": self._scores.names if self._scores else (),
            "kept": self._kept,
            "built in": [*BUILT_IN],
        }
        said = [f"{', '.join(map(str, each))} ({group})" for group, each in groups.items() if each]
        hint = nearest(name, [n for each in groups.values() for n in each])
        remedy = "" if hint or self._kept else " (jaxdata convert --keep keeps fields)"
        return InputError(
            f"{option} names the field {name!r}, which {self._docs.name} does not have: it has "
            f"{', '.join(said)}{hint}{remedy}"
        )

    def of(self, names: Collection[str], first: int, stop: int) -> dict[str, Any]:
        """The values of some fields for documents `[first, stop)`.

        Raises:
            InputError: the values of one are of different types.
            DatasetError: what was kept is damaged.
        """
        records = _Records(partial(self._docs.index.kept_between, first, stop))
        return {name: self._values(name, first, stop, records) for name in names}

    def _values(self, name: str, first: int, stop: int, records: _Records) -> Any:
        if self._scores and name in self._scores.names:
            key = self._scores.key
            keys = self._values(key, first, stop, records) if key and key != name else None
            return self._scores.of(name, first, stop, keys)
        if name in self._kept or name.partition(".")[0] in self._kept:
            try:
                found = [_looked_up(each, name) for each in records.get()]
            except TypeError:
                raise InputError(
                    f"there is no field {name!r} in {self._docs.name}: what it names a part of is "
                    "no object in every document"
                ) from None
            return self._array(name, first, found)
        return self._built_in(name, first, stop)

    def _array(self, name: str, first: int, values: list[Any]) -> Any:
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            last = first + len(values) - 1
            raise InputError(
                f"field {name!r} of {self._docs.name} has values of different types in documents "
                f"{first:,} to {last:,} ({error}): expected numbers, texts or flags, and nothing "
                "else beside null"
            ) from None

    def _built_in(self, name: str, first: int, stop: int) -> Any:
        index = self._docs.index
        if name == "tokens":
            return pa.array(index.lengths[first:stop].astype(np.int64))
        if name == "document":
            return pa.array(np.arange(first, stop))
        if name == "source":
            own = self._docs.name.partition("/")[2]
            return pa.array([own] * (stop - first))
        numbers = index.origin_file[first:stop]
        if len(numbers) and numbers.max() >= len(index.entry.inputs):
            raise DatasetError(
                f"{self._docs.store.url}: the index of {self._docs.name} names more files than "
                "there are; jaxdata verify names what is damaged"
            )
        return pa.array(index.entry.inputs).take(pa.array(numbers))


class _Records:
    """What was kept of some documents, parsed when it is first asked for."""

    def __init__(self, parse: Callable[[], list[dict[str, Any]]]) -> None:
        self._parse = parse
        self._records: list[dict[str, Any]] | None = None

    def get(self) -> list[dict[str, Any]]:
        if self._records is None:
            self._records = self._parse()
        return self._records


def _looked_up(record: Mapping[str, Any], name: str) -> Any:
    """A field of a record; a name with dots goes into objects within (TypeError if it is none)."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise TypeError(part)
        value = value.get(part)
    return value
