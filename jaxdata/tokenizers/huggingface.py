"""Tokenizers of the Hugging Face `tokenizers` library (`hf:tokenizer.json`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdata.errors import InputError, MissingExtra
from jaxdata.tokenizers.base import BaseTokenizer, SpecialToken

__all__ = ["HuggingFaceTokenizer"]

_FILE = "tokenizer.json"
_EOD = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "<|eot_id|>", "[SEP]")
_BOS = ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[CLS]")
_PAD = ("<pad>", "<|padding|>", "<|pad|>", "<|finetune_right_pad_id|>", "[PAD]")


class HuggingFaceTokenizer(BaseTokenizer):
    """A `tokenizer.json`; its truncation, padding and templates are switched off.

    Special tokens in a text are encoded as plain text; added tokens that are not special (the
    runs of spaces of GPT-NeoX) are found, as the library does.
    """

    kind = "hf"

    def __init__(
        self,
        data: bytes,
        *,
        name: str,
        eod: SpecialToken = None,
        bos: SpecialToken = None,
        pad: SpecialToken = None,
    ) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise MissingExtra("hf", "tokenizers") from error
        self.name = name
        self._data = data
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises bare Exception
            raise InputError(
                f"{name!r} is not a tokenizer.json of Hugging Face: {error}"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._vocab: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._vocab.values(), default=-1) + 1
        self._encode_batch = getattr(
            self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch
        )
        self.choose_special_ids(
            self._vocab.get,
            self._first_known(_EOD) if eod is None else eod,
            self._first_known(_BOS) if bos is None else bos,
            self._first_known(_PAD) if pad is None else pad,
        )

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, name: str, eod: int) -> HuggingFaceTokenizer:
        """Make it again from its json."""
        return cls(files[_FILE], name=name, eod=eod)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text: uint32 of shape (tokens,)."""
        encodings = self._encode_batch(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def decode_ids(self, ids: list[int]) -> str:
        """Return the text of ids."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def piece_lengths(self) -> Sequence[int]:
        """Bytes of each id, read off the vocabulary by the kind of its alphabet."""
        settings = json.loads(self._data)
        byte_level = "ByteLevel" in set(_types([settings["pre_tokenizer"], settings["decoder"]]))
        measure = _byte_level_length if byte_level else _plain_length(settings)
        lengths = [0] * self.vocab_size
        for piece, i in self._vocab.items():
            lengths[i] = measure(piece)
        for i, token in self._tokenizer.get_added_tokens_decoder().items():
            lengths[i] = 0 if token.special else len(token.content.encode())
        unknown = settings["model"].get("unk_token")
        if unknown in self._vocab:
            lengths[self._vocab[unknown]] = 0
        return lengths

    def files(self) -> dict[str, bytes]:
        """Return the json."""
        return {_FILE: self._data}

    def _first_known(self, names: Sequence[str]) -> int | None:
        return next((self._vocab[name] for name in names if name in self._vocab), None)


def _types(settings: Any) -> Iterator[str]:
    """Every "type" anywhere in a part of tokenizer.json."""
    if isinstance(settings, list):
        for part in settings:
            yield from _types(part)
    elif isinstance(settings, dict):
        yield str(settings.get("type"))
        yield from _types(list(settings.values()))


def _byte_level_length(piece: str) -> int:
    """GPT-2's alphabet writes every byte as one character."""
    return len(piece)


def _plain_length(settings: dict[str, Any]) -> Any:
    """Measure the pieces of a vocabulary that is written in text."""
    byte_fallback = bool(settings["model"].get("byte_fallback"))
    joint = str(settings["model"].get("continuing_subword_prefix") or "")
    space = "\u2581"  # how Metaspace, and Replace in its place, write a space

    def length(piece: str) -> int:
        if byte_fallback and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return 1
        return len(piece.removeprefix(joint).replace(space, " ").encode())

    return length
