"""What a `tokenizer.json` says of its pieces: their bytes, and where a text may be cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxdata.tokenizers.text_cuts import KNOWN_SPLITS

_SPACE = "\u2581"  # how Metaspace, and Replace in its place, write a space
_LOCAL = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend"}  # change nothing between letters


def measure(settings: dict[str, Any]) -> Callable[[str], int]:
    """A function from a piece of the vocabulary to its bytes of text."""
    kinds = {part["type"] for part in _parts([settings["pre_tokenizer"], settings["decoder"]])}
    if "ByteLevel" in kinds:
        return len  # GPT-2's alphabet writes every byte as one character
    byte_fallback = bool(settings["model"].get("byte_fallback"))
    joint = str(settings["model"].get("continuing_subword_prefix") or "")

    def length(piece: str) -> int:
        if byte_fallback and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return 1
        return len(piece.removeprefix(joint).replace(_SPACE, " ").encode())

    return length


def cuts_between_words(settings: dict[str, Any], added: Mapping[int, Any]) -> bool:
    """Whether no token lies on both sides of a space between ASCII letters."""
    if any(
        re.search("[A-Za-z] [A-Za-z]", token.content) or token.lstrip or token.rstrip
        for token in added.values()
        if not token.special
    ):
        return False
    local = (
        normalizer["type"] in _LOCAL or _writes_spaces(normalizer)
        for normalizer in _parts(settings["normalizer"])
    )
    return all(local) and _splits_words(settings)


def _writes_spaces(normalizer: dict[str, Any]) -> bool:
    kind, pattern = normalizer["type"], normalizer.get("pattern")
    return kind == "Replace" and pattern is not None and pattern.get("String") == " "


def _splits_words(settings: dict[str, Any]) -> bool:
    if any(map(_splits, _parts(settings["pre_tokenizer"]))):
        return True
    model = settings["model"]
    merged_inside_words = (
        model.get("type") == "BPE"
        and any(map(_writes_spaces, _parts(settings["normalizer"])))
        and not any(re.search(f"[^{_SPACE}]{_SPACE}", piece) for piece in model["vocab"])
    )
    return settings["pre_tokenizer"] is None and merged_inside_words


def _splits(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether this step alone ends a piece before each space between letters."""
    kind = pre_tokenizer["type"]
    if kind == "ByteLevel":
        return bool(pre_tokenizer.get("use_regex", True))
    if kind == "Metaspace":
        return bool(pre_tokenizer.get("split", True))
    return (
        kind == "Split"
        and pre_tokenizer["pattern"].get("Regex") in KNOWN_SPLITS
        and pre_tokenizer["behavior"] == "Isolated"
        and not pre_tokenizer.get("invert")
    )


def _parts(setting: Any) -> Iterator[dict[str, Any]]:
    """The steps of a part of tokenizer.json, with sequences flattened."""
    if isinstance(setting, list):
        for one in setting:
            yield from _parts(one)
    elif isinstance(setting, dict) and setting["type"] == "Sequence":
        yield from _parts(next(value for value in setting.values() if isinstance(value, list)))
    elif isinstance(setting, dict):
        yield setting
