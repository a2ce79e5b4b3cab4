"""The hashes of documents' texts, made while the texts are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdata.converter.kept.kept_hashes import BANDS, NGRAM, ROWS, KeptHashes
from jaxdata.converter.tasks import Encoded, Task
from jaxdata.hashing.exact_hashes import RULES, exact_hashes
from jaxdata.hashing.minhash import Bands
from jaxdata.hashing.ngrams import Hashes, ngrams, word_pieces
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.text_cuts import runs_of_texts

BETWEEN_SIDES = "\n\n"
"""Between the texts of the two sides of a preference pair, which are hashed as one."""
_AT_ONCE = 2**18
"""Characters of texts that are hashed together: their n-grams fit in a core's cache."""


class DocumentHashes:
    """Hashes documents of a task.

    Args:
        kept: which hashes.
        task: says what text is stored; where it does not, the tokens are decoded.
        tokenizer: decodes.
    """

    def __init__(self, kept: KeptHashes, task: Task, tokenizer: Tokenizer) -> None:
        self._task, self._tokenizer = task, tokenizer
        self._rule = RULES[kept.exact_hash] if kept.exact_hash else None
        self._bands = Bands(BANDS, ROWS) if kept.minhash else None

    def __call__(
        self, contents: Sequence[Any], encoded: Sequence[tuple[Encoded, ...]]
    ) -> dict[str, Hashes]:
        """The columns of some documents, uint64 (documents, n) each; see `format.index`."""
        found: dict[str, list[Hashes]] = {}
        for texts in runs_of_texts(map(self._text, contents, encoded), _AT_ONCE):
            if self._rule:
                found.setdefault("exact_hash", []).append(exact_hashes([*map(self._rule, texts)]))
            if self._bands:
                grams = ngrams(word_pieces(texts), NGRAM)
                found.setdefault("band_hash", []).append(self._bands.of_all(grams).T)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def _text(self, content: Any, encoded: tuple[Encoded, ...]) -> str:
        stored = self._task.stored_text(content)
        if stored is not None:
            return stored
        return BETWEEN_SIDES.join(self._tokenizer.decode(one.tokens) for one in encoded)
