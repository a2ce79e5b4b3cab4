"""The hashes of texts that `--minhash` and `--dedup` keep in the index, for `jaxdata dedup`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast, get_args

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.hashing import (
    RULES,
    UNICODE,
    VERSION,
    Bands,
    ExactRule,
    Hashes,
    NgramOf,
    exact_hashes,
    ngrams,
    word_pieces,
)
from jaxdata.base.settings import Settings
from jaxdata.converter.tasks.base import Encoded, Task
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.base import runs_of_texts

RULE: ExactRule = "whitespace"
OF: NgramOf = "words"
NGRAM, BANDS, ROWS = 5, 14, 8
"""The MinHash that is kept, and that searches use unless told otherwise."""
HASHING = f"version {VERSION}, Unicode {UNICODE}"
"""What makes hashes: those of another one do not compare."""


def minhash_fact(of: str, ngram: int, bands: int, rows: int) -> str:
    """MinHash settings as parameters of a source name them.

    >>> minhash_fact(OF, NGRAM, BANDS, ROWS)
    '14 bands of 8 hashes, 5 words'
    """
    return f"{bands} bands of {rows} hashes, {ngram} {of}"


class KeptHashes(Settings):
    """Which hashes are kept; a part of the parameters."""

    exact_hash: ExactRule | None = None
    """The rule of the 128-bit hashes of whole texts; None where none are kept."""
    minhash: str | None = None
    """The settings of the band hashes; None where none are kept."""
    hashing: str | None = None

    @property
    def columns(self) -> list[str]:
        """Their columns of the index, see `HASH_COLUMNS`."""
        kept = {"exact_hash": self.exact_hash, "band_hash": self.minhash}
        return [name for name, of in kept.items() if of]

    @classmethod
    def of(cls, exact: str | None, *, minhash: bool) -> Self:
        """Those of a rule; with `minhash` band hashes too.

        Raises:
            InputError: there is no such rule, or `minhash` is no flag.

        >>> KeptHashes.of(None, minhash=True).exact_hash
        'whitespace'
        """
        if not isinstance(minhash, bool):
            raise InputError(f"minhash={minhash!r}: expected True or False")
        if exact is None and not minhash:
            return cls()
        if exact not in (None, *get_args(ExactRule)):
            raise InputError(
                f"exact_hash={exact!r}: expected one of {', '.join(get_args(ExactRule))}"
            )
        bands = minhash_fact(OF, NGRAM, BANDS, ROWS) if minhash else None
        rule = cast(ExactRule, exact or RULE)
        return cls(exact_hash=rule, minhash=bands, hashing=HASHING)


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
