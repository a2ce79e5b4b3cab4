"""Small byte-level BPE tokenizers, made in a moment, and encoders that err."""

import argparse
import inspect
import json
import statistics
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import tokenizers as hf

from jaxdata.tokenizers import CannotEncode, Tokenizer
from jaxdata.tokenizers.base import CL100K_SPLIT, O200K_SPLIT
from jaxdata.tokenizers.encoders.base import Encoder
from jaxdata.tokenizers.encoders.fast import DEEPSEEK
from jaxdata.tokenizers.huggingface import HuggingFaceTokenizer

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
TEXTS = [inspect.getsource(module) for module in (argparse, statistics)]
TEXTS += ["größe Straße 大きさ 東京 привет мир שלום 12345 3.14 it's we'll  \n\n\t" * 20]


BYTES = {**BYTE_LEVEL, "use_regex": False}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*steps]}


def rule(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def split(*given: Any) -> dict[str, Any]:
    return sequence(rule(*given), BYTES)


DIGITS = {"type": "Digits", "individual_digits": True}
NFC = {"type": "NFC"}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "neox": {"normalizer": NFC},
    "llama3": {"pre_tokenizer": split(CL100K_SPLIT), "ignore_merges": True},
    "cl100k": {"pre_tokenizer": split(CL100K_SPLIT, "Removed", True)},
    "o200k": {"pre_tokenizer": split(O200K_SPLIT)},
    "qwen": {"pre_tokenizer": split(CL100K_SPLIT.replace("{1,3}", "")), "normalizer": NFC},
    "deepseek": {"pre_tokenizer": sequence(*map(rule, DEEPSEEK), BYTES)},
    "smollm": {"pre_tokenizer": sequence(DIGITS, {**BYTE_LEVEL, "use_regex": True})},
}
RAW, SPECIAL = {"normalized": False}, {"special": True}
ADDED = {"<|endoftext|>": SPECIAL, "  ": {}, "    ": {}, "<tool>": RAW, "<tool>er": RAW | SPECIAL}


@cache
def trained() -> str:
    """A `tokenizer.json` of 600 tokens and some that are added."""
    library = hf.Tokenizer(hf.models.BPE())
    library.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = hf.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    return str(library.to_str())


def settings(family: str = "gpt2", **model: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(trained())
    changes = dict(FAMILIES[family])
    made["model"] |= {"ignore_merges": changes.pop("ignore_merges", False)} | model
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    first = max(made["model"]["vocab"].values()) + 1
    made["added_tokens"] = [
        {"id": first + n, "content": text, **flags, "normalized": True} | given
        for n, (text, given) in enumerate(ADDED.items())
    ]
    return made | changes


def tokenizer(made: dict[str, Any]) -> HuggingFaceTokenizer:
    files = {"tokenizer.json": json.dumps(made).encode()}
    return HuggingFaceTokenizer(files, name="made", eod="<|endoftext|>")


class Double(Encoder):
    """The library itself, but for the texts that it gives wrong ids of, or fails on."""

    name = "fast"
    kinds = ("hf",)
    wrong: Any = staticmethod(lambda _: False)
    fails: Any = staticmethod(lambda _: False)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def version(cls) -> str:
        return "double 1.0"

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if any(map(type(self).fails, texts)):
            raise CannotEncode("no")
        pairs = zip(texts, self._tokenizer.encode_texts(texts, False), strict=True)
        return [np.append(ids, 0) if type(self).wrong(text) else ids for text, ids in pairs]


def double(wrong: Any, fails: Any = Double.fails) -> type[Encoder]:
    return type("Erring", (Double,), {"wrong": staticmethod(wrong), "fails": staticmethod(fails)})
