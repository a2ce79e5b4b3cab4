"""What a program gives: names of files, or records."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar

from jaxdata.converter.inputs.fetched.spool import spooled, spooled_stream
from jaxdata.errors import InputError

_ROWS = 1_000  # of a table, at a time
_log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])


class _TableRows:
    """The rows of a pandas DataFrame or a table of pyarrow, as dicts; missing values are None."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        table, is_arrow = self._table, hasattr(self._table, "to_pylist")
        for first in range(0, len(table), _ROWS):
            if is_arrow:
                yield from table.slice(first, _ROWS).to_pylist()
            else:
                some = table.iloc[first : first + _ROWS]
                yield from some.astype(object).where(some.notna(), None).to_dict("records")


def _is_table(given: Any) -> bool:
    kinds = (("pandas", "DataFrame"), ("pyarrow", "Table"), ("pyarrow", "RecordBatch"))
    return any(
        isinstance(given, getattr(sys.modules.get(where), kind, ())) for where, kind in kinds
    )


def told_apart(
    given: Any, function: str, split: str | None = None
) -> tuple[list[str | Path], Iterable[Any] | None]:
    """Return names of files, or no names and records.

    Strings are names in a collection; of an iterator, where the first is a file.

    Args:
        given: what the user gave.
        function: what messages call the asker.
        split: which split of several is wanted.

    Raises:
        InputError: it is neither.

    >>> told_apart(["a.jsonl"], "convert"), told_apart([{"text": "a"}], "convert")
    ((['a.jsonl'], None), ([], [{'text': 'a'}]))
    """
    if isinstance(given, Mapping):
        given = _split_of(given, function, split)
    if isinstance(given, str | Path):
        return [given], None
    if _is_table(given):
        return [], _TableRows(given)
    if not isinstance(given, Iterable):
        raise InputError(
            f"{function} got a {type(given).__name__}: expected files, folders or globs; or "
            "records: an iterable of dicts or texts, a Hugging Face dataset, a pandas DataFrame, a "
            "pyarrow Table"
        )
    if isinstance(given, Iterator) and not hasattr(given, "state_dict"):
        first = list(islice(given, 1))
        given = chain(first, given)
        return (list(given), None) if _names_a_file(first) else ([], given)
    if isinstance(given, Collection) and all(isinstance(one, str | Path) for one in given):
        return list(given), None
    return [], given


def _split_of(given: Mapping[str, Any], function: str, split: str | None) -> Any:
    """The split that is wanted of a dict of them, such as a Hugging Face `DatasetDict`."""
    names = ", ".join(map(repr, given)) or "nothing"
    if split is None or split not in given:
        wanted = "" if split is None else f"split={split!r} is none of them: "
        raise InputError(
            f"{function} got a {type(given).__name__} of {names}; {wanted}of a dict of splits give "
            "one, as splits['train']; of records a list, as [{\"text\": …}]"
        )
    if len(given) > 1:
        _log.warning("of the splits %s, %s is converted: call again for another", names, split)
    return given[split]


def _standard_input(files: Sequence[str | Path], named: Mapping[str, Any]) -> IO[bytes]:
    if len(files) > 1 or named.get("files_from"):
        raise InputError(
            "standard input (-) is read alone: convert it first, then the files with --append"
        )
    if sys.stdin.isatty():
        raise InputError(
            "standard input (-) is a terminal: pipe lines of JSON into it, as in "
            "zcat pages.jsonl.gz | jaxdata convert - --output data/mine …"
        )
    return sys.stdin.buffer


def _names_a_file(first: list[Any]) -> bool:
    with suppress(ValueError, OSError):  # a text is no path: it may hold a NUL
        texts = (one for one in first if isinstance(one, str))
        return any(isinstance(one, Path) for one in first) or any(map(os.path.exists, texts))
    return False


def takes_records(door: F) -> F:
    """Let `convert` take records, and standard input ("-"): each becomes a file of JSON lines."""

    @functools.wraps(door)
    def opened(inputs: Any = (), **named: Any) -> Any:
        shared = named.get("engine", "local") != "local"
        files, records = told_apart(inputs, "convert", str(named.get("split", "train")))
        if "-" in map(str, files):
            with spooled_stream(
                _standard_input(files, named), named["output"], shared=shared
            ) as one:
                return door([one], **named)
        if records is None:
            return door(files, **named)
        if named.get("files_from"):
            raise InputError("give records or files_from, not both: convert one, then append")
        text_key = str(named.get("text_key", "text")).split(",")[0].strip()
        with spooled(records, named["output"], text_key, shared=shared) as file:
            return door([file], **named)

    return opened  # type: ignore[return-value]
