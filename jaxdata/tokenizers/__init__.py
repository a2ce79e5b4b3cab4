"""Text to token ids and back, whichever library made the tokenizer.

>>> tokenizer = load("bytes")
>>> tokenizer.decode(tokenizer.encode(["one text"])[0])
'one text'
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from jaxdata.base.errors import InputError, log, nearest
from jaxdata.base.numbers import validated
from jaxdata.storage.small_files import local_copy
from jaxdata.tokenizers.base import CannotEncode, SpecialToken, Tokenizer, hub_hint
from jaxdata.tokenizers.training import train, train_byte_level

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

SPECS = (
    "sentencepiece:FILE, hf:FILE-or-FOLDER (a tokenizer.json, or a model's folder), "
    "tiktoken:NAME-or-FILE, gpt2:FOLDER (vocab.bpe and encoder.json), or bytes"
)
"""The tokenizers that a user can name."""
_ENDINGS = (".json", ".txt", ".model", ".tiktoken", ".jinja", ".bpe")
"""of the files that are copied from a folder in a bucket"""
_CLASSES = {
    "sentencepiece": "jaxdata.tokenizers.sentencepiece:SentencePieceTokenizer",
    "hf": "jaxdata.tokenizers.huggingface:HuggingFaceTokenizer",
    "gpt2": "jaxdata.tokenizers.huggingface:HuggingFaceTokenizer",
    "tiktoken": "jaxdata.tokenizers.tiktoken:TiktokenTokenizer",
    "bytes": "jaxdata.tokenizers.bytes:BytesTokenizer",
}
_SUFFIXES = {".json": "hf", ".model": "sentencepiece", ".tiktoken": "tiktoken"}
_IN_FOLDERS = {
    "tokenizer.json": "hf",
    "ranks.tiktoken": "tiktoken",
    "vocab.bpe": "gpt2",
    "tokenizer_config.json": "hf",
}
"""What the name of a file, or of one in a folder, says of a tokenizer's kind."""


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
    if kind not in _CLASSES or bool(where) != (kind != "bytes"):
        guessed = _guessed(spec)
        log.warning("tokenizer %r: taken for %s", spec, guessed)
        return _load(guessed, chosen)
    with ExitStack() as copies:
        places = where.split(",") if kind == "gpt2" else [where]
        paths = [copies.enter_context(local_copy(place, _ENDINGS)) for place in places]
        return _class(kind).load(spec, paths, **chosen)


def _guessed(spec: str) -> str:
    """The whole spec of a path or a name without its kind."""
    from jaxdata.tokenizers.tiktoken import PUBLISHED

    path = Path(spec).expanduser()
    if path.is_dir():
        kind = next((k for name, k in _IN_FOLDERS.items() if (path / name).exists()), None)
    else:
        kind = _SUFFIXES.get(path.suffix, "tiktoken" if spec in PUBLISHED else None)
    if kind:
        return f"{kind}:{spec}"
    known = f"expected {SPECS}{nearest(spec.partition(':')[0], _CLASSES)}"
    raise InputError(f"unknown tokenizer {spec!r}{hub_hint(spec, path) or f'; {known}'}")


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
        tokenizer = _class(kind)(files, name=name, eod=eod_id)
    except KeyError as error:
        raise InputError(
            f"the {kind} tokenizer {name!r} lacks its file {error.args[0]!r}; has {sorted(files)}"
        ) from error
    tokenizer.bos_id, tokenizer.pad_id = bos_id, pad_id
    return tokenizer


def _class(kind: str) -> type[Tokenizer]:
    module, name = _CLASSES[kind].split(":")
    found: type[Tokenizer] = getattr(import_module(module), name)
    return found
