"""tiktoken's core as the encoder of byte-level BPE of Hugging Face's kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from jaxdata.installing import install_command
from jaxdata.tokenizers.base import CannotEncode, Tokenizer, fails_on_text
from jaxdata.tokenizers.encoders.base import Encoder, Refused
from jaxdata.tokenizers.encoders.byte_level import AddedTokens, parts_of
from jaxdata.tokenizers.encoders.code_points import python_unassigned
from jaxdata.tokenizers.encoders.library_tables import unassigned
from jaxdata.tokenizers.encoders.merges import check_merges, ranks_of

# Stand for added tokens, one each: a text with one of them is left to the library. (tiktoken takes
# special tokens in no particular order, where one begins with another.)
_MARKS = range(0xF0000, 0xF0000 + 4_096)


class TiktokenEncoder(Encoder):
    """Tokens ranked by the order of the merges that make them; their ids by one gather."""

    name = "tiktoken"
    kinds = ("hf",)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._parts = parts_of(tokenizer)
        parts = self._parts
        self._marks: dict[int, str] = {}
        for added in parts.added:
            self._mark(added)
        ranks = ranks_of(parts)
        special = {mark: len(ranks) + n for n, mark in enumerate(self._marks.values())}
        encoding = _tiktoken().Encoding(
            "jaxdata", pat_str=parts.pattern, mergeable_ranks=ranks, special_tokens=special
        )
        core = encoding._core_bpe
        self._plain = core.encode_ordinary
        self._marked = partial(core.encode, allowed_special={*special})
        self._ids = np.array([*parts.ids.values(), *self._marks], np.uint32)

    def _mark(self, added: AddedTokens) -> None:
        for token in added.ids.values():
            if len(self._marks) == len(_MARKS):
                raise Refused(f"it has more than {len(_MARKS):,} added tokens")
            self._marks[token] = chr(_MARKS[len(self._marks)])

    @classmethod
    def version(cls) -> str:
        _tiktoken()
        return f"tiktoken {version('tiktoken')}"

    @classmethod
    def check(cls, tokenizer: Tokenizer) -> None:
        check_merges(parts_of(tokenizer))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._encode_one(text) for text in texts]

    def _encode_one(self, text: str) -> np.ndarray:
        early, late = self._parts.added
        mark = self._marks.__getitem__
        once = early.replace(text, mark)
        normal = self._parts.normal(once)
        marked = late.replace(normal, mark)
        encode = self._plain if once == text and marked == normal else self._marked
        try:
            ids: np.ndarray = self._ids[encode(marked)]
        except BaseException as error:
            if not fails_on_text(error):
                raise
            raise CannotEncode(f"tiktoken's core fails on a text: {error}") from error
        return ids

    def unassigned(self) -> np.ndarray:
        own = unassigned("tiktoken")
        return np.union1d(own, python_unassigned()) if self._parts.nfc else own


def _tiktoken() -> Any:
    try:
        import tiktoken
    except ImportError:
        raise Refused(f"it is not installed: {install_command('tiktoken')}") from None
    return tiktoken
