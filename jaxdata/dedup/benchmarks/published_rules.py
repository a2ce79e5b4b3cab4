"""Published rules of decontamination, by name: what each takes for a benchmark in a document."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jaxdata.hashing.ngrams import NgramOf

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
