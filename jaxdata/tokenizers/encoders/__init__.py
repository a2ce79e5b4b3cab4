"""Encoders: implementations of a tokenizer that are faster than its library, with its ids.

An encoder knows the parts of the tokenizers that it takes, passes a trial against the library, and
has samples compared in every unit of a conversion. What it may not encode goes to the library.
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
