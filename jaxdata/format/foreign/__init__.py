"""Datasets of other tools, used in place: one file for each format, and this registry of them.

`contract` says what a format is; `megatron`, `gpts`, `nanogpt` and `datatrove` are the formats;
`mapped_files` and `token_ranges` are what their readers share.
"""

from __future__ import annotations

from pathlib import Path

from jaxdata.errors import DatasetError, InputError
from jaxdata.format.foreign import datatrove, gpts, megatron, nanogpt
from jaxdata.format.foreign.contract import (
    ForeignFormat,
    ForeignWriter,
    Ranges,
    ReadOptions,
    Written,
)
from jaxdata.format.foreign.token_ranges import TokenRanges
from jaxdata.format.storage import LocalStore

__all__ = [
    "FORMATS",
    "ForeignWriter",
    "Ranges",
    "TokenRanges",
    "Written",
    "beside",
    "find_format",
    "is_foreign",
    "read_token_ranges",
    "source_name",
    "writers",
]

FORMATS: dict[str, ForeignFormat] = {
    module.FORMAT.name: module.FORMAT for module in (megatron, gpts, nanogpt, datatrove)
}


def writers() -> dict[str, type[ForeignWriter]]:
    """The formats that can be written, by name."""
    return {name: format.writer for name, format in FORMATS.items() if format.writer}


def is_foreign(path: str) -> bool:
    """Whether a path names another tool's dataset, as `"megatron:PREFIX"` does.

    >>> is_foreign("megatron:data/pile"), is_foreign("gs://bucket/pile")
    (True, False)
    """
    name, colon, _ = path.partition(":")
    return name in FORMATS and bool(colon)


def find_format(spec: str) -> ForeignFormat:
    """The format that `"<format>:<path>"` names."""
    return FORMATS[spec.partition(":")[0]]


def source_name(spec: str) -> str:
    """The last component of its path.

    >>> source_name("megatron:data/pile_document"), source_name("nanogpt:owt/train.bin")
    ('pile_document', 'train.bin')
    """
    return _path(spec).name


def beside(spec: str) -> LocalStore:
    """The folder beside it for what is computed once."""
    return LocalStore(f"{_path(spec)}.jaxdata")


def read_token_ranges(
    spec: str, *, eod_id: int | None = None, sequences: bool = False
) -> TokenRanges:
    """Find the documents of another tool's dataset; raises DatasetError if it is damaged.

    The path of a pair of files is what precedes `.bin` and `.idx`; a folder stands for all files of
    the format in it, sorted. `eod_id` ends documents (nanogpt); None for GPT-2's, -1 for no such
    token. `sequences` takes Megatron's sequences for documents.
    """
    options = ReadOptions(eod_id, sequences, beside(spec))
    return TokenRanges(spec, [find_format(spec).read(path, options) for path in _files(spec)])


def _path(spec: str) -> Path:
    name, _, where = spec.partition(":")
    if not where or "://" in where:
        raise InputError(f"{spec!r}: expected {name}: followed by a path on this machine")
    pair = FORMATS[name].is_pair and where.endswith((".idx", ".bin"))
    return Path(where[:-4] if pair else where).expanduser()


def _files(spec: str) -> list[Path]:
    path, format = _path(spec), find_format(spec)
    if not path.is_dir() or Path(f"{path}.idx").is_file():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(format.suffix))
    if not found:
        raise DatasetError(f"the folder {path} holds no file that ends in {format.suffix}")
    return [file.with_suffix("") if format.is_pair else file for file in found]
