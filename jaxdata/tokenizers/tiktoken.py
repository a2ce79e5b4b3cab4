"""tiktoken encodings (`tiktoken:NAME`, or `tiktoken:FILE` for a `.tiktoken` file of ranks)."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxdata.base.errors import InputError, extra_module
from jaxdata.base.lazy import cached_property
from jaxdata.tokenizers import base
from jaxdata.tokenizers.base import SpecialToken, Tokenizer

_RANKS, _ENCODING = "ranks.tiktoken", "encoding.json"
_END = "<|endoftext|>"
_PAD = "<pad>"

# Their special tokens: a rank file has none.
PUBLISHED: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": (base.GPT2_SPLIT, {_END: 50256}),
    "r50k_base": (base.GPT2_SPLIT, {_END: 50256}),
    "p50k_base": (base.GPT2_SPLIT, {_END: 50256}),
    "cl100k_base": (
        base.CL100K_SPLIT,
        {
            _END: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": (base.O200K_SPLIT, {_END: 199999, "<|endofprompt|>": 200018}),
}


class TiktokenTokenizer(Tokenizer):
    """An encoding of tiktoken; special tokens in a text are encoded as plain text."""

    kind = "tiktoken"

    def __init__(self, files: Mapping[str, bytes], *, name: str, **chosen: SpecialToken) -> None:
        self.name, self._ranks = name, files[_RANKS]
        settings, tiktoken = json.loads(files[_ENCODING]), extra_module("tiktoken", "tiktoken")
        with base.told_as(InputError, f"tiktoken cannot make the encoding {name!r}"):
            self._encoding = tiktoken.Encoding(
                name=name,
                pat_str=settings["pattern"],
                mergeable_ranks=_parse_ranks(name, self._ranks),
                special_tokens=settings["special_tokens"],
            )
        self.vocab_size = self._encoding.n_vocab
        end, pad = (self.special_tokens.get(text) for text in (_END, _PAD))
        self.choose_special_ids(end, None, pad, **chosen)

    @classmethod
    def load(cls, spec: str, paths: Sequence[Path], /, **chosen: SpecialToken) -> Self:
        """Make one from a folder as a dataset keeps it, a file of ranks, or tiktoken's own name."""
        (path,), name = paths, paths[0].name.split(".")[0]
        if path.is_dir():
            if missing := [file for file in (_RANKS, _ENCODING) if not (path / file).is_file()]:
                raise InputError(
                    f"{spec} is a folder without {' and '.join(missing)}; an encoding has {_RANKS} "
                    f'and {_ENCODING}: {{"pattern": "how text is split", "special_tokens": '
                    '{"text": id}}'
                )
            files = {file: base.read_file(path / file, spec) for file in (_RANKS, _ENCODING)}
            return cls(files, name=path.name, **chosen)
        if path.suffix != ".tiktoken" and not path.is_file():
            return cls(_published(path.name), name=path.name, **chosen)
        ranks = base.read_file(path, spec)
        if name not in PUBLISHED:
            raise InputError(
                f"{path}: a rank file does not say how its encoding splits text, so it must be "
                f"named after one that jaxdata knows: {', '.join(PUBLISHED)} (.tiktoken); or give "
                f"a folder with it as {_RANKS} and the rest in {_ENCODING}"
            )
        return cls(_files(ranks, *PUBLISHED[name]), name=name, **chosen)

    def extended(self, texts: Sequence[str], **ids: int | None) -> "TiktokenTokenizer":
        special = {**self.special_tokens, **{t: self.vocab_size + n for n, t in enumerate(texts)}}
        files = _files(self._ranks, self._encoding._pat_str, special)
        return TiktokenTokenizer(files, name=self.name, **ids)

    @property
    def special_tokens(self) -> Mapping[str, int]:
        special: dict[str, int] = self._encoding._special_tokens
        return special

    @cached_property
    def cuts_between_words(self) -> bool:
        return self._encoding._pat_str in base.KNOWN_SPLITS

    def encode_texts(self, texts: Sequence[str], special: bool) -> list[np.ndarray]:
        known = "all" if special else set()
        return [self._encode_one(text, known) for text in texts]

    def _encode_one(self, text: str, known: Any) -> np.ndarray:
        try:
            ids = self._encoding.encode_to_numpy(text, allowed_special=known, disallowed_special=())
        except BaseException:  # the splitting rule ran out of room
            what = f"{self.name!r} cannot encode a text of {len(text):,} characters"
            with base.told_as(base.CannotEncode, what):
                raise
        return np.asarray(ids, dtype=np.uint32)

    def decode_ids(self, ids: list[int]) -> str:
        special = set(self.special_tokens.values())
        try:
            return str(self._encoding.decode([i for i in ids if i not in special]))
        except KeyError as error:
            raise InputError(f"{error.args[0]} is not an id of {self.name!r}") from error

    def piece_bytes(self) -> Sequence[bytes]:
        pieces = [b""] * self.vocab_size
        for piece, i in self._encoding._mergeable_ranks.items():
            pieces[i] = piece
        return pieces

    def files(self) -> dict[str, bytes]:
        return _files(self._ranks, self._encoding._pat_str, self.special_tokens)

    def token_id(self, text: str) -> int | None:
        try:
            return int(self._encoding.encode_single_token(text))
        except KeyError:
            return None


def _files(ranks: bytes, pattern: str, special_tokens: Mapping[str, int]) -> dict[str, bytes]:
    settings = {"pattern": pattern, "special_tokens": special_tokens}
    encoding = json.dumps(settings, indent=1, sort_keys=True).encode() + b"\n"
    return {_RANKS: ranks, _ENCODING: encoding}


def _published(name: str) -> dict[str, bytes]:
    """The files of an encoding of tiktoken itself, which downloads what it has not cached."""
    tiktoken = extra_module("tiktoken", "tiktoken")
    if name not in (known := tiktoken.list_encoding_names()):
        raise InputError(
            f"tiktoken knows no encoding {name!r} and there is no such file; it knows: "
            + ", ".join(sorted(known))
        )
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:  # whatever its http client raises
        raise InputError(
            f"tiktoken could not download {name!r} ({type(error).__name__}); "
            f"give the file instead: tiktoken:path/to/{name}.tiktoken"
        ) from error
    known = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
    ranks = b"".join(base64.b64encode(piece) + b" %d\n" % rank for piece, rank in known)
    return _files(ranks, encoding._pat_str, encoding._special_tokens)


def _parse_ranks(name: str, data: bytes) -> dict[bytes, int]:
    """Read the lines of a rank file, "base64 rank"."""
    ranks = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            piece, rank = line.split()
            ranks[binascii.a2b_base64(piece, strict_mode=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise InputError(
                f"line {number} of the rank file of {name!r} is not 'base64 rank'"
            ) from error
    return ranks
