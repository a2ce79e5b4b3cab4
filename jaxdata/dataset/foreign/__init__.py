"""Datasets of other tools, used in place: one file for each format, and this registry of them."""

import re
from collections.abc import Sequence
from pathlib import Path

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.foreign import datatrove, gpts, megatron, nanogpt
from jaxdata.dataset.foreign.contract import FlatPart, ForeignFormat, ForeignWriter, ReadOptions
from jaxdata.storage import LocalStore, local_path

__all__ = ["FORMATS", "ForeignWriter"]

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


def read_parts(spec: str, eod_id: int | None = None, sequences: bool = False) -> list[FlatPart]:
    """Find the documents of another tool's dataset; raises DatasetError if it is damaged.

    The path of a pair of files is what precedes `.bin` and `.idx`; a folder stands for all files of
    the format in it, sorted. `eod_id` ends documents (nanogpt); None for GPT-2's, -1 for no such
    token. `sequences` takes Megatron's sequences for documents.
    """
    path, format = _path(spec), find_format(spec)
    options = ReadOptions(eod_id, sequences, beside(spec))
    one = not path.is_dir() or Path(f"{path}.idx").is_file()
    return [format.read(each, options) for each in ([path] if one else _files(path, format))]


def _path(spec: str) -> Path:
    """The path of a dataset."""
    name, _, where = spec.partition(":")
    if not where:
        raise InputError(f"{spec!r}: expected {name}: followed by a path")
    named = re.sub(r"\.(idx|bin)$", "", where) if FORMATS[name].is_pair else where
    return local_path(named, "copy the files of other tools to a disk, or convert the texts")


def _files(folder: Path, format: ForeignFormat) -> Sequence[Path]:
    """The datasets of a format in a folder."""
    named = (file for file in folder.iterdir() if file.name.endswith(format.suffix))
    found = sorted(named, key=str)
    if not found:
        raise DatasetError(f"the folder {folder} holds no file that ends in {format.suffix}")
    return [file.with_suffix("") if format.is_pair else file for file in found]
