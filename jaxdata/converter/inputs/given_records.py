"""What a program gives: names of files, or records.

Records are written down as JSON lines, so all cores read them and a resume compares them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import orjson

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.converter.inputs.files import look_at
from jaxdata.storage.urls import is_url, plain_path

_PREFIX = ".records-"
_LOCK = "lock"
_PIECE = 2**20  # bytes of a stream, at a time
_ROWS_AT_ONCE = 1_000  # of a dataset, at a time
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def spooled(
    records: Iterable[Any], output: Any, text_key: str, *, shared: bool = False
) -> AbstractContextManager[Path]:
    """Write records to a file that is there while this is entered.

    Args:
        records: dicts; or texts, which are dicts with the key `text_key`.
        output: the dataset they are for. If it is in a bucket, the file is in `$TMPDIR`.
        text_key: see there.
        shared: other machines have to read the file.

    Raises:
        InputError: a record is neither, or holds what JSON cannot; there are none.
    """
    empty = "there are no records to convert: the iterable is empty or exhausted"
    return _spooled(_lines(_all(records), text_key), "records", empty, output, shared)


def spooled_stream(
    stream: IO[bytes], output: Any, *, shared: bool = False
) -> AbstractContextManager[Path]:
    """Write what a stream holds, lines of JSON, to a file that is there while this is entered.

    The arguments are those of :func:`spooled`. A stream cannot be read twice: from the file it can,
    by all workers, and the same content in another process resumes what was begun.

    Raises:
        InputError: the stream is empty.
    """
    empty = "standard input is empty: expected lines of JSON"
    pieces = iter(partial(stream.read, _PIECE), b"")
    return _spooled(pieces, "standard-input", empty, output, shared)


@contextmanager
def _spooled(
    pieces: Iterable[bytes], name: str, empty: str, output: Any, shared: bool
) -> Iterator[Path]:
    with _folder(output, shared) as folder:
        file = folder / f"{name}.jsonl"
        with file.open("wb") as opened:
            for piece in pieces:
                _write(opened, piece)
            _write(opened)
        if not file.stat().st_size:
            raise InputError(empty)
        yield file.rename(folder / f"{name}-{look_at(str(file)).digest}.jsonl")


@contextmanager
def _folder(output: Any, shared: bool) -> Iterator[Path]:
    """A folder that is deleted at the end."""
    root, remote = Path(plain_path(output)).expanduser(), is_url(output)
    if remote and shared:
        raise InputError(
            f"records are first written to a file, which other machines cannot read if the output "
            f"is {plain_path(output)}: save them to files in a bucket and give those, or leave "
            'engine="ray" out'
        )
    if not remote:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{root} cannot be written: {error.strerror}") from None
        _delete_left_ones(root)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=None if remote else root)).absolute()
    try:
        with (folder / f"{_LOCK}.new").open("wb") as lock:
            with suppress(OSError):  # a disk of the network without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
                Path(lock.name).rename(folder / _LOCK)  # never seen before it is held
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not remote:
            with suppress(OSError):  # it holds a dataset
                root.rmdir()


def _delete_left_ones(root: Path) -> None:
    """Delete the folders of processes that are gone: their locks are free."""
    for lock in root.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock.open("rb") as left:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _all(records: Any) -> Iterator[Any]:
    """The records, many rows at a time where that is many times as fast."""
    theirs = getattr(sys.modules.get("datasets"), "Dataset", ())
    # Where a function of the user's makes the rows, it has to be called for each.
    if not isinstance(records, theirs) or records.format["type"] == "custom":
        yield from records
        return
    tables = records.with_format("arrow", columns=records.format["columns"]).iter(_ROWS_AT_ONCE)
    for table in tables:
        yield from table.to_pylist()


def _write(file: IO[bytes], line: bytes | None = None) -> None:
    """Write a line, or what is left to write."""
    try:
        if line is None:
            file.flush()
        else:
            file.write(line)
    except OSError as error:
        raise DatasetError(
            f"the records cannot be written to {file.name} ({error.strerror}): that disk needs "
            "room for them as JSON lines; the same call starts anew"
        ) from None


def _lines(records: Iterable[Any], text_key: str) -> Iterator[bytes]:
    for number, record in enumerate(records):
        fields = fields_of(record, number, text_key)
        try:
            yield _line(fields)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"record {number} cannot be written as JSON ({error}): give records of texts, "
                "numbers, lists and dicts, without such fields (of a Hugging Face dataset, "
                "select_columns)"
            ) from None


def fields_of(record: Any, number: int, text_key: str) -> dict[str, Any]:
    """The fields of a record that may be a text; raises InputError where it is neither."""
    if isinstance(record, str):
        return {text_key: record}
    if not isinstance(record, Mapping):
        raise InputError(
            f"record {number} is a {type(record).__name__}: expected a string, or a dict with the "
            f"key {text_key!r} (text_key)"
        )
    return dict(record)


def _line(record: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, default=_plain, option=_OPTIONS)
    except TypeError:  # numbers of more than 64 bits, half a surrogate pair, keys that are no texts
        return json.dumps(record, default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    """What JSON has for a value that it does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Decimal | Path):
        return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no value of JSON")


_ROWS = 1_000  # of a table, at a time
_log = logging.getLogger(__name__)


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


def files_or_records(
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

    >>> files_or_records(["a.jsonl"], "convert"), files_or_records([{"text": "a"}], "convert")
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


def _standard_input(files: Sequence[str | Path], files_from: Sequence[str | Path]) -> IO[bytes]:
    if len(files) > 1 or files_from:
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


@contextmanager
def files_of(
    inputs: Any,
    output: Any,
    *,
    files_from: Sequence[str | Path] = (),
    split: str = "train",
    text_key: str = "text",
    shared: bool = False,
) -> Iterator[list[str | Path]]:
    """The names of files that `convert` is given; of records and standard input, of a file of them.

    The arguments are those of `convert`, and of :func:`spooled`.
    """
    files, records = files_or_records(inputs, "convert", split)
    if "-" in map(str, files):
        with spooled_stream(_standard_input(files, files_from), output, shared=shared) as file:
            yield [file]
    elif records is None:
        yield files
    elif files_from:
        raise InputError("give records or files_from, not both: convert one, then append")
    else:
        with spooled(records, output, text_key, shared=shared) as file:
            yield [file]
