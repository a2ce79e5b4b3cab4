"""The hashes of texts that `--minhash` and `--dedup` keep in the index, for `jaxdata dedup`."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdata.base import hashing
from jaxdata.base.ragged import in_runs
from jaxdata.converter.tasks import Encoded, Task
from jaxdata.tokenizers import Tokenizer

RULE: hashing.ExactRule = "whitespace"
OF: hashing.NgramOf = "words"
NGRAM, BANDS, ROWS = 5, 14, 8
"""The MinHash that is kept, and that searches use unless told otherwise."""
HASHING = f"version {hashing.VERSION}, Unicode {hashing.UNICODE}"
"""What makes hashes: those of another one do not compare."""


def minhash_fact(of: str, ngram: int, bands: int, rows: int) -> str:
    """MinHash settings as parameters of a source name them.

    >>> minhash_fact(OF, NGRAM, BANDS, ROWS)
    '14 bands of 8 hashes, 5 words'
    """
    return f"{bands} bands of {rows} hashes, {ngram} {of}"


MINHASH = minhash_fact(OF, NGRAM, BANDS, ROWS)
"""What `--minhash` keeps."""
BETWEEN_SIDES = "\n\n"
"""Between the texts of the two sides of a preference pair, which are hashed as one."""
_AT_ONCE = 2**18
"""Characters of texts that are hashed together: their n-grams fit in a core's cache."""


class DocumentHashes:
    """Hashes documents of a task.

    Args:
        rule: that of the hashes of whole texts; None where nothing is hashed.
        minhash: whether there are band hashes, too.
        task: says what text is stored; where it does not, the tokens are decoded.
        tokenizer: decodes.
    """

    def __init__(
        self, rule: hashing.ExactRule | None, minhash: bool, task: Task, tokenizer: Tokenizer
    ) -> None:
        self._task, self._tokenizer = task, tokenizer
        self._rule = hashing.RULES[rule] if rule else None
        self._bands = hashing.Bands(BANDS, ROWS) if minhash else None

    def __call__(
        self, contents: Sequence[Any], encoded: Sequence[tuple[Encoded, ...]]
    ) -> dict[str, hashing.Hashes]:
        """The columns of some documents, uint64 (documents, n) each; see `dataset.index`."""
        if self._rule is None:
            return {}
        found: defaultdict[str, list[hashing.Hashes]] = defaultdict(list)
        for texts, _ in in_runs(map(self._text, contents, encoded), len, lambda: _AT_ONCE):
            found["exact_hash"].append(hashing.exact_hashes([*map(self._rule, texts)]))
            if self._bands:
                grams = hashing.ngrams(hashing.word_pieces(texts), NGRAM)
                found["band_hash"].append(self._bands.of_all(grams).T)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def _text(self, content: Any, encoded: tuple[Encoded, ...]) -> str:
        stored = self._task.stored_text(content)
        if stored is not None:
            return stored
        return BETWEEN_SIDES.join(self._tokenizer.decode(one.tokens) for one in encoded)
