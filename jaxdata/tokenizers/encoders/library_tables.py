"""What can be told of the library that decides the ids: its version, its Unicode tables."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from jaxdata.tokenizers.base import Tokenizer
from jaxdata.tokenizers.encoders.code_points import matches, unicode_version

_LIBRARIES = {"hf": "tokenizers", "tiktoken": "tiktoken", "sentencepiece": "sentencepiece"}
_UNASSIGNED = r"\p{Cn}"


@cache
def library_of(kind: str) -> str | None:
    """The library that decides the ids of a kind of tokenizer; None for our own.

    With its version as it is installed and, where it can be told, that of its Unicode tables:
    "tokenizers 0.23.3, Unicode 16.0".
    """
    if kind not in _LIBRARIES:
        return None
    named = f"{_LIBRARIES[kind]} {version(_LIBRARIES[kind])}"
    find = _FINDS.get(kind)
    tables = unicode_version(find) if find else None
    return f"{named}, Unicode {tables}" if tables else named


@cache
def unassigned(kind: str) -> NDArray[np.int64]:
    """Code points that the Unicode tables of a kind's library lack; empty where it has none."""
    return matches(_FINDS[kind]) if kind in _FINDS else np.empty(0, np.int64)


def _found_by_tokenizers(text: str) -> str:
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(f"{_UNASSIGNED}+"), "removed", invert=True)
    return "".join(piece for piece, _ in split.pre_tokenize_str(text))


def _found_by_tiktoken(text: str) -> str:
    import tiktoken

    ranks = {bytes([byte]): byte for byte in range(256)}
    made = tiktoken.Encoding(
        "table", pat_str=f"{_UNASSIGNED}+", mergeable_ranks=ranks, special_tokens={}
    )
    return bytes(made.encode_ordinary(text)).decode()


_FINDS = {"hf": _found_by_tokenizers, "tiktoken": _found_by_tiktoken}


def added_texts(tokenizer: Tokenizer) -> list[str]:
    """The texts of tokens beside the vocabulary, special or not."""
    settings = getattr(tokenizer, "settings", None)
    added = settings()["added_tokens"] if settings else []
    return [*tokenizer.special_tokens, *(one["content"] for one in added if not one["special"])]
