"""tiktoken encodings (`tiktoken:NAME`, or `tiktoken:FILE` for a `.tiktoken` file of ranks)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.errors import InputError, MissingExtra
from jaxdata.tokenizers.base import BaseTokenizer, SpecialToken

__all__ = ["TiktokenTokenizer"]

_RANKS, _ENCODING = "ranks.tiktoken", "encoding.json"
_END = "<|endoftext|>"

# How the published encodings split text, and their special tokens: a rank file has neither.
_GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PUBLISHED: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": (_GPT2_SPLIT, {_END: 50256}),
    "r50k_base": (_GPT2_SPLIT, {_END: 50256}),
    "p50k_base": (_GPT2_SPLIT, {_END: 50256}),
    "cl100k_base": (
        _CL100K_SPLIT,
        {
            _END: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": (_O200K_SPLIT, {_END: 199999, "<|endofprompt|>": 200018}),
}


class TiktokenTokenizer(BaseTokenizer):
    """An encoding of tiktoken; special tokens in a text are encoded as plain text."""

    kind = "tiktoken"

    def __init__(
        self,
        encoding: Any,
        *,
        name: str,
        ranks: bytes | None = None,
        eod: SpecialToken = None,
        bos: SpecialToken = None,
        pad: SpecialToken = None,
    ) -> None:
        self.name = name
        self._encoding = encoding
        self._ranks = _format_ranks(encoding) if ranks is None else ranks
        self.vocab_size = encoding.n_vocab
        self._encode = encoding.encode_ordinary
        if hasattr(encoding, "encode_to_numpy"):  # not yet in 0.8
            self._encode = partial(encoding.encode_to_numpy, disallowed_special=())
        known_end = encoding._special_tokens.get(_END)
        self.choose_special_ids(self._find, known_end if eod is None else eod, bos, pad)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, name: str, eod: int) -> TiktokenTokenizer:
        """Make it again from its ranks, pattern and special tokens."""
        settings = json.loads(files[_ENCODING])
        ranks = files[_RANKS]
        encoding = _make(name, ranks, settings["pattern"], settings["special_tokens"])
        return cls(encoding, name=name, ranks=ranks, eod=eod)

    @classmethod
    def from_ranks(
        cls, path: Path, ranks: bytes, eod: SpecialToken, bos: SpecialToken, pad: SpecialToken
    ) -> TiktokenTokenizer:
        """Make one from a `.tiktoken` file, whose name says which encoding it is."""
        name = path.name.split(".")[0]
        if name not in _PUBLISHED:
            raise InputError(
                f"{path}: a rank file does not say how its encoding splits text, so it must be "
                f"named after one that jaxdata knows: {', '.join(_PUBLISHED)} (.tiktoken)"
            )
        encoding = _make(name, ranks, *_PUBLISHED[name])
        return cls(encoding, name=name, ranks=ranks, eod=eod, bos=bos, pad=pad)

    @classmethod
    def published(
        cls, name: str, eod: SpecialToken, bos: SpecialToken, pad: SpecialToken
    ) -> TiktokenTokenizer:
        """Get an encoding by name from tiktoken itself, which downloads what it has not cached."""
        tiktoken = _import_tiktoken()
        if name not in tiktoken.list_encoding_names():
            raise InputError(
                f"tiktoken knows no encoding {name!r} and there is no such file; it knows: "
                + ", ".join(sorted(tiktoken.list_encoding_names()))
            )
        try:
            encoding = tiktoken.get_encoding(name)
        except Exception as error:  # whatever its http client raises
            raise InputError(
                f"tiktoken could not download {name!r} ({type(error).__name__}); "
                f"give the file instead: tiktoken:path/to/{name}.tiktoken"
            ) from error
        return cls(encoding, name=name, eod=eod, bos=bos, pad=pad)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text: uint32 of shape (tokens,)."""
        return [np.asarray(self._encode(text), dtype=np.uint32) for text in texts]

    def decode_ids(self, ids: list[int]) -> str:
        """Return the text of ids; special tokens give nothing."""
        special = set(self._encoding._special_tokens.values())
        try:
            return str(self._encoding.decode([i for i in ids if i not in special]))
        except KeyError as error:
            raise InputError(f"{error.args[0]} is not an id of {self.name!r}") from error

    def piece_lengths(self) -> Sequence[int]:
        """The ranks are the bytes themselves; unused ids and special tokens have none."""
        lengths = [0] * self.vocab_size
        for piece, i in self._encoding._mergeable_ranks.items():
            lengths[i] = len(piece)
        return lengths

    def files(self) -> dict[str, bytes]:
        """Return the file of ranks, and a json with the rest of the encoding."""
        settings = {
            "pattern": self._encoding._pat_str,
            "special_tokens": self._encoding._special_tokens,
        }
        encoding = json.dumps(settings, indent=1, sort_keys=True).encode() + b"\n"
        return {_RANKS: self._ranks, _ENCODING: encoding}

    def _find(self, token: str) -> int | None:
        try:
            return int(self._encoding.encode_single_token(token))
        except KeyError:
            return None


def _make(name: str, ranks: bytes, pattern: str, special_tokens: Mapping[str, int]) -> Any:
    return _import_tiktoken().Encoding(
        name=name,
        pat_str=pattern,
        mergeable_ranks=_parse_ranks(name, ranks),
        special_tokens=dict(special_tokens),
    )


def _format_ranks(encoding: Any) -> bytes:
    ranks = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(piece) + b" %d\n" % rank for piece, rank in ranks)


def _parse_ranks(name: str, data: bytes) -> dict[bytes, int]:
    """Read the lines of a rank file, "base64 rank"."""
    ranks = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            piece, rank = line.split()
            ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise InputError(
                f"line {number} of the rank file of {name!r} is not 'base64 rank'"
            ) from error
    return ranks


def _import_tiktoken() -> Any:
    try:
        import tiktoken
    except ImportError as error:
        raise MissingExtra("tiktoken", "tiktoken") from error
    return tiktoken
