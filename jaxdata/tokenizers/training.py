"""Training a lossless tokenizer: decode(encode(x)) == x for any text.

SentencePiece, or byte-level BPE as of GPT-4: a rule splits texts into words, merges join their
bytes. The libraries' own trainers learn; ids and files of byte-level BPE are made here.
"""

import base64
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxdata.base.errors import InputError, extra_module
from jaxdata.base.numbers import validated
from jaxdata.storage.contract import is_url, plain_path
from jaxdata.storage.small_files import write_small
from jaxdata.tokenizers.base import BYTE_ALPHABET, split_rule
from jaxdata.tokenizers.huggingface import byte_level, splitting

# Ends a piece in training. SentencePiece keeps U+2581 for the space and U+2585 for itself (it
# drops a line that has one), so these two end a piece as well; in encoding they are bytes.
_BORDER = "\x1f"
_RESERVED = re.compile("[\u2581\u2585]")
_CHUNK = 4_096  # characters; SentencePiece drops what is longer than max_sentence_length
_OWN = ("<unk>", "<s>", "</s>")
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_END, _PAD = "<|endoftext|>", "<pad>"
_OPTIONS: dict[str, Any] = {
    # Lossless.
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "byte_fallback": True,
    "pretokenization_delimiter": _BORDER,
    "max_sentence_length": 8 * _CHUNK,  # bytes: 4 a character, a border after each digit
    "num_threads": 16,  # fixed: results may depend on it
    "minloglevel": 2,
}


@validated
def train(
    texts: Iterable[str],
    output: str | Path,
    *,
    vocab_size: int = 8192,
    model_type: Literal["bpe", "unigram"] = "bpe",
    digits: int | None = None,
    max_bytes: int | None = None,
    character_coverage: float = 0.9995,
    special: Sequence[str] = (),
    pad_id: int | None = None,
) -> int:
    """Train a SentencePiece model and write it to a file; the same texts give the same bytes.

    Text is not normalised, and no space is added or removed; characters without a piece become
    byte pieces. Ids: 0 unknown, 1 <s>, 2 </s> (the end of a document), then the special tokens.

    Args:
        texts: the corpus.
        output: the file to write; its folder is created.
        vocab_size: number of ids, the 256 bytes and 3 special tokens included.
        model_type: "bpe" or "unigram".
        digits: no piece holds more than this many digits (2: autoresearch's rule); None: no rule.
        max_bytes: stop reading texts after this many bytes of UTF-8.
        character_coverage: the share of the text whose characters get an id of their own; the
            rare others become bytes.
        special: the texts of more special tokens. Each gets an id of its own, from 3 on in this
            order; a text that spells one is encoded as text, never to this id. "<pad>" becomes
            the padding token.
        pad_id: the id of the padding token "<pad>", at least 3; the ids of what follows move up.
            None: it has none, or the one that `special` gives it.

    Returns:
        The bytes of text it was trained on.

    Raises:
        InputError: there is no text, or too little (or too few ids) for `vocab_size`, or a special
            token or a padding id that cannot be one.

    >>> import tempfile
    >>> from jaxdata import tokenizers
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read = train(["one two three, two three one"] * 9, f"{folder}/my.model", vocab_size=270)
    ...     tokenizers.load(f"sentencepiece:{folder}/my.model").vocab_size
    270
    """
    import sentencepiece

    if digits is not None and digits < 1:
        raise InputError(f"digits={digits}; expected 1 or more, or None for no rule")
    _check(special, pad_id, len(_OWN), vocab_size)
    if own := [text for text in special if text in _OWN or _BYTE.fullmatch(text)]:
        raise InputError(f"special token {own[0]!r}: every model has it; leave it out")
    reserved: dict[str, Any] = {"control_symbols": list(special)} if special else {}
    if pad_id is not None:
        reserved["pad_id"] = pad_id
    corpus = _Corpus(texts, max_bytes, _CHUNK)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentences(corpus, digits),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            **reserved,
            **_OPTIONS,
        )
    except (RuntimeError, OSError) as error:
        corpus.check_any()
        raise InputError(
            f"cannot train a vocabulary of {vocab_size} on {corpus.bytes:,} bytes of text; "
            "give more text, another --vocab-size, or (many characters) a lower "
            f"character_coverage than {character_coverage}. SentencePiece says: {error}"
        ) from error
    write_small(output, model.getvalue())
    return corpus.bytes


def _sentences(chunks: Iterable[str], digits: int | None) -> Iterator[str]:
    """Chunks of text as SentencePiece learns from them, pieces ending where none may go on."""
    run = re.compile(rf"\d{{1,{digits}}}") if digits else None
    for chunk in chunks:
        sentence = _RESERVED.sub(_BORDER, chunk)
        yield run.sub(rf"\g<0>{_BORDER}", sentence) if run else sentence


class _Corpus:
    """Texts, perhaps in chunks of so many characters; counts the bytes of text it gave."""

    def __init__(self, texts: Iterable[str], most: int | None, chunk: int | None = None) -> None:
        self._texts, self._most, self._chunk = texts, most, chunk
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            size = self._chunk or max(1, len(text))
            for start in range(0, len(text), size):
                if self._most is not None and self.bytes >= self._most:
                    return
                chunk = text[start : start + size]
                self.bytes += len(chunk.encode())
                yield chunk

    def check_any(self) -> None:
        """Raise InputError if there was no text."""
        if not self.bytes:
            raise InputError("there is no text to train a tokenizer on; is --text-key right?")


def _check(special: Sequence[str], pad_id: int | None, own: int, vocab_size: int) -> None:
    """Refuse what cannot be texts of special tokens, or the id of padding behind `own` ids."""
    for number, text in enumerate(special):
        if not text.strip() or not text.isprintable():
            raise InputError(f"special token {text!r}: expected a printable text")
        if text in special[:number]:
            raise InputError(f"special token {text!r}: it is there twice")
    if pad_id is not None and 0 <= pad_id < own:
        raise InputError(f"pad_id={pad_id} is the id of {_OWN[pad_id]}; expected {own} or more")
    if pad_id is not None and not 0 <= pad_id < vocab_size:
        raise InputError(f"pad_id={pad_id}; expected an id from {own} to {vocab_size - 1}")


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
    _check(special, pad_id, 0, vocab_size)
    names = list(dict.fromkeys([_END, *special, *([_PAD] if pad_id is not None else [])]))
    if digits is not None and not 1 <= digits <= 9:
        raise InputError(f"digits={digits}; expected 1 to 9, or None for the rule's own")
    if vocab_size <= 256 + len(names):
        raise InputError(
            f"vocab_size={vocab_size}; expected more than {256 + len(names)}: 256 bytes, and "
            f"{len(names)} special tokens"
        )
    if not is_url(plain_path(output)) and Path(output).expanduser().is_file():
        raise InputError(f"{output} is a file; expected a folder to write tokenizer.json in")
    corpus, rule = _Corpus(texts, max_bytes), split_rule(split, digits)
    merges = _merges(corpus, rule, vocab_size - len(names))
    corpus.check_any()
    tokens = [*BYTE_ALPHABET, *map("".join, merges)]
    if len(tokens) + len(names) < vocab_size:
        raise InputError(
            f"cannot train a vocabulary of {vocab_size} on {corpus.bytes:,} bytes of text: it has "
            f"words for {len(tokens) + len(names)}; give more text or a smaller --vocab-size"
        )
    if learned := sorted({*names} & {*tokens}):
        raise InputError(f"special token {learned[0]!r}: a word of the corpus; give another text")
    order = [*tokens, *names]
    if pad_id is not None:
        order.remove(_PAD)
        order.insert(pad_id, _PAD)
    _write(output, {token: i for i, token in enumerate(order)}, names, merges, rule)
    return corpus.bytes


_Merges = list[tuple[str, str]]


def _merges(texts: Iterable[str], rule: str, size: int) -> _Merges:
    """The pairs of tokens that are merged, in the order of their ids behind the 256 bytes."""
    hf = extra_module("hf", "tokenizers")
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.pre_tokenizer = splitting(rule)
    trainer = hf.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=[*BYTE_ALPHABET], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def _write(
    output: str | Path, ids: dict[str, int], special: Sequence[str], merges: _Merges, rule: str
) -> None:
    numbers = {text: ids[text] for text in special}
    ranks = [
        base64.b64encode(bytes(map(BYTE_ALPHABET.__getitem__, token))) + b" %d\n" % number
        for token, number in ids.items()
        if token not in numbers
    ]
    config = {"eos_token": _END} | ({"pad_token": _PAD} if _PAD in numbers else {})
    encoding = {"pattern": rule, "special_tokens": numbers}
    where = str(output).rstrip("/")
    write_small(f"{where}/ranks.tiktoken", b"".join(ranks))
    for name, content in (("encoding", encoding), ("tokenizer_config", config)):
        data = json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n"
        write_small(f"{where}/{name}.json", data)
    write_small(f"{where}/tokenizer.json", byte_level(ids, merges, special, rule))
