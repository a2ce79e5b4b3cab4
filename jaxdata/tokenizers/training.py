"""Training a lossless SentencePiece tokenizer: decode(encode(x)) == x for any text."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import validated
from jaxdata.storage.small_files import write_small

# Ends a piece in training. SentencePiece keeps U+2581 for the space and U+2585 for itself (it
# drops a line that has one), so these two end a piece as well; in encoding they are bytes.
_BORDER = "\x1f"
_RESERVED = re.compile("[\u2581\u2585]")
_CHUNK = 4_096  # characters; SentencePiece drops what is longer than max_sentence_length
_LONGEST = 8 * _CHUNK  # bytes: four a character, and a border after each digit

_OWN = ("<unk>", "<s>", "</s>")
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")

_OPTIONS: dict[str, Any] = {
    # Lossless.
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "byte_fallback": True,
    "pretokenization_delimiter": _BORDER,
    "max_sentence_length": _LONGEST,
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
    reserved: dict[str, Any] = {"control_symbols": _checked(special)} if special else {}
    if pad_id is not None:
        reserved["pad_id"] = _checked_pad_id(pad_id, vocab_size)
    corpus = _Corpus(texts, digits, max_bytes)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            **reserved,
            **_OPTIONS,
        )
    except (RuntimeError, OSError) as error:
        if not corpus.bytes:
            raise InputError(
                "there is no text to train a tokenizer on; is --text-key right?"
            ) from error
        raise InputError(
            f"cannot train a vocabulary of {vocab_size} on {corpus.bytes:,} bytes of text; "
            "give more text, another --vocab-size, or (many characters) a lower "
            f"--character-coverage than {character_coverage}. SentencePiece says: {error}"
        ) from error
    write_small(output, model.getvalue())
    return corpus.bytes


def check_special(special: Sequence[str]) -> None:
    """Refuse what cannot be the texts of special tokens."""
    if isinstance(special, str):
        raise InputError(f"special={special!r}: expected a list of texts")
    for number, text in enumerate(special):
        if not text.strip() or not text.isprintable():
            raise InputError(f"special token {text!r}: expected a printable text")
        if text in special[:number]:
            raise InputError(f"special token {text!r}: it is there twice")


def _checked(special: Sequence[str]) -> list[str]:
    check_special(special)
    for text in special:
        if text in _OWN:
            raise InputError(f"special token {text!r}: every model has it; leave it out")
        if _BYTE.fullmatch(text):
            raise InputError(f"special token {text!r}: it is the name of a byte; give another")
    return list(special)


def _checked_pad_id(pad_id: int, vocab_size: int) -> int:
    if 0 <= pad_id < len(_OWN):
        raise InputError(f"pad_id={pad_id} is the id of {_OWN[pad_id]}; expected 3 or more")
    if not 0 <= pad_id < vocab_size:
        raise InputError(f"pad_id={pad_id}; expected an id from 3 to {vocab_size - 1}")
    return pad_id


class _Corpus:
    """The training sentences of some texts; counts the bytes of text it gave."""

    def __init__(self, texts: Iterable[str], digits: int | None, max_bytes: int | None) -> None:
        self._texts = texts
        self._digits = re.compile(rf"\d{{1,{digits}}}") if digits else None
        self._max_bytes = max_bytes
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            for start in range(0, len(text), _CHUNK):
                if self._max_bytes is not None and self.bytes >= self._max_bytes:
                    return
                chunk = text[start : start + _CHUNK]
                self.bytes += len(chunk.encode())

                sentence = _RESERVED.sub(_BORDER, chunk)
                if self._digits:
                    sentence = self._digits.sub(rf"\g<0>{_BORDER}", sentence)
                yield sentence
