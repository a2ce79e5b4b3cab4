"""What a program gives: names of files, or records.

Records are written down as JSON lines, so all cores read them and a resume compares them.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import orjson

from jaxdata.base.errors import DatasetError, InputError, log
from jaxdata.storage.contract import is_url, plain_path
from jaxdata.storage.local import locked

_PREFIX = ".records-"
_PIECE = 2**20  # bytes of a stream, at a time
_ROWS = 1_000  # of a table, at a time
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
_TABLES = (("pandas", "DataFrame"), ("pyarrow", "Table"), ("datasets", "Dataset"))


@contextmanager
def files_of(
    inputs: Any,
    output: Any,
    *,
    files_from: Sequence[str | Path] = (),
    split: str = "train",
    text_key: str = "text",
    shared: bool = False,
) -> Iterator[tuple[list[str | Path], bool]]:
    """The names of files that `convert` is given; of records and standard input, of a file of them.

    With them it is said whether that file was made here. A stream cannot be read twice: from that
    file it can, by all workers, and the same content in another process resumes what was begun,
    since a hash of it is the file's name. The file is there while this is entered, in the folder of
    the output, or in `$TMPDIR` if that is in a bucket.

    Args:
        inputs: as of `convert`.
        output: see there.
        files_from: see there.
        split: see there.
        text_key: the key of records that are texts.
        shared: other machines have to read the file.

    Raises:
        InputError: a record is neither a dict nor a text, or holds what JSON cannot; there are
            none; or both records and names of files are given.
    """
    files, records = files_or_records(inputs, "convert", split)
    piped = "-" in map(str, files)
    if records is None and not piped:
        yield files, False
        return
    if files_from or len(files) > 1:
        raise InputError(
            "records, and standard input (-), are read alone: convert them first, then the files "
            "with --append (append=True)"
        )
    pieces = iter(partial(sys.stdin.buffer.read, _PIECE), b"")
    if not piped:
        pieces = _lines(records or (), text_key)
    with _folder(output, shared) as folder:
        file, content = folder / "records.jsonl", hashlib.blake2b(digest_size=8)
        with file.open("wb") as opened:
            for piece in pieces:
                _write(opened, piece)
                content.update(piece)
            _write(opened)
        if not file.stat().st_size:
            raise InputError("there are no records to convert: what is given is empty or exhausted")
        name = "standard-input" if piped else "records"
        yield [file.rename(folder / f"{name}-{content.hexdigest()}.jsonl")], True


@contextmanager
def _folder(output: Any, shared: bool) -> Iterator[Path]:
    """A folder that is locked, and deleted at the end; those of processes that are gone go, too."""
    root = None if is_url(output) else Path(plain_path(output)).expanduser().absolute()
    if shared and root is None:
        raise InputError(
            f"records are first written to a file, which other machines cannot read if the output "
            f"is {plain_path(output)}: save them to files in a bucket and give those, or leave "
            'engine="ray" out'
        )
    if root:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{root} cannot be written: {error.strerror}") from None
        for left in root.glob(f"{_PREFIX}*/*"):  # one without a file may not be locked yet
            with suppress(OSError), locked(left.parent):
                shutil.rmtree(left.parent, ignore_errors=True)
    try:
        with (
            TemporaryDirectory(prefix=_PREFIX, dir=root, ignore_cleanup_errors=True) as folder,
            ExitStack() as lock,
        ):
            with suppress(OSError):  # a file system without locks: nothing is swept there
                lock.enter_context(locked(Path(folder)))
            yield Path(folder).absolute()
    finally:
        with suppress(OSError):  # it holds a dataset
            if root:
                root.rmdir()


def _write(file: IO[bytes], piece: bytes = b"") -> None:
    """Write a piece; without one, what is left to write."""
    try:
        file.write(piece)
        if not piece:
            file.flush()
    except OSError as error:
        raise DatasetError(
            f"the records cannot be written to {file.name} ({error.strerror}): that disk needs "
            "room for them as JSON lines; the same call starts anew"
        ) from None


def _lines(records: Iterable[Any], text_key: str) -> Iterator[bytes]:
    for number, record in enumerate(records):
        fields = fields_of(record, number, text_key)
        try:
            try:
                yield orjson.dumps(fields, default=_plain, option=_OPTIONS)
            except TypeError:
                # Numbers above 64 bits, half a surrogate pair, keys that are no texts.
                yield json.dumps(fields, default=_plain).encode() + b"\n"
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


def _plain(value: Any) -> Any:
    """What JSON has for a value that it does not know."""
    if isinstance(value, Decimal | Path):
        return str(value)
    for method in ("tolist", "decode", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"{type(value).__name__} is no value of JSON")


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
    if any(isinstance(given, getattr(sys.modules.get(of), kind, ())) for of, kind in _TABLES):
        return [], _Rows(given)
    if not isinstance(given, Iterable):
        raise InputError(
            f"{function} got a {type(given).__name__}: expected files, folders or globs; or "
            "records: an iterable of dicts or texts, a Hugging Face dataset, a pandas DataFrame, a "
            "pyarrow Table"
        )
    if isinstance(given, Iterator) and not hasattr(given, "state_dict"):
        first = list(islice(given, 1))
        given = chain(first, given)
        names = [one for one in first if isinstance(one, str | Path)]
        named = any(isinstance(one, Path) or os.path.exists(one) for one in names)  # noqa: PTH110
        return (list(given), None) if named else ([], given)
    if isinstance(given, Collection) and all(isinstance(one, str | Path) for one in given):
        return list(given), None
    return [], given


@dataclass
class _Rows:
    """The rows of a table as dicts, many read at a time; missing values are None."""

    table: Any

    def __iter__(self) -> Iterator[dict[str, Any]]:
        table = self.table
        if hasattr(table, "iloc"):
            for first in range(0, len(table), _ROWS):
                part = table.iloc[first : first + _ROWS]
                yield from part.astype(object).where(part.notna(), None).to_dict("records")
        elif not hasattr(table, "with_format"):
            for batch in table.to_batches(_ROWS):
                yield from batch.to_pylist()
        elif table.format["type"] == "custom":  # a function of the user's makes each row
            yield from table
        else:
            columns = table.format["columns"]
            for part in table.with_format("arrow", columns=columns).iter(_ROWS):
                yield from part.to_pylist()


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
        log.warning("of the splits %s, %s is converted: call again for another", names, split)
    return given[split]
