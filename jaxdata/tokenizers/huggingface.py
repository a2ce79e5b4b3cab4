"""Tokenizers of Hugging Face's `tokenizers` library (`hf:` a tokenizer.json, or a folder)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from jaxdata.errors import InputError, MissingExtra
from jaxdata.tokenizers.base import CannotEncode, SpecialToken, Tokenizer, fails_on_text
from jaxdata.tokenizers.huggingface_files import TOKENIZER, ModelFiles
from jaxdata.tokenizers.huggingface_pieces import cuts_between_words, measure

_log = logging.getLogger("jaxdata")
_EOD = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "<|eot_id|>", "[SEP]")
_BOS = ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[CLS]")
_PAD = ("<pad>", "<|padding|>", "<|pad|>", "<|finetune_right_pad_id|>", "[PAD]")


class HuggingFaceTokenizer(Tokenizer):
    """A `tokenizer.json`; its truncation, padding, templates and dropout are switched off.

    Special tokens in a text are encoded as plain text; added tokens that are not special (the
    runs of spaces of GPT-NeoX) are recognised, as the library does. The model's other files say
    which token ends a document and how conversations are written.
    """

    kind = "hf"

    def __init__(self, files: Mapping[str, bytes], *, name: str, **chosen: SpecialToken) -> None:
        self.name = name
        self._files = ModelFiles(files, name)
        self._tokenizer = _make(self._files, name)
        if getattr(self._tokenizer.model, "dropout", None):
            self._files = ModelFiles({**files, TOKENIZER: _without_dropout(files[TOKENIZER])}, name)
            self._tokenizer = _make(self._files, name)
            _log.warning(
                "%s of %r has dropout: two encodings of a text would differ. It is switched off, "
                "also in the copy that a dataset keeps",
                TOKENIZER,
                name,
            )
        self._vocab: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._vocab.values(), default=-1) + 1
        self._encode_batch = getattr(
            self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch
        )
        self.chat_template = self._files.chat_template()
        self.choose_special_ids(
            self._own("eos_token", _EOD),
            self._own("bos_token", _BOS),
            self._own("pad_token", _PAD),
            **chosen,
        )

    @cached_property
    def unk_id(self) -> int | None:
        model = self._settings["model"]
        found = model.get("unk_id")  # of Unigram; other models name a piece
        return found if isinstance(found, int) else self._vocab.get(model.get("unk_token") or "")

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, name: str, eod: int) -> HuggingFaceTokenizer:
        return cls({TOKENIZER: files[TOKENIZER], **files}, name=name, eod=eod)

    def extended(self, texts: Sequence[str], **ids: int | None) -> HuggingFaceTokenizer:
        library = _make(self._files, self.name)
        library.add_special_tokens(list(texts))
        content = {TOKENIZER: library.to_str().encode()}
        return HuggingFaceTokenizer({**self._files.contents, **content}, name=self.name, **ids)

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        added = self._tokenizer.get_added_tokens_decoder().items()
        return {token.content: i for i, token in added if token.special}

    def token_id(self, text: str) -> int | None:
        return self._vocab.get(text)

    @cached_property
    def cuts_between_words(self) -> bool:
        return cuts_between_words(self._settings, self._tokenizer.get_added_tokens_decoder())

    def encode_texts(self, texts: Sequence[str], special: bool) -> list[np.ndarray]:
        self._tokenizer.encode_special_tokens = not special  # True: as plain text
        try:
            encodings = self._encode_batch(list(texts), add_special_tokens=False)
        except BaseException as error:
            if not fails_on_text(error):
                raise
            raise CannotEncode(f"{self.name!r} cannot encode a text: {error}") from error
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def decode_ids(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def piece_lengths(self) -> Sequence[int]:
        length = measure(self._settings)
        lengths = [0] * self.vocab_size
        for piece, i in self._vocab.items():
            lengths[i] = length(piece)
        for i, token in self._tokenizer.get_added_tokens_decoder().items():
            lengths[i] = 0 if token.special else len(token.content.encode())
        if self.unk_id is not None:
            lengths[self.unk_id] = 0
        return lengths

    def files(self) -> dict[str, bytes]:
        return dict(self._files.contents)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads(self._files.contents[TOKENIZER])
        return settings

    def as_json(self) -> str:
        """The whole tokenizer, as a `tokenizer.json` has it, with what the other files add."""
        return str(self._tokenizer.to_str())

    def settings(self) -> dict[str, Any]:
        """What `as_json` says."""
        settings: dict[str, Any] = json.loads(self.as_json())
        return settings

    def _own(self, role: str, usual: Sequence[str]) -> SpecialToken:
        named = self._files.special_token(role)
        if named in self._vocab:
            return named
        return next((self._vocab[name] for name in usual if name in self._vocab), None)


def _without_dropout(content: bytes) -> bytes:
    settings = json.loads(content)
    settings["model"]["dropout"] = None
    return json.dumps(settings, ensure_ascii=False).encode()


def _make(files: ModelFiles, name: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra("hf", "tokenizers") from error
    try:
        made = tokenizers.Tokenizer.from_buffer(files.contents[TOKENIZER])
    except BaseException as error:  # the library raises bare Exception, or panics
        if not fails_on_text(error):
            raise
        raise InputError(f"{name!r} is not a tokenizer.json of Hugging Face: {error}") from error
    made.no_truncation()
    made.no_padding()
    for wanted, token in files.added_tokens():
        if made.token_to_id(token["content"]) is None:
            _add(made, tokenizers.AddedToken(**token), wanted, name)
    return made


def _add(made: Any, token: Any, wanted: int, name: str) -> None:
    (made.add_special_tokens if token.special else made.add_tokens)([token])
    got = made.token_to_id(token.content)
    if got != wanted:
        raise InputError(
            f"tokenizer_config.json of {name!r} gives {token.content!r} the id {wanted}, which its "
            f"tokenizer.json cannot: it would be {got}. Save the tokenizer again with transformers"
        )
