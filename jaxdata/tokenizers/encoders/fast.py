"""fastokens as the encoder of byte-level BPE whose parts in `tokenizer.json` are known."""

from __future__ import annotations

import json
import re
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np

from jaxdata.base.errors import install_command
from jaxdata.tokenizers.base import (
    BYTE_ALPHABET,
    CL100K_SPLIT,
    GPT2_SPLIT,
    KNOWN_SPLITS,
    O200K_SPLIT,
    CannotEncode,
    Tokenizer,
    fails_on_text,
)
from jaxdata.tokenizers.encoders.base import Encoder, Refused
from jaxdata.tokenizers.huggingface import HuggingFaceTokenizer

_GPT2_LONG = GPT2_SPLIT.replace("'(?:[sdmt]|ll|ve|re)", "'s|'t|'re|'ve|'m|'ll|'d")
SPLITS = {
    GPT2_SPLIT,
    _GPT2_LONG,
    CL100K_SPLIT,
    O200K_SPLIT,
    CL100K_SPLIT.replace("{1,3}", ""),  # Qwen 2
}
"""Splitting rules that mean the same to each regular expression library; all match any text."""
_CJK = "\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"
_ASCII = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+".replace(r"\"", '"')
DEEPSEEK = (
    r"\p{N}{1,3}",
    f"[{_CJK}]+",
    _ASCII + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""The splits of DeepSeek V3, one after the other."""
_NO_WORD = re.compile(r"[A-Za-z0-9][!-&(-/:-@\[-`{-~]")
"""A letter or digit before a sign that is no apostrophe: every rule ends a word between them."""
_NOT_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


def check_parts(settings: Mapping[str, Any]) -> None:
    """Raise Refused unless a `tokenizer.json` is byte-level BPE and all its parts are known."""
    _check_model(settings["model"])
    _check_splits(settings["pre_tokenizer"])
    _check_added(settings["added_tokens"], nfc=_is_nfc(settings["normalizer"]))
    _check_whole_words(settings["model"], settings["added_tokens"])


def _check_model(model: Mapping[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise Refused(f"its model is {model.get('type')!r}, not byte-level BPE")
    for part in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(part):
            raise Refused(f"its model has {part}")
    lacking = {byte for char, byte in BYTE_ALPHABET.items() if char not in model["vocab"]}
    if lacking - _NOT_IN_UTF8:
        raise Refused(f"its vocabulary lacks {len(lacking)} of the 256 bytes")


def _is_nfc(normalizer: Any) -> bool:
    steps = list(_steps(normalizer, "normalizers"))
    if other := [step for step in steps if step != {"type": "NFC"}]:
        raise Refused(f"its normalizer is {other[0]['type']!r}; NFC is the only one that is known")
    return bool(steps)


def _check_splits(pre_tokenizer: Any) -> None:
    *splits, last = [*_steps(pre_tokenizer, "pretokenizers")] or [{"type": None}]
    if last["type"] != "ByteLevel":
        raise Refused(f"its last step of splitting is {last['type']!r}, not ByteLevel")
    if last.get("add_prefix_space", True):
        raise Refused("it puts a space before a text")
    own = last.get("use_regex", True)
    if len(splits) == 1 and not own:
        _check_split(splits[0])
        return
    digits = [{"type": "Digits", "individual_digits": True}]  # SmolLM, StarCoder
    isolated = all(_behavior(step) == ("Isolated", False) for step in splits)
    if own and splits in ([], digits):
        return
    if not own and isolated and tuple(map(_regex, splits)) == DEEPSEEK:
        return
    kinds = ", ".join(str(step["type"]) for step in (*splits, last))
    raise Refused(f"its sequence of splits ({kinds}) is not known")


def _check_split(step: Mapping[str, Any]) -> None:
    pattern = _regex(step)
    if pattern not in SPLITS:
        raise Refused(f"its splitting rule is not known: {str(pattern or step['type'])[:60]!r}")
    # As every character is matched, the same pieces come either way.
    if _behavior(step) not in {("Isolated", False), ("Removed", True)}:
        raise Refused(f"its splitting rule has the behavior {step['behavior']!r}")


def _regex(step: Mapping[str, Any]) -> str:
    """The regular expression of a split, with line ends as they are typed; "" of other steps."""
    pattern = step.get("pattern", {}).get("Regex", "") if step["type"] == "Split" else ""
    return str(pattern).replace("\r", r"\r").replace("\n", r"\n")


def _behavior(step: Mapping[str, Any]) -> tuple[str | None, bool]:
    return step.get("behavior"), bool(step.get("invert"))


def _check_added(tokens: list[dict[str, Any]], *, nfc: bool) -> None:
    for token in tokens:
        text = token["content"]
        flags = [flag for flag in ("single_word", "lstrip", "rstrip") if token.get(flag)]
        if flags and not token["special"]:
            raise Refused(f"the added token {text!r} has {flags[0]}")
        if nfc and unicodedata.normalize("NFC", text) != text:
            raise Refused(f"the added token {text!r} is not in NFC")


def _check_whole_words(model: Mapping[str, Any], added: list[dict[str, Any]]) -> None:
    """Refuse a model that takes words for tokens which its merges do not make."""
    if not model.get("ignore_merges"):
        return
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    made = {*BYTE_ALPHABET, *map("".join, pairs)}
    no_words = {one["content"] for one in added if _NO_WORD.search(one["content"])}
    unmade = {t for t in model["vocab"].keys() - made - no_words if BYTE_ALPHABET.keys() >= {*t}}
    if unmade:
        count, one = len(unmade), min(unmade)
        raise Refused(f"it takes whole words for tokens, {count} of which no merge makes: {one!r}")


def _steps(setting: Any, several: str) -> Iterator[dict[str, Any]]:
    """The steps of a part, with sequences flattened; what does not matter to ids is left out."""
    if setting is None:
        return
    if setting["type"] == "Sequence":
        for one in setting[several]:
            yield from _steps(one, several)
    else:
        yield {name: value for name, value in setting.items() if name != "trim_offsets"}


_PINNED = "0.3.5"
"""The version that the extra `fast` pins: another one is another implementation."""


class FastokensEncoder(Encoder):
    """The whole `tokenizer.json`, or an encoding's ranks, read by another library."""

    name = "fast"
    kinds = ("hf", "tiktoken")

    def __init__(self, tokenizer: Tokenizer) -> None:
        try:
            if isinstance(tokenizer, HuggingFaceTokenizer):
                made = _fastokens().from_json_str(tokenizer.as_json())
            else:
                made = _of_ranks(tokenizer)
        except ValueError as error:
            raise Refused(f"fastokens cannot read it: {error}") from None
        self._encode = made.encode_batch_flat

    @classmethod
    def version(cls) -> str:
        _fastokens()
        return f"fastokens {version('fastokens')}"

    @classmethod
    def check(cls, tokenizer: Tokenizer) -> None:
        if isinstance(tokenizer, HuggingFaceTokenizer):
            check_parts(tokenizer.settings())
        elif (pattern := _pattern_of_fastokens(tokenizer)) not in KNOWN_SPLITS:
            raise Refused(f"its splitting rule is not known: {pattern[:60]!r}")
        cls(tokenizer)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        try:
            flat, edges = self._encode(list(texts), split_special_tokens=True)
        except BaseException as error:
            if not fails_on_text(error):
                raise
            raise CannotEncode(f"fastokens fails on a text: {error}") from error
        ids = np.frombuffer(flat, "<u4")
        return [ids[start:stop] for start, stop in pairwise(np.frombuffer(edges, "<u8").tolist())]


def _pattern_of_fastokens(tokenizer: Tokenizer) -> str:
    return str(json.loads(tokenizer.files()["encoding.json"])["pattern"])


def _of_ranks(tokenizer: Tokenizer) -> Any:
    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
        file.write(tokenizer.files()["ranks.tiktoken"])
        file.flush()
        # Without special tokens: their texts are encoded as texts.
        return _fastokens().from_tiktoken(
            file.name, pattern=_pattern_of_fastokens(tokenizer), special_tokens={}
        )


def _fastokens() -> Any:
    try:
        from fastokens import _native
    except ImportError:
        raise Refused(f"it is not installed: {install_command('fast')}") from None
    if (found := version("fastokens")) != _PINNED:
        raise Refused(f"fastokens {found} is installed; jaxdata[fast] needs {_PINNED}")
    return _native.Tokenizer
