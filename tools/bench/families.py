"""Tokenizers of each family, made of the files beside the real text.

The published files of Llama 3, GPT-4o and Qwen are not at hand: their splitting rules are put on
the 100,000 tokens of cl100k, whose merges are found as the trainer had them.
"""

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxdata.tokenizers.base import BYTE_ALPHABET as ALPHABET, CL100K_SPLIT, O200K_SPLIT

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
PATTERNS = {
    "llama-3": CL100K_SPLIT,
    "o200k": O200K_SPLIT,
    "qwen": CL100K_SPLIT.replace("{1,3}", ""),
}


def families(files: Path, made: Path, quick: bool) -> dict[str, str]:
    """Specs by family; those of patterns, left out if `quick`, are written to `made` once."""
    ranks = files / "tiktoken/cl100k_base.tiktoken"
    patterned = {} if quick else {name: made / f"{name}.json" for name in PATTERNS}
    if not all(path.exists() for path in patterned.values()):
        made.mkdir(parents=True, exist_ok=True)
        model = _model(ranks)
        for name, path in patterned.items():
            path.write_text(json.dumps(_settings(name, model)))
    return {
        "sentencepiece": f"sentencepiece:{files}/sentencepiece/t5_cc_all.32000.100extra.model",
        "sentencepiece BPE": f"sentencepiece:{files}/mistral/tokenizer.mistral-v1.model",
        "gpt-2": f"hf:{files}/gpt2/tokenizer.json",
        "neox": f"hf:{files}/gpt-neox/20B_tokenizer.json",
        **{name: f"hf:{path}" for name, path in patterned.items()},
        "tiktoken": f"tiktoken:{ranks}",
        "bytes": "bytes",
    }


def _model(ranks: Path) -> dict[str, Any]:
    lines = (line.split() for line in ranks.read_bytes().splitlines())
    tokens = {base64.b64decode(token): int(rank) for token, rank in lines}
    letters = {byte: letter for letter, byte in ALPHABET.items()}

    def text(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    made = ((token, rank) for token, rank in tokens.items() if len(token) > 1)
    merges = [[*map(text, merged_below(token, tokens, rank))] for token, rank in made]
    return {"type": "BPE", "vocab": {text(t): rank for t, rank in tokens.items()}, "merges": merges}


def merged_below(token: bytes, ranks: dict[bytes, int], limit: int) -> list[bytes]:
    """What the bytes of a token become by merging the lowest rank first, below a limit."""
    found = [token[n : n + 1] for n in range(len(token))]
    while len(found) > 1:
        pairs = [ranks.get(a + b, limit) for a, b in pairwise(found)]
        if (least := min(pairs)) >= limit:
            break
        at = pairs.index(least)
        found[at : at + 2] = [found[at] + found[at + 1]]
    return found


def _settings(name: str, model: dict[str, Any]) -> dict[str, Any]:
    rule = {"type": "Split", "pattern": {"Regex": PATTERNS[name]}, "behavior": "Isolated"}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": len(model["vocab"]), "content": "<|endoftext|>", "special": True, **flags}
    return {
        "version": "1.0",
        "added_tokens": [end],
        "normalizer": {"type": "NFC"} if name == "qwen" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [rule | {"invert": False}, BYTES]},
        "post_processor": None,
        "decoder": BYTES,
        "model": model | {"ignore_merges": name == "llama-3"},
    }
