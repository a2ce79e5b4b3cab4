"""What a conversion counts: additive a unit, so that it depends on nothing but the input.

Texts are counted twice, as they were read and as they were after cleaning; everything else is of
the documents that were written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.convert.batches import Documents
from jaxdata.convert.records import utf8_bytes
from jaxdata.convert.tasks import Encoded

__all__ = ["COUNTED", "PERCENTILES", "Measured", "count_documents", "count_tokens", "derived"]

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
COUNTED = (
    "raw_characters",
    "raw_bytes",
    "characters",
    "text_bytes",
    "loss_tokens",
    "unknown_tokens",
)


class Measured:
    """A cleaner that adds up what it is given; with None it does nothing else.

    >>> clean = Measured(str.strip)
    >>> clean(" é "), clean.take(), clean.take()
    ('é', (3, 4), (0, 0))
    """

    def __init__(self, clean: Callable[[str], str] | None) -> None:
        self._clean = clean
        self._characters = self._text_bytes = 0

    def __call__(self, text: str) -> str:
        """Return the text, cleaned."""
        self._characters += len(text)
        self._text_bytes += utf8_bytes(text)
        return self._clean(text) if self._clean else text

    def take(self) -> tuple[int, int]:
        """Return characters, and bytes in UTF-8, of the texts since it was last asked."""
        taken = self._characters, self._text_bytes
        self._characters = self._text_bytes = 0
        return taken


def count_documents(counts: Counter[str], documents: Documents) -> None:
    """Add the sizes of documents' texts, before and after cleaning."""
    counts["raw_characters"] += sum(documents.raw_characters)
    counts["raw_bytes"] += sum(documents.raw_bytes)
    counts["characters"] += sum(documents.characters)
    counts["text_bytes"] += sum(documents.text_bytes)


def count_tokens(counts: Counter[str], encoded: Sequence[Encoded], unknown_id: int | None) -> None:
    """Add the tokens of documents that are targets with loss, and those of unknown text.

    A document's first token is nobody's target.

    >>> counts = Counter()
    >>> count_tokens(counts, [Encoded(np.array([5, 0, 2]), np.array([1, 0, 1]))], unknown_id=0)
    >>> dict(counts)
    {'loss_tokens': 1, 'unknown_tokens': 1}
    """
    counts["loss_tokens"] += sum(
        len(tokens) - 1 if mask is None else int(mask[1:].sum()) for tokens, mask in encoded
    )
    if unknown_id is not None and encoded:
        tokens = np.concatenate([one.tokens for one in encoded])
        counts["unknown_tokens"] += int(np.count_nonzero(tokens == unknown_id))


def derived(counts: Mapping[str, int], lengths: NDArray[np.uint32]) -> dict[str, Any]:
    """What the manifest says of a source: its counts, and what follows from them.

    Args:
        counts: the sums over all units.
        lengths: uint32 (documents,), tokens of each document with EOD.
    """
    documents, tokens = len(lengths), int(lengths.sum(dtype=np.int64))
    sums = {name: counts.get(name, 0) for name in COUNTED}
    at = np.percentile(lengths, PERCENTILES, method="inverted_cdf") if documents else ()
    percentiles = {f"p{p:02}": int(n) for p, n in zip(PERCENTILES, at, strict=False)}
    return {
        **sums,
        "longest_document": int(lengths.max(initial=0)),
        "length_percentiles": percentiles,
        "tokens_per_byte": tokens / max(1, sums["text_bytes"]),
        "tokens_per_document": tokens / max(1, documents),
        "characters_per_document": sums["characters"] / max(1, documents),
        "bytes_per_document": sums["text_bytes"] / max(1, documents),
        "unknown_token_rate": sums["unknown_tokens"] / max(1, tokens),
    }
