"""Training byte-level BPE, as of GPT-4: a rule splits texts into words, merges join their bytes.

The trainer of Hugging Face's `tokenizers` learns the merges; ids and files are made here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxdata.base.errors import InputError, MissingExtra
from jaxdata.base.numbers import validated
from jaxdata.storage.small_files import write_small
from jaxdata.storage.urls import is_url, plain_path
from jaxdata.tokenizers.base import BYTE_ALPHABET, SPLITS, cut_between_words, split_rule
from jaxdata.tokenizers.huggingface import byte_level_json
from jaxdata.tokenizers.training import check_special

END = "<|endoftext|>"
_PAD = "<pad>"
_PART = 2**16  # characters
Pair = tuple[str, str]


@validated
def train_byte_level(
    texts: Iterable[str],
    output: str | Path,
    *,
    vocab_size: int = 8192,
    split: Literal["gpt2", "gpt4", "gpt4o"] = "gpt4",
    digits: int | None = 2,
    max_bytes: int | None = None,
    special: Sequence[str] = (),
    pad_id: int | None = None,
) -> int:
    """Train a byte-level BPE tokenizer and write it to a folder, twice, with the same ids.

    `tokenizer.json` is read by `hf:FOLDER` and by transformers; `ranks.tiktoken` with
    `encoding.json` by `tiktoken:FOLDER`. Ids: the 256 bytes, the merges in their order, then the
    special tokens: <|endoftext|>, which ends a document, and those of `special`.

    Args:
        texts: the corpus; it is read once, of which the different words are kept.
        output: the folder to write; created where it is missing.
        vocab_size: number of ids, bytes and special tokens included.
        split: the rule by which texts are split into words: GPT-2's, GPT-4's or GPT-4o's.
        digits: no token holds more than this many digits; None: as the rule says (3; GPT-2's: any).
        max_bytes: stop reading texts after this many bytes of UTF-8.
        special: the texts of more special tokens, which no plain text is encoded to. "<pad>"
            becomes the padding token.
        pad_id: the id of the padding token "<pad>"; ids from it on move up by one. None: it has
            none, or the one that `special` gives it.

    Returns:
        The bytes of text it was trained on.

    Raises:
        InputError: there is no text, or too little for `vocab_size`; too few ids, or a special
            token or a padding id that cannot be one.
        MissingExtra: `tokenizers`, which learns the merges, is not installed.

    >>> import tempfile
    >>> from jaxdata import tokenizers
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read = train_byte_level(["one two three, two three one"], folder, vocab_size=260)
    ...     tokenizers.load(f"hf:{folder}").vocab_size
    260
    """
    names = _special(special, padding=pad_id is not None)
    _check(vocab_size, len(names), split, digits, pad_id)
    if not is_url(plain_path(output)) and Path(output).expanduser().is_file():
        raise InputError(f"{output} is a file; expected a folder to write tokenizer.json in")
    corpus = Corpus(texts, max_bytes)
    rule = split_rule(split, digits)
    merges = _learned(corpus, rule, vocab_size - len(names))
    if not corpus.bytes:
        raise InputError("there is no text to train a tokenizer on; is --text-key right?")
    tokens = [*BYTE_ALPHABET, *map("".join, merges)]
    if len(tokens) + len(names) < vocab_size:
        raise InputError(
            f"cannot train a vocabulary of {vocab_size} on {corpus.bytes:,} bytes of text: it has "
            f"words for {len(tokens) + len(names)}; give more text or a smaller --vocab-size"
        )
    if learned := sorted({*names} & {*tokens}):
        raise InputError(f"special token {learned[0]!r}: a word of the corpus; give another text")
    ids = _numbered(tokens, names, pad_id)
    _write(output, ids, names, merges, rule)
    return corpus.bytes


class Corpus:
    """Texts in parts of about 65,536 characters; counts the bytes of text it gave.

    They are cut between words, where no rule makes other words of the parts.
    """

    def __init__(self, texts: Iterable[str], max_bytes: int | None) -> None:
        self._texts = texts
        self._max_bytes = max_bytes
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            for part in cut_between_words(text, _PART):
                if self._max_bytes is not None and self.bytes >= self._max_bytes:
                    return
                self.bytes += len(part.encode())
                yield part


def _special(asked: Sequence[str], *, padding: bool) -> list[str]:
    check_special(asked)
    return list(dict.fromkeys([END, *asked, *([_PAD] if padding else [])]))


def _check(
    vocab_size: int, special: int, split: str, digits: int | None, pad_id: int | None
) -> None:
    if split not in SPLITS:
        raise InputError(f"split={split!r}; expected one of {', '.join(SPLITS)}")
    if digits is not None and not 1 <= digits <= 9:
        raise InputError(f"digits={digits}; expected 1 to 9, or None for the rule's own")
    if vocab_size <= 256 + special:
        raise InputError(
            f"vocab_size={vocab_size}; expected more than {256 + special}: 256 bytes, and "
            f"{special} special tokens"
        )
    if pad_id is not None and not 0 <= pad_id < vocab_size:
        raise InputError(f"pad_id={pad_id}; expected an id from 0 to {vocab_size - 1}")


def _learned(texts: Iterable[str], rule: str, size: int) -> list[Pair]:
    """The pairs of tokens that are merged, in the order of their ids behind the 256 bytes."""
    try:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingExtra("hf", "tokenizers") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rule), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=[*BYTE_ALPHABET], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def _numbered(tokens: Sequence[str], special: Sequence[str], pad_id: int | None) -> dict[str, int]:
    """The id of each token: in their order, but for the padding token."""
    order = [*tokens, *special]
    if pad_id is not None:
        order.remove(_PAD)
        order.insert(pad_id, _PAD)
    return {token: number for number, token in enumerate(order)}


def _write(
    output: str | Path, ids: dict[str, int], special: Sequence[str], merges: list[Pair], rule: str
) -> None:
    where = str(output).rstrip("/")
    numbers = {text: ids[text] for text in special}
    config = {"eos_token": END} | ({"pad_token": _PAD} if _PAD in numbers else {})
    encoding = {"pattern": rule, "special_tokens": numbers}
    write_small(f"{where}/ranks.tiktoken", _ranks(ids, numbers))
    write_small(f"{where}/encoding.json", _json(encoding))
    write_small(f"{where}/tokenizer_config.json", _json(config))
    write_small(f"{where}/tokenizer.json", byte_level_json(ids, merges, numbers, rule))


def _ranks(ids: dict[str, int], special: dict[str, int]) -> bytes:
    lines = (
        base64.b64encode(bytes(map(BYTE_ALPHABET.__getitem__, token))) + b" %d\n" % number
        for token, number in ids.items()
        if token not in special
    )
    return b"".join(lines)


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n"
