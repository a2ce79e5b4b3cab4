"""Encoders: implementations of a tokenizer that are faster than its library, with its ids.

There is one for each kind of tokenizer. It knows the parts that it takes, passes a trial against
the library (or a proof in its place), and is compared with it on samples of every unit of a
conversion. What it may not encode goes to the library.
"""

from __future__ import annotations

from jaxdata.tokenizers.encoders.base import Encoder, EncoderDiffers, EncoderName, Refused
from jaxdata.tokenizers.encoders.choice import (
    Choice,
    EncodingSummary,
    GuardedEncoder,
    attach,
    check_encoder,
    choose,
    library_of,
    refuse,
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
