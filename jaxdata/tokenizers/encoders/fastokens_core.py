"""fastokens as the encoder of byte-level BPE (`jaxdata[fast]`)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np

from jaxdata.installing import install_command
from jaxdata.tokenizers.base import CannotEncode, Tokenizer, fails_on_text
from jaxdata.tokenizers.encoders.base import Encoder, Refused
from jaxdata.tokenizers.encoders.byte_level import check_parts
from jaxdata.tokenizers.huggingface import HuggingFaceTokenizer
from jaxdata.tokenizers.text_cuts import KNOWN_SPLITS

_PINNED = "0.3.5"
"""The version that the extra `fast` pins: another one is another implementation."""


class FastokensEncoder(Encoder):
    """The whole `tokenizer.json`, or an encoding's ranks, read by another library."""

    name = "fast"
    kinds = ("hf", "tiktoken")

    def __init__(self, tokenizer: Tokenizer) -> None:
        try:
            if isinstance(tokenizer, HuggingFaceTokenizer):
                made = _fastokens().from_json_str(tokenizer.as_json())
            else:
                made = _of_ranks(tokenizer)
        except ValueError as error:
            raise Refused(f"fastokens cannot read it: {error}") from None
        self._encode = made.encode_batch_flat

    @classmethod
    def version(cls) -> str:
        _fastokens()
        return f"fastokens {version('fastokens')}"

    @classmethod
    def check(cls, tokenizer: Tokenizer) -> None:
        if isinstance(tokenizer, HuggingFaceTokenizer):
            check_parts(tokenizer.settings())
        elif (pattern := _pattern(tokenizer)) not in KNOWN_SPLITS:
            raise Refused(f"its splitting rule is not known: {pattern[:60]!r}")
        cls(tokenizer)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        try:
            flat, edges = self._encode(list(texts), split_special_tokens=True)
        except BaseException as error:
            if not fails_on_text(error):
                raise
            raise CannotEncode(f"fastokens fails on a text: {error}") from error
        ids = np.frombuffer(flat, "<u4")
        return [ids[start:stop] for start, stop in pairwise(np.frombuffer(edges, "<u8").tolist())]


def _pattern(tokenizer: Tokenizer) -> str:
    return str(json.loads(tokenizer.files()["encoding.json"])["pattern"])


def _of_ranks(tokenizer: Tokenizer) -> Any:
    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
        file.write(tokenizer.files()["ranks.tiktoken"])
        file.flush()
        # Without special tokens: their texts are encoded as texts.
        return _fastokens().from_tiktoken(file.name, pattern=_pattern(tokenizer), special_tokens={})


def _fastokens() -> Any:
    try:
        from fastokens import _native
    except ImportError:
        raise Refused(f"it is not installed: {install_command('fast')}") from None
    if (found := version("fastokens")) != _PINNED:
        raise Refused(f"fastokens {found} is installed; jaxdata[fast] needs {_PINNED}")
    return _native.Tokenizer
