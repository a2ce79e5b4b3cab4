"""The encoder of SentencePiece BPE: each different word once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sentencepiece import sentencepiece_model_pb2 as proto

from jaxdata.tokenizers.base import CannotEncode, Tokenizer
from jaxdata.tokenizers.encoders.base import Encoder, Refused
from jaxdata.tokenizers.encoders.sentencepiece_words import WordEncoder, why_not

_SPACE = "\u2581"
_PROBES = 97


class WordsEncoder(Encoder):
    """Proven by the parts of the model, not by a trial; compared at once on the model's pieces."""

    name = "words"
    kinds = ("sentencepiece",)
    needs_trial = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = tokenizer.files()["tokenizer.model"]
        if reason := why_not(model):
            raise Refused(reason)
        self._words, probes = WordEncoder(model), _probes(model)
        library = tokenizer.encode_texts(probes, False)
        if not all(map(np.array_equal, self._words.encode(probes), library)):
            raise Refused("this version of sentencepiece encodes words otherwise than texts")

    @classmethod
    def version(cls) -> str:
        return "words 1"

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if not all(map(WordEncoder.takes, texts)):
            raise CannotEncode("a text holds a NUL or U+2581, which SentencePiece reads otherwise")
        return list(self._words.encode(texts))


def _probes(model: bytes) -> list[str]:
    """Texts of the model's own pieces, some 30,000 of them, in an unlikely order."""
    pieces = [piece.piece for piece in proto.ModelProto.FromString(model).pieces]
    pieces = pieces[:: 1 + len(pieces) // 2**15]
    texts = ["".join(pieces[k::_PROBES]).replace(_SPACE, " ") for k in range(_PROBES)]
    return [text for text in texts if WordEncoder.takes(text)]
