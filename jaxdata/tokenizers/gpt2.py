"""GPT-2's own two files, merges and vocabulary, as a `tokenizer.json` (`gpt2:FOLDER`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxdata.errors import InputError

_NAMES = (("vocab.bpe", "encoder.json"), ("merges.txt", "vocab.json"))
_END = "<|endoftext|>"


def find_files(where: str) -> tuple[Path, Path]:
    """The merges and the vocabulary of "MERGES,VOCABULARY", or of a folder with both."""
    merges, comma, vocabulary = where.partition(",")
    if comma:
        return Path(merges).expanduser(), Path(vocabulary).expanduser()
    folder = Path(where).expanduser()
    for pair in _NAMES:
        if all((folder / name).is_file() for name in pair):
            return folder / pair[0], folder / pair[1]
    raise InputError(
        f"gpt2:{where}: no folder with vocab.bpe and encoder.json (or merges.txt and vocab.json); "
        "name both files: gpt2:MERGES,VOCABULARY"
    )


def tokenizer_json(merges: bytes, vocabulary: bytes, name: str) -> bytes:
    """The two as one tokenizer.json, the only form that Hugging Face's library reads."""
    try:
        ids: dict[str, int] = dict(json.loads(vocabulary))
        lines = merges.decode().split("\n")
    except ValueError as error:
        raise InputError(f"{name!r} is not the vocabulary of GPT-2's kind: {error}") from error
    pairs = [line.split(" ") for line in lines if line.strip() and not line.startswith("#version")]
    if not all(len(pair) == 2 for pair in pairs):
        wrong = next(" ".join(pair) for pair in pairs if len(pair) != 2)
        raise InputError(f"{name!r}: the merge {wrong!r} is not two pieces and a space between")
    return json.dumps(_settings(ids, pairs), ensure_ascii=False).encode()


def _settings(ids: dict[str, int], pairs: list[list[str]]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": ids.get(_END), "content": _END, **plain, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end] if _END in ids else [],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": ids, "merges": pairs},
    }
