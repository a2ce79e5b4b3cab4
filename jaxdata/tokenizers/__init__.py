"""Text to token ids and back, whichever library made the tokenizer.

>>> tokenizer = load("bytes")
>>> tokenizer.decode(tokenizer.encode(["one text"])[0])
'one text'
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import validated
from jaxdata.base.wording import nearest
from jaxdata.storage.small_files import local_copy, read_plain
from jaxdata.storage.urls import is_url, plain_path
from jaxdata.tokenizers.base import CannotEncode, SpecialToken, Tokenizer
from jaxdata.tokenizers.byte_level_training import train_byte_level
from jaxdata.tokenizers.training import train

__all__ = [
    "SPECS",
    "CannotEncode",
    "SpecialToken",
    "Tokenizer",
    "load",
    "restore",
    "train",
    "train_byte_level",
]

_log = logging.getLogger("jaxdata")
SPECS = (
    "sentencepiece:FILE, hf:FILE-or-FOLDER (a tokenizer.json, or a model's folder), "
    "tiktoken:NAME-or-FILE, gpt2:FOLDER (vocab.bpe and encoder.json), or bytes"
)
"""The tokenizers that a user can name."""
_ENDINGS = (".json", ".txt", ".model", ".tiktoken", ".jinja", ".bpe")
"""of the files that are copied from a folder in a bucket"""
_HUB_NAME = r"[\w.-]+/[\w.-]+"
_SUFFIXES = {".json": "hf", ".model": "sentencepiece", ".tiktoken": "tiktoken"}
_IN_FOLDERS = {
    "tokenizer.json": "hf",
    "ranks.tiktoken": "tiktoken",
    "vocab.bpe": "gpt2",
    "tokenizer_config.json": "hf",
}
"""What the name of a file, or of one in a folder, says of a tokenizer's kind."""
_CLASSES = {
    "sentencepiece": "jaxdata.tokenizers.sentencepiece:SentencePieceTokenizer",
    "hf": "jaxdata.tokenizers.huggingface:HuggingFaceTokenizer",
    "tiktoken": "jaxdata.tokenizers.tiktoken:TiktokenTokenizer",
    "bytes": "jaxdata.tokenizers.bytes:BytesTokenizer",
}


@validated
def load(
    spec: str,
    eod: SpecialToken = None,
    bos: SpecialToken = None,
    pad: SpecialToken = None,
    add_special: Sequence[str] = (),
) -> Tokenizer:
    """Load a tokenizer.

    Args:
        spec: "sentencepiece:FILE", "hf:FILE-or-FOLDER", "tiktoken:NAME-or-FILE-or-FOLDER",
            "gpt2:FOLDER" or "bytes"; files and folders may be URLs, as in "hf:gs://bucket/model".
            Without its kind, a path is taken for what its name says, and a name for tiktoken's.
        eod: the end-of-document token, as its text or id; None for the tokenizer's own.
        bos: the begin-of-sequence token, as its text or id.
        pad: the padding token, as its text or id.
        add_special: texts of special tokens to add at the end of the vocabulary, where it lacks
            them; `eod`, `bos` and `pad` may name them.

    Raises:
        InputError: the spec is not understood, its file is missing or damaged, or a special token
            is not in the vocabulary; the text says what to give instead.
        MissingExtra: the library of the tokenizer is not installed.

    >>> load("bytes").eod_id
    256
    """
    chosen = {"eod": eod, "bos": bos, "pad": pad}
    added = {role: token for role, token in chosen.items() if token in add_special}
    # 0 stands for an EOD that is yet to be added.
    loaded = _load(spec, chosen | dict.fromkeys(added) | {"eod": 0 if "eod" in added else eod})
    tokenizer = loaded.with_special(add_special)
    for role, token in added.items():
        setattr(tokenizer, f"{role}_id", tokenizer.special_id(role, token))
    return tokenizer


def _load(spec: str, chosen: Mapping[str, SpecialToken]) -> Tokenizer:
    kind, _, where = spec.partition(":")
    where = plain_path(where)
    if kind not in (*_CLASSES, "gpt2") or bool(where) != (kind != "bytes"):
        if guessed := _guessed(spec):
            _log.warning("tokenizer %r: taken for %s", spec, guessed)
            return _load(guessed, chosen)
        near = "" if kind in (*_CLASSES, "gpt2") else nearest(kind, _CLASSES)
        known = f"expected {SPECS}{near}"
        if re.fullmatch(_HUB_NAME, spec) and not Path(spec).expanduser().exists():
            known = f"{_download(spec)}, and then given as hf:FOLDER"
        raise InputError(f"unknown tokenizer {spec!r}; {known}")
    if kind == "bytes":
        return _class("bytes")(**chosen)  # type: ignore[no-any-return]
    with ExitStack() as copies:
        places = where.split(",") if kind == "gpt2" else [where]
        found = [copies.enter_context(local_copy(one, _ENDINGS)) for one in places]
        if is_url(where):
            where = ",".join(map(str, found))
        return _load_local(kind, where, found[0], spec, chosen)


def _load_local(
    kind: str, where: str, path: Path, spec: str, chosen: Mapping[str, SpecialToken]
) -> Tokenizer:
    if kind == "tiktoken":
        return _load_tiktoken(where, path, chosen)
    if kind == "sentencepiece":
        return _class(kind)(_read(path, spec), name=path.name, **chosen)  # type: ignore[no-any-return]
    files = _hugging_face_files(spec, where, path) if kind == "hf" else _gpt2_files(spec, where)
    return _class("hf")(files, name=path.name, **chosen)  # type: ignore[no-any-return]


def _hugging_face_files(spec: str, where: str, path: Path) -> dict[str, bytes]:
    from jaxdata.tokenizers.huggingface import TOKENIZER, read_folder

    if path.is_dir():
        return read_folder(path)
    if not path.exists() and re.fullmatch(rf"[\w.-]+|{_HUB_NAME}", where) and not path.suffix:
        raise InputError(f"tokenizer {spec!r}: there is no such file or folder; {_download(where)}")
    return {TOKENIZER: _read(path, spec)}


def _gpt2_files(spec: str, where: str) -> dict[str, bytes]:
    from jaxdata.tokenizers.huggingface import TOKENIZER, find_files, tokenizer_json

    merges, vocabulary = (_read(path, spec) for path in find_files(where))
    return {TOKENIZER: tokenizer_json(merges, vocabulary, where)}


@validated
def restore(
    kind: str,
    files: Mapping[str, bytes],
    *,
    eod_id: int,
    bos_id: int | None = None,
    pad_id: int | None = None,
    name: str,
) -> Tokenizer:
    """Make a tokenizer from the `kind`, `files()` and ids of another; reads no path.

    Args:
        kind: its kind.
        files: its files, by name.
        eod_id: its end of documents.
        bos_id: its beginning of documents, if it has one.
        pad_id: its padding, if it has any.
        name: what it is called in messages.

    >>> restore("bytes", {}, eod_id=256, name="bytes").vocab_size
    257
    """
    if kind not in _CLASSES:
        raise InputError(f"unknown kind of tokenizer {kind!r}; expected one of {list(_CLASSES)}")
    try:
        tokenizer: Tokenizer = _class(kind).from_files(files, name=name, eod=eod_id)
    except KeyError as error:
        raise InputError(
            f"the {kind} tokenizer {name!r} lacks its file {error.args[0]!r}; has {sorted(files)}"
        ) from error
    tokenizer.bos_id, tokenizer.pad_id = bos_id, pad_id
    return tokenizer


def _load_tiktoken(where: str, path: Path, chosen: Mapping[str, SpecialToken]) -> Tokenizer:
    tokenizer = _class("tiktoken")
    if path.is_dir():
        files = {
            file.name: _read(file, f"tiktoken:{where}") for file in path.iterdir() if file.is_file()
        }
        return tokenizer.from_folder(files, where, **chosen)  # type: ignore[no-any-return]
    if path.suffix == ".tiktoken" or path.is_file():
        ranks = _read(path, f"tiktoken:{where}")
        return tokenizer.from_ranks(path, ranks, **chosen)  # type: ignore[no-any-return]
    return tokenizer.published(where, **chosen)  # type: ignore[no-any-return]


def _class(kind: str) -> Any:
    module, name = _CLASSES[kind].split(":")
    return getattr(import_module(module), name)


def _read(path: Path, spec: str) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise InputError(f"tokenizer {spec!r}: cannot read {path}: {error.strerror}") from error


def _guessed(spec: str) -> str | None:
    """The whole spec of a path or a name without its kind; None if there is no telling."""
    from jaxdata.tokenizers.tiktoken import PUBLISHED

    path = Path(spec).expanduser()
    if path.is_dir():
        kind = next((k for name, k in _IN_FOLDERS.items() if (path / name).exists()), None)
    else:
        kind = _SUFFIXES.get(path.suffix)
    if not kind and spec in PUBLISHED:
        kind = "tiktoken"
    return f"{kind}:{spec}" if kind else None


def _download(name: str) -> str:
    return (
        "a model of the Hub must be downloaded before: "
        f"hf download {name} --include 'tokenizer*' --local-dir FOLDER"
    )
