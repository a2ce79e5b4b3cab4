"""Encoders: implementations of a tokenizer that are faster than its library, with its ids.

`choice` chooses one for a tokenizer, after the trial of `trial`; `guarded` compares samples of what
it encodes with the library. One file each: `fast` for byte-level BPE, `words` for SentencePiece's.
"""

from __future__ import annotations

from jaxdata.tokenizers.encoders.base import Encoder, EncoderName, Refused, library_of
from jaxdata.tokenizers.encoders.choice import (
    Choice,
    EncodingSummary,
    attach,
    check_encoder,
    choose,
    refuse,
)
from jaxdata.tokenizers.encoders.guarded import (
    EncoderDiffers,
    GuardedEncoder,
)

__all__ = [
    "Choice",
    "Encoder",
    "EncoderDiffers",
    "EncoderName",
    "EncodingSummary",
    "GuardedEncoder",
    "Refused",
    "attach",
    "check_encoder",
    "choose",
    "library_of",
    "refuse",
]
