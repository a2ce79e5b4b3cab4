"""fastokens as the encoder of byte-level BPE whose parts in `tokenizer.json` are known."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np

from jaxdata.base.errors import install_command
from jaxdata.tokenizers import base
from jaxdata.tokenizers.base import Tokenizer
from jaxdata.tokenizers.encoders.base import Encoder, Refused
from jaxdata.tokenizers.huggingface import HuggingFaceTokenizer, steps_of

_CJK = "\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"
_ASCII = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+".replace(r"\"", '"')
DEEPSEEK = (
    r"\p{N}{1,3}",
    f"[{_CJK}]+",
    _ASCII + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""The splits of DeepSeek V3, one after the other."""
_RULES = (
    base.GPT2_SPLIT,
    base.GPT2_SPLIT.replace("'(?:[sdmt]|ll|ve|re)", "'s|'t|'re|'ve|'m|'ll|'d"),
    base.CL100K_SPLIT,
    base.O200K_SPLIT,
    base.CL100K_SPLIT.replace("{1,3}", ""),  # Qwen 2
)
"""Splitting rules that mean the same to each regular expression library; all match any text."""
_KNOWN_STEPS = (
    ("GPT-2's ByteLevel",),
    ("Digits", "GPT-2's ByteLevel"),  # SmolLM, StarCoder
    *((rule, "ByteLevel") for rule in _RULES),
    (*DEEPSEEK, "ByteLevel"),
)


def check_parts(settings: Mapping[str, Any]) -> None:
    """Raise Refused unless a `tokenizer.json` is byte-level BPE whose way of splitting is known."""
    if (kind := settings["model"].get("type", "BPE")) != "BPE":
        raise Refused(f"its model is {kind!r}, not BPE")
    kinds = {step["type"] for step in steps_of(settings["normalizer"])} - {"NFC"}
    if kinds:
        raise Refused(f"its normalizer is {min(kinds)!r}; NFC is the only one that is known")
    steps = tuple(map(_named, steps_of(settings["pre_tokenizer"])))
    if steps not in _KNOWN_STEPS:
        raise Refused(f"its way of splitting is not known: {', '.join(steps)[:60] or 'none'}")


def _named(step: dict[str, Any]) -> str:
    """A step of splitting by what it does: a rule is its regular expression."""
    match step:
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return "GPT-2's ByteLevel" if step.get("use_regex", True) else "ByteLevel"
        case {"type": "Digits", "individual_digits": True}:
            return "Digits"
        case {"type": "Split", "pattern": {"Regex": regex}}:
            # Line ends as they are typed.
            rule = str(regex).replace("\r", r"\r").replace("\n", r"\n")
            how = step.get("behavior"), bool(step.get("invert"))
            # Where every character is matched, the same pieces come either way.
            if how == ("Isolated", False) or (how == ("Removed", True) and rule in _RULES):
                return rule
    return json.dumps(step)


class FastokensEncoder(Encoder):
    """The whole `tokenizer.json`, or an encoding's ranks, read by another library."""

    name = "fast"
    kinds = ("hf", "tiktoken")

    def __init__(self, tokenizer: Tokenizer) -> None:
        library = _fastokens()
        with base.told_as(Refused, "fastokens cannot read it"):
            if isinstance(tokenizer, HuggingFaceTokenizer):
                made = library.from_json_str(tokenizer.as_json())
            else:
                made = _of_ranks(library, tokenizer.files())
        self._encode = made.encode_batch_flat

    @classmethod
    def version(cls) -> str:
        _fastokens()
        return f"fastokens {version('fastokens')}"

    @classmethod
    def check(cls, tokenizer: Tokenizer) -> None:
        if isinstance(tokenizer, HuggingFaceTokenizer):
            check_parts(tokenizer.settings)
        elif (rule := _rule_of(tokenizer.files())) not in base.KNOWN_SPLITS:
            raise Refused(f"its way of splitting is not known: {rule[:60]}")

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        with base.told_as(base.CannotEncode, "fastokens fails on a text"):
            flat, edges = self._encode(list(texts), split_special_tokens=True)
        ids = np.frombuffer(flat, "<u4")
        return [ids[start:stop] for start, stop in pairwise(np.frombuffer(edges, "<u8").tolist())]


def _rule_of(files: Mapping[str, bytes]) -> str:
    return str(json.loads(files["encoding.json"])["pattern"])


def _of_ranks(library: Any, files: Mapping[str, bytes]) -> Any:
    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
        file.write(files["ranks.tiktoken"])
        file.flush()
        # Without special tokens: their texts are encoded as texts.
        return library.from_tiktoken(file.name, pattern=_rule_of(files), special_tokens={})


_PINNED = "0.3.5"
"""The version that the extra `fast` pins: another one is another implementation."""


def _fastokens() -> Any:
    try:
        from fastokens import _native
    except ImportError:
        raise Refused(f"it is not installed: {install_command('fast')}") from None
    if (found := version("fastokens")) != _PINNED:
        raise Refused(f"fastokens {found} is installed; jaxdata[fast] needs {_PINNED}")
    return _native.Tokenizer
