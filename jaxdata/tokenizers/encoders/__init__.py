"""Encoders: implementations of a tokenizer that are faster than its library, with its ids.

`choice` chooses one for a tokenizer, `base` is their contract; one file each: `fastokens_core`, for
byte-level BPE whose parts `byte_level` knows, and `words_core`, for SentencePiece BPE, which cuts
texts by `sentencepiece_words` and keeps words in a `word_table`.
What keeps the ids those of the library: the trial of `trial` on the texts of `naughty` and on all
`code_points`, whose outcome `verdicts` keeps; what `library_tables` tells of the library; the
samples of `guarded`; and what `summary` says of them.
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
    EncodedDataset,
    EncoderDiffers,
    GuardedEncoder,
    encoded_by,
    note_encoded,
)

__all__ = [
    "Choice",
    "EncodedDataset",
    "Encoder",
    "EncoderDiffers",
    "EncoderName",
    "EncodingSummary",
    "GuardedEncoder",
    "Refused",
    "attach",
    "check_encoder",
    "choose",
    "encoded_by",
    "library_of",
    "note_encoded",
    "refuse",
]
