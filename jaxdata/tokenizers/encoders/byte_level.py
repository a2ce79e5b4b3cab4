"""Byte-level BPE in the parts of a `tokenizer.json`, where they are parts that we know."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxdata.tokenizers.base import Tokenizer
from jaxdata.tokenizers.encoders.base import Refused
from jaxdata.tokenizers.encoders.sequences import SEQUENCES, SINGLE_DIGITS
from jaxdata.tokenizers.huggingface import HuggingFaceTokenizer
from jaxdata.tokenizers.text_cuts import CL100K_SPLIT, GPT2_SPLIT, O200K_SPLIT

_GPT2_LONG = GPT2_SPLIT.replace("'(?:[sdmt]|ll|ve|re)", "'s|'t|'re|'ve|'m|'ll|'d")
SPLITS = {
    GPT2_SPLIT,
    _GPT2_LONG,
    CL100K_SPLIT,
    O200K_SPLIT,
    CL100K_SPLIT.replace("{1,3}", ""),  # Qwen 2
}
"""Splitting rules that mean the same to each regular expression library; all match any text."""
_NO_WORD = re.compile(r"[A-Za-z0-9][!-&(-/:-@\[-`{-~]")
"""A letter or digit before a sign that is no apostrophe: every rule ends a word between them."""


@dataclass(frozen=True)
class ByteLevelBpe:
    """The parts of a byte-level BPE tokenizer.

    Attributes:
        pattern: the regular expression whose matches are encoded one by one.
        ids: the bytes of each token that merges make, single bytes first, and its id.
        merges: the bytes of the pairs to merge, first to last.
        nfc: whether texts are normalised to NFC.
        added: rewriting of added tokens: on the text, and on the normalised one.
    """

    pattern: str
    ids: dict[bytes, int]
    merges: list[tuple[bytes, bytes]]
    nfc: bool
    added: tuple[AddedTokens, AddedTokens]

    def normal(self, text: str) -> str:
        """The text as it is split."""
        return unicodedata.normalize("NFC", text) if self.nfc and not text.isascii() else text


@dataclass(frozen=True)
class AddedTokens:
    """Added tokens that a text is searched for at one moment: leftmost, then longest first.

    Special ones are found and left as text, as the library does when it encodes them as text.
    """

    ids: Mapping[str, int]
    """Of those that are no special tokens."""
    pattern: re.Pattern[str] | None
    """None where all are special, so that nothing is replaced."""

    @classmethod
    def of(cls, tokens: list[dict[str, Any]]) -> AddedTokens:
        """Those of `added_tokens`; raises Refused for flags that depend on what is around them."""
        ids = {token["content"]: token["id"] for token in tokens if not token["special"]}
        for token in tokens:
            flags = [flag for flag in ("single_word", "lstrip", "rstrip") if token.get(flag)]
            if flags and not token["special"]:
                raise Refused(f"the added token {token['content']!r} has {flags[0]}")
        longest_first = sorted((token["content"] for token in tokens), key=len, reverse=True)
        found = "|".join(map(re.escape, longest_first))
        return cls(ids, re.compile(found) if ids else None)

    def replace(self, text: str, by: Callable[[int], str]) -> str:
        """The text with `by(id)` in the place of each token that is no special one."""
        if self.pattern is None:
            return text

        def one(found: re.Match[str]) -> str:
            token = self.ids.get(found[0])
            return found[0] if token is None else by(token)

        return self.pattern.sub(one, text)


def parts_of(tokenizer: Tokenizer) -> ByteLevelBpe:
    """The parts of a tokenizer of Hugging Face's kind.

    Raises:
        Refused: it is of another kind, or has a part that is not known.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise Refused(f"it is not for {tokenizer.kind} tokenizers")
    return byte_level_bpe(tokenizer.settings())


def byte_level_bpe(settings: Mapping[str, Any]) -> ByteLevelBpe:
    """The parts of a `tokenizer.json`; raises Refused for one that is not known."""
    model = settings["model"]
    _check_model(model)
    nfc = _nfc(settings["normalizer"])
    merges = [_pair(merge) for merge in model["merges"]]
    return ByteLevelBpe(
        pattern=_pattern(settings["pre_tokenizer"]),
        ids=_ids(model, merges, settings["added_tokens"]),
        merges=merges,
        nfc=nfc,
        added=_added(settings["added_tokens"], nfc),
    )


def _check_model(model: Mapping[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise Refused(f"its model is {model.get('type')!r}, not byte-level BPE")
    for part in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(part):
            raise Refused(f"its model has {part}")


def _nfc(normalizer: Any) -> bool:
    steps = list(_steps(normalizer, "normalizers"))
    if any(step != {"type": "NFC"} for step in steps):
        other = next(step for step in steps if step != {"type": "NFC"})
        raise Refused(f"its normalizer is {other['type']!r}; NFC is the only one that is known")
    return bool(steps)


def _pattern(pre_tokenizer: Any) -> str:
    *splits, last = [*_steps(pre_tokenizer, "pretokenizers")] or [{"type": None}]
    if last["type"] != "ByteLevel":
        raise Refused(f"its last step of splitting is {last['type']!r}, not ByteLevel")
    if last.get("add_prefix_space", True):
        raise Refused("it puts a space before a text")
    own = last.get("use_regex", True)
    if not splits and own:
        return GPT2_SPLIT
    if splits == [{"type": "Digits", "individual_digits": True}] and own:
        return SINGLE_DIGITS
    if len(splits) == 1 and not own:
        return _split(splits[0])
    isolated = all(_behavior(step) == ("Isolated", False) for step in splits)
    if not own and isolated and (one := SEQUENCES.get(tuple(map(_regex, splits)))):
        return one
    kinds = ", ".join(str(step["type"]) for step in (*splits, last))
    raise Refused(f"its sequence of splits ({kinds}) is not proven to be one")


def _split(step: Mapping[str, Any]) -> str:
    pattern = _regex(step)
    if pattern not in SPLITS:
        raise Refused(f"its splitting rule is not known: {str(pattern or step['type'])[:60]!r}")
    # As every character is matched, the same pieces come either way.
    if _behavior(step) not in {("Isolated", False), ("Removed", True)}:
        raise Refused(f"its splitting rule has the behavior {step['behavior']!r}")
    return pattern


def _regex(step: Mapping[str, Any]) -> str:
    """The regular expression of a split, with line ends as they are typed; "" of other steps."""
    pattern = step.get("pattern", {}).get("Regex", "") if step["type"] == "Split" else ""
    return str(pattern).replace("\r", r"\r").replace("\n", r"\n")


def _behavior(step: Mapping[str, Any]) -> tuple[str | None, bool]:
    return step.get("behavior"), bool(step.get("invert"))


def _pair(merge: str | list[str]) -> tuple[bytes, bytes]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return _bytes(left), _bytes(right)


def _ids(
    model: Mapping[str, Any], merges: list[tuple[bytes, bytes]], added: list[dict[str, Any]]
) -> dict[bytes, int]:
    """The ids of the bytes, and of what merges make, in the order of these."""
    vocab: dict[str, int] = model["vocab"]
    lacking = [byte for char, byte in ALPHABET.items() if char not in vocab]
    if {*lacking} - _NOT_IN_UTF8:
        raise Refused(f"its vocabulary lacks {len(lacking)} of the 256 bytes")
    known = {_bytes(token): i for token, i in vocab.items() if ALPHABET.keys() >= {*token}}
    ids = {bytes([byte]): vocab[char] for char, byte in ALPHABET.items() if char in vocab}
    for left, right in merges:
        if left + right not in known:
            raise Refused(f"a merge makes {left + right!r}, which is no token")
        ids[left + right] = known[left + right]
    no_words = {one["content"] for one in added if _NO_WORD.search(one["content"])}
    unmade = {token for token in vocab.keys() - no_words if _may_be_word(token, ids)}
    if model.get("ignore_merges") and unmade:
        count, one = len(unmade), min(unmade)
        raise Refused(f"it takes whole words for tokens, {count} of which no merge makes: {one!r}")
    return ids


def _may_be_word(token: str, made: Container[bytes]) -> bool:
    """Whether a text may hold a token, written in bytes, that no merge makes."""
    return ALPHABET.keys() >= {*token} and _bytes(token) not in made


def _added(tokens: list[dict[str, Any]], nfc: bool) -> tuple[AddedTokens, AddedTokens]:
    for token in tokens:
        text = token["content"]
        if nfc and unicodedata.normalize("NFC", text) != text:
            raise Refused(f"the added token {text!r} is not in NFC")
    early = [token for token in tokens if not token["normalized"]]
    return AddedTokens.of(early), AddedTokens.of([one for one in tokens if one["normalized"]])


def _steps(setting: Any, several: str) -> Iterator[dict[str, Any]]:
    """The steps of a part, with sequences flattened; what does not matter to ids is left out."""
    if setting is None:
        return
    if setting["type"] == "Sequence":
        for one in setting[several]:
            yield from _steps(one, several)
    else:
        yield {name: value for name, value in setting.items() if name != "trim_offsets"}


def _alphabet() -> dict[str, int]:
    """GPT-2's alphabet, which writes every byte as one printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


ALPHABET = _alphabet()
"""The byte that each character of a token stands for."""
_NOT_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


def _bytes(token: str) -> bytes:
    try:
        return bytes(map(ALPHABET.__getitem__, token))
    except KeyError:
        raise Refused(f"the token {token!r} is not written in bytes") from None
