"""A tokenizer that tells how it was asked, and tasks that encode by it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdata.converter.tasks import Dropped, Encoded, make_settings, make_task
from jaxdata.tokenizers import CannotEncode, Tokenizer
from jaxdata.tokenizers.bytes import BytesTokenizer

EOD, BOS = 256, 7


class Telling(BytesTokenizer):
    """Bytes; ids above 300 tell how a text was asked for. It fails on exclamation marks."""

    vocab_size = 400

    def encode(
        self, texts: Sequence[str], *, special: bool = False, continuing: bool = False
    ) -> list[np.ndarray]:
        if any("!" in text for text in texts):
            raise CannotEncode("!")
        return [np.array(ids_of(text, special, continuing), np.int64) for text in texts]


def ids_of(text: str, special: bool = False, continuing: bool = False) -> list[int]:
    told = [301] * special + [302] * continuing
    return [*told, *text.encode()] if text else []


TELLING = Telling({}, name="bytes", bos=BOS)


def task_of(name: str, tokenizer: Tokenizer = TELLING, **options: Any) -> Any:
    return make_task(make_settings(name, tokenizer, options), tokenizer)


def plain(one: Any) -> Any:
    """Tokens and mask, or why there are none."""
    if isinstance(one, Dropped):
        return one.reason
    if isinstance(one, tuple) and not isinstance(one, Encoded):
        (one,) = one
    assert one.tokens.dtype == np.uint16
    return one.tokens.tolist(), None if one.mask is None else one.mask.tolist()


FAILS = "the tokenizer cannot encode it"
