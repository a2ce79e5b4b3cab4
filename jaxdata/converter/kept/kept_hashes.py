"""The hashes of each document's text that `--minhash` and `--dedup` keep: what they are."""

from __future__ import annotations

from typing import Self, cast, get_args

from jaxdata.converter.options import OptionModel
from jaxdata.errors import InputError
from jaxdata.hashing import VERSION
from jaxdata.hashing.characters import UNICODE
from jaxdata.hashing.exact_hashes import ExactRule
from jaxdata.hashing.ngrams import NgramOf

RULE: ExactRule = "whitespace"
VIEW = "exact"
"""The view without exact copies that a conversion makes."""
CHOICES = (VIEW, *(f"{VIEW}:{rule}" for rule in get_args(ExactRule)))
"""What asks for it: by the default rule, or by one that is named."""
OF: NgramOf = "words"
NGRAM, BANDS, ROWS = 5, 14, 8
"""The MinHash that is kept, and that searches use unless told otherwise."""
HASHING = f"version {VERSION}, Unicode {UNICODE}"
"""What makes hashes: those of another one do not compare."""


def rule_of(dedup: str) -> ExactRule:
    """The rule for exact copies that is asked for; raises InputError if it is none of `CHOICES`.

    >>> rule_of("exact"), rule_of("exact:letters")
    ('whitespace', 'letters')
    """
    if dedup not in CHOICES:
        raise InputError(
            f"dedup={dedup!r}: expected {', '.join(CHOICES)}; near copies are found by jaxdata "
            "dedup after the conversion, which minhash (--minhash) prepares"
        )
    return cast(ExactRule, dedup.partition(":")[2] or RULE)


def minhash_fact(of: str, ngram: int, bands: int, rows: int) -> str:
    """MinHash settings as parameters of a source name them.

    >>> minhash_fact(OF, NGRAM, BANDS, ROWS)
    '14 bands of 8 hashes, 5 words'
    """
    return f"{bands} bands of {rows} hashes, {ngram} {of}"


class KeptHashes(OptionModel):
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
