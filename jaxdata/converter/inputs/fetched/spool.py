"""Records that a program gives, written down as JSON lines: so all cores read them, and none waits.

The file lies in the output, in a hidden folder that is deleted at the end, and is called by its
content: the same records, given again, resume what was begun with them. Everything else is as for
any file. A process that is killed leaves its folder; the next one to give records deletes it.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import orjson

from jaxdata.converter.inputs.identity import look_at
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.storage.objects import is_url, plain_path

_PREFIX = ".records-"
_LOCK = "lock"
_PIECE = 2**20  # bytes of a stream, at a time
_ROWS = 1_000  # of a dataset, at a time
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


@contextmanager
def spooled(
    records: Iterable[Any], output: Any, text_key: str, *, shared: bool = False
) -> Iterator[Path]:
    """Write records to a file that is there while this is entered.

    Args:
        records: dicts; or texts, which are dicts with the key `text_key`.
        output: the dataset they are for. If it is in a bucket, the file is in `$TMPDIR`.
        text_key: see there.
        shared: other machines have to read the file.

    Raises:
        InputError: a record is neither, or holds what JSON cannot; there are none.
    """
    with _folder(output, shared) as folder:
        file = folder / "records.jsonl"
        with file.open("wb") as opened:
            for line in _lines(_all(records), text_key):
                _write(opened, line)
            _write(opened)
        if not file.stat().st_size:
            raise InputError("there are no records to convert: the iterable is empty or exhausted")
        yield file.rename(folder / f"records-{look_at(str(file)).digest}.jsonl")


@contextmanager
def spooled_stream(stream: IO[bytes], output: Any, *, shared: bool = False) -> Iterator[Path]:
    """Write what a stream holds, lines of JSON, to a file that is there while this is entered.

    The arguments are those of :func:`spooled`. A stream cannot be read twice: from the file it can,
    by all workers, and the same content in another process resumes what was begun.

    Raises:
        InputError: the stream is empty.
    """
    with _folder(output, shared) as folder:
        file = folder / "standard-input.jsonl"
        with file.open("wb") as opened:
            while piece := stream.read(_PIECE):
                _write(opened, piece)
            _write(opened)
        if not file.stat().st_size:
            raise InputError("standard input is empty: expected lines of JSON")
        yield file.rename(folder / f"standard-input-{look_at(str(file)).digest}.jsonl")


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
    tables = records.with_format("arrow", columns=records.format["columns"]).iter(_ROWS)
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
