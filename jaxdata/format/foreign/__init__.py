"""Datasets of other tools, read where they lie: one file for each of their layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jaxdata.errors import DatasetError, InputError
from jaxdata.format.foreign import datatrove, gpts, megatron, nanogpt
from jaxdata.format.foreign.layout import Layout, Part
from jaxdata.format.foreign.nanogpt import GPT2_EOD
from jaxdata.format.storage import LocalStore

__all__ = ["GPT2_EOD", "KINDS", "Layout", "beside", "is_foreign", "read_layout", "source_name"]

KINDS = {"megatron": ".idx", "gpts": ".idx", "nanogpt": ".bin", "datatrove": ".ds"}
"""Kind -> how the files end that a folder of them is searched for."""


def is_foreign(path: str) -> bool:
    """Whether a path names another tool's dataset, as `"megatron:PREFIX"` does.

    >>> is_foreign("megatron:data/pile"), is_foreign("gs://bucket/pile")
    (True, False)
    """
    return path.partition(":")[0] in KINDS and ":" in path


def source_name(spec: str) -> str:
    """The last component of its path.

    >>> source_name("megatron:data/pile_document"), source_name("nanogpt:owt/train.bin")
    ('pile_document', 'train.bin')
    """
    return _path(spec)[1].name


def beside(spec: str) -> LocalStore:
    """The folder for what is kept about it, beside it."""
    return LocalStore(f"{_path(spec)[1]}.jaxdata")


def read_layout(spec: str, *, eod_id: int | None = None, sequences: bool = False) -> Layout:
    """Find the documents of another tool's dataset.

    Args:
        spec: `"<kind>:<path>"`; the path of a pair of files is what comes before `.bin` and
            `.idx`. A folder stands for all files of the kind in it, sorted.
        eod_id: the token that ends documents (nanogpt); None for GPT-2's, -1 for no such token.
        sequences: of megatron, take sequences for documents.

    Raises:
        DatasetError: a file is missing, truncated or damaged.
    """
    kind, path = _path(spec)
    readers: dict[str, Callable[[Path], Part]] = {
        "megatron": lambda one: megatron.read(one, sequences=sequences),
        "gpts": gpts.read,
        "datatrove": datatrove.read,
        "nanogpt": lambda one: nanogpt.read(
            one, eod_id=GPT2_EOD if eod_id is None else eod_id, beside=beside(spec)
        ),
    }
    return Layout(spec, [readers[kind](one) for one in _files(kind, path)])


def _path(spec: str) -> tuple[str, Path]:
    kind, _, where = spec.partition(":")
    if not where or "://" in where:
        raise InputError(f"{spec!r}: expected {kind}: and a path on this machine after it")
    pair = KINDS[kind] == ".idx" and where.endswith((".idx", ".bin"))
    return kind, Path(where[:-4] if pair else where).expanduser()


def _files(kind: str, path: Path) -> list[Path]:
    suffix = KINDS[kind]
    if not path.is_dir() or Path(f"{path}.idx").is_file():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(suffix))
    if not found:
        raise DatasetError(f"the folder {path} holds no file that ends in {suffix}")
    return [file.with_suffix("") if suffix == ".idx" else file for file in found]
