"""fastokens as the encoder of byte-level BPE of Hugging Face's kind (`jaxdata[fast]`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np

from jaxdata.tokenizers.base import CannotEncode, Tokenizer
from jaxdata.tokenizers.encoders.base import Encoder, Refused
from jaxdata.tokenizers.encoders.byte_level import parts_of

_PINNED = "0.3.5"
"""The version that the extra `fast` pins: another one is another implementation."""


class FastokensEncoder(Encoder):
    """The whole `tokenizer.json`, read by another library."""

    name = "fast"
    kinds = ("hf",)

    def __init__(self, tokenizer: Tokenizer) -> None:
        _, settings = parts_of(tokenizer)  # refuses what is not known
        try:
            self._encode = _fastokens().from_json_str(json.dumps(settings)).encode_batch_flat
        except ValueError as error:
            raise Refused(f"fastokens cannot read it: {error}") from None

    @classmethod
    def version(cls) -> str:
        _fastokens()
        return f"fastokens {version('fastokens')}"

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        try:
            flat, edges = self._encode(list(texts), split_special_tokens=True)
        except (RuntimeError, ValueError) as error:
            raise CannotEncode(f"fastokens fails on a text: {error}") from error
        ids = np.frombuffer(flat, "<u4")
        return [ids[start:stop] for start, stop in pairwise(np.frombuffer(edges, "<u8").tolist())]


def _fastokens() -> Any:
    try:
        from fastokens import _native
    except ImportError:
        raise Refused("it is not installed: pip install 'jaxdata[fast]'") from None
    if (found := version("fastokens")) != _PINNED:
        raise Refused(f"fastokens {found} is installed; jaxdata[fast] needs {_PINNED}")
    return _native.Tokenizer
