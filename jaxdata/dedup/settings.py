"""What counts as a copy, which one stays, and published rules of decontamination by name."""

from typing import Any, Literal, NamedTuple

from pydantic import model_validator

from jaxdata.base.hashing import ExactRule, NgramOf
from jaxdata.base.settings import Settings, setting
from jaxdata.converter.hashes import BANDS, NGRAM, OF, ROWS, RULE

RuleName = Literal["gpt3", "palm", "tulu3", "llama2"]
Action = Literal["drop", "mask", "cut"]
_MOST = 10
"""documents that may have words of a benchmark in a row before these are a phrase"""


class OverlapRule(NamedTuple):
    """When a document has a benchmark, and what becomes of it."""

    overlap: int
    """words in a row, or token ids"""
    overlap_most: int = 0
    """n-grams that more documents have are common; 0: none is"""
    overlap_action: Action = "drop"
    of: NgramOf = "words"
    percent: int = 0
    """of a benchmark's text that a document must have; 0: one n-gram is enough"""
    percent_of: Literal["ngrams", "words"] = "ngrams"
    """its n-grams, or words (ids) that lie in one that the document has"""
    more: bool = False
    """whether that is not enough, but more is"""
    around: int = 0
    """characters before and after n-grams that are cut, too"""
    shortest: int = 0
    """characters of a piece that stays"""
    most_pieces: int = 0
    """a document that is split into more is dropped; 0: none is"""


RULES: dict[str, OverlapRule] = {
    # Brown and others, "Language Models are Few-Shot Learners", 2020, appendix C.
    "gpt3": OverlapRule(13, _MOST, "cut", around=200, shortest=200, most_pieces=10),
    # Chowdhery and others, "PaLM: Scaling Language Modeling with Pathways", 2022, section 8.
    "palm": OverlapRule(8, percent=70),
    # Lambert and others, "Tülu 3: Pushing Frontiers in Open Language Model Post-Training", 2024,
    # section 3.2.
    "tulu3": OverlapRule(8, percent=50, percent_of="words", more=True),
    # Touvron and others, "Llama 2: Open Foundation and Fine-Tuned Chat Models", 2023, appendix A.6:
    # tokens in runs longer than 10, of which "dirty" samples have 80 %.
    "llama2": OverlapRule(11, of="ids", percent=80, percent_of="words"),
}


class DedupSettings(Settings):
    """How duplicates are found, and which document of a cluster survives.

    >>> DedupSettings(threshold=0.9).exact_rule
    'whitespace'
    """

    exact: ExactRule | None = setting(
        None,
        "What exact copies are equal in: everything (none), all but whitespace, or letters and "
        "digits.",
        shown=RULE,
    )
    """With n-grams of ids, None is for "none"."""
    near: bool = setting(True, "Drop near copies, too.")
    threshold: float = setting(
        0.8,
        "Share of n-grams, of those that either has, that near copies have in common; 0: MinHash "
        "decides alone.",
        metavar="SHARE",
        ge=0,
        le=1,
    )
    """Jaccard similarity, compared for each pair that shares a band."""
    of: NgramOf = setting(
        OF, "What n-grams are made of; ids are token ids, for which no text is decoded."
    )
    """Of "ids", exact copies have the same ids."""
    ngram: int = setting(NGRAM, "Length of n-grams.", ge=1)
    bands: int = setting(BANDS, "Bands of MinHash.", ge=1)
    """More find more pairs, also less similar ones."""
    rows: int = setting(ROWS, "Hashes a band.", ge=1)
    """More find fewer pairs, and more similar ones."""
    prefer: Literal["longest", "first"] = setting("longest", "Which copy of a source stays.")
    overlap: int = setting(
        13,
        "Words (or what `of` says) in a row of a benchmark file that drop a document; 0: none.",
        shown="13",
        ge=0,
    )
    """A copy is dropped all the same. As for GPT-3 (Brown and others 2020, appendix C), words in a
    row that more than 10 documents have are a phrase, and drop none."""
    overlap_action: Action = setting(
        "drop",
        "Drop such documents, train them without loss on these words, or cut these words out of "
        "them.",
        shown="drop, or that of --decontaminate",
    )
    decontaminate: RuleName | None = setting(
        None,
        f"{', '.join(RULES)}: a published rule, instead of `overlap`, for files of --against.",
        metavar="RULE",
    )
    repeats: int = setting(
        0,
        "Train spans of so many tokens, or more, without loss where they occur before, in any "
        "document; 0: none.",
        metavar="TOKENS",
        ge=0,
    )
    """The earlier document is one that is kept."""
    repeats_action: Literal["mask", "cut"] = setting(
        "mask", "Train such spans without loss, or cut them out of their documents."
    )

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, given: dict[str, Any]) -> dict[str, Any]:
        rule = RULES.get(str(given.get("decontaminate")))
        if rule is None:
            return given
        if (overlap := given.get("overlap", rule.overlap)) != rule.overlap:
            raise ValueError(
                f"decontaminate={given['decontaminate']!r} has overlap={rule.overlap}: leave out "
                f"overlap={overlap!r}, or decontaminate"
            )
        return {"overlap_action": rule.overlap_action, **given, "overlap": rule.overlap}

    @property
    def overlap_rule(self) -> OverlapRule:
        """The rule that holds."""
        if self.decontaminate is not None:
            return RULES[self.decontaminate]
        return OverlapRule(self.overlap, _MOST)

    @model_validator(mode="after")
    def _fit_together(self) -> "DedupSettings":
        wrong = None
        if self.decontaminate and self.of != (of := self.overlap_rule.of):
            wrong = f"decontaminate={self.decontaminate!r} is a rule of {of}: use of={of!r}"
        elif self.of == "bytes" and self.overlap_action != "drop":
            wrong = (
                f"overlap_action={self.overlap_action!r} needs to know the tokens of an n-gram, "
                "and of='bytes' normalises text: use of='words' or 'ids', or overlap_action='drop'"
            )
        elif self.of == "ids" and self.exact not in (None, "none"):
            wrong = (
                f"exact={self.exact!r} normalises text, and of='ids' reads none: use exact='none', "
                "or n-grams of words"
            )
        if wrong:
            raise ValueError(wrong)
        return self

    @property
    def exact_rule(self) -> ExactRule:
        """The rule that holds."""
        return self.exact or ("none" if self.of == "ids" else RULE)
