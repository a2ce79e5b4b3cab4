"""What counts as a copy, which one stays, and published rules of decontamination by name."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from jaxdata.base.hashing import ExactRule, NgramOf
from jaxdata.base.settings import Settings
from jaxdata.converter.hashes import BANDS, NGRAM, OF, ROWS, RULE

RuleName = Literal["gpt3", "palm", "tulu3", "llama2"]
Action = Literal["drop", "mask", "cut"]


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
    "gpt3": OverlapRule(13, 10, "cut", around=200, shortest=200, most_pieces=10),
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

    exact: ExactRule | None = None
    """What may differ between exact copies: nothing, whitespace (and Unicode's compositions), or
    all but letters and digits; None for "whitespace", with n-grams of ids for "none"."""
    near: bool = True
    """Whether near copies are found, too."""
    of: NgramOf = OF
    """What n-grams are made of. "ids" reads no text; exact copies then have the same ids."""
    ngram: int = Field(default=NGRAM, ge=1)
    """Words, bytes or ids of an n-gram."""
    bands: int = Field(default=BANDS, ge=1)
    """Bands of MinHash; more find more pairs, also less similar ones."""
    rows: int = Field(default=ROWS, ge=1)
    """Hashes of a band; more find fewer pairs, and more similar ones."""
    threshold: float = Field(default=0.8, ge=0, le=1)
    """The Jaccard similarity of near copies' n-grams, compared for each pair that shares a band; 0
    compares nothing, as other tools do."""
    compared_with: Literal["cluster", "survivor"] = "cluster"
    """What a near copy is so similar to: another document of its cluster, and so through others to
    the one that stays; or that one itself, else it stays in a cluster of its own."""
    overlap: int = Field(default=13, ge=0)
    """A document that has so many words, bytes or ids in a row of a benchmark is dropped; 0: it may
    have them all, unless it is a copy."""
    overlap_most: int = Field(default=10, ge=0)
    """A run of words that more documents than this have is common, and drops none, as for GPT-3
    (Brown et al. 2020, appendix C); 0: none is common."""
    overlap_action: Action = "drop"
    """What becomes of such a document: it is dropped, or these words have no loss, or are cut out
    of it."""
    decontaminate: RuleName | None = None
    """A published rule in the place of `overlap` and `overlap_most`."""
    repeats: int = Field(default=0, ge=0)
    """Tokens of a span that have no loss where the same ones occur before, in an earlier document
    that is kept or in the same one; 0: repeated spans are trained."""
    repeats_action: Literal["mask", "cut"] = "mask"
    """What becomes of such spans: they have no loss, or are cut out of their documents."""
    prefer: str = Field(default="longest", min_length=1)
    """Which document of a cluster stays, among those of its first source: "longest", "first", or
    the one with the smallest value of a kept field, with "-" before its name the largest."""

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, given: dict[str, Any]) -> dict[str, Any]:
        name = given.get("decontaminate")
        rule = RULES.get(name) if isinstance(name, str) else None
        if rule is None:
            return given
        fixed = {"overlap": rule.overlap, "overlap_most": rule.overlap_most}
        for field, value in fixed.items():
            if given.get(field, value) != value:
                raise ValueError(
                    f"decontaminate={name!r} has {field}={value}: leave out "
                    f"{field}={given[field]!r}, or decontaminate"
                )
        return {"overlap_action": rule.overlap_action, **given, **fixed}

    @property
    def overlap_rule(self) -> OverlapRule:
        """The rule that holds."""
        if self.decontaminate is not None:
            return RULES[self.decontaminate]
        return OverlapRule(self.overlap, self.overlap_most)

    @model_validator(mode="after")
    def _of_what_is_published(self) -> DedupSettings:
        if self.decontaminate and self.of != (of := self.overlap_rule.of):
            raise ValueError(
                f"decontaminate={self.decontaminate!r} is a rule of {of}: use of={of!r}"
            )
        return self

    @model_validator(mode="after")
    def _compared_at_all(self) -> DedupSettings:
        if self.compared_with == "survivor" and not (self.near and self.threshold):
            raise ValueError(
                "compared_with='survivor' compares near copies by their similarity: expected "
                "near=True and a threshold above 0"
            )
        return self

    @model_validator(mode="after")
    def _bytes_are_no_tokens(self) -> DedupSettings:
        if self.of == "bytes" and self.overlap_action != "drop":
            raise ValueError(
                f"overlap_action={self.overlap_action!r} needs to know the tokens of an n-gram, "
                "and of='bytes' normalises text: use of='words' or 'ids', or overlap_action='drop'"
            )
        return self

    @model_validator(mode="after")
    def _ids_as_they_are(self) -> DedupSettings:
        if self.of == "ids" and self.exact not in (None, "none"):
            raise ValueError(
                f"exact={self.exact!r} normalises text, and of='ids' reads none: use exact='none', "
                "or n-grams of words"
            )
        return self

    @property
    def exact_rule(self) -> ExactRule:
        """The rule that holds."""
        return self.exact or ("none" if self.of == "ids" else RULE)
