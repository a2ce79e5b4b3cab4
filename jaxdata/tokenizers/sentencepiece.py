"""SentencePiece models (`sentencepiece:FILE`)."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import sentencepiece

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import cached_property
from jaxdata.tokenizers.base import SpecialToken, Tokenizer, read_file, split_at_special

_FILE = "tokenizer.model"
_SPACE = "\u2581"  # SentencePiece writes spaces as this character, and reads both as a space


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model; control symbols are never found in text, so text stays text.

    User-defined symbols are: that is what they are for, and they decode to themselves.
    """

    kind = "sentencepiece"

    def __init__(self, files: Mapping[str, bytes], *, name: str, **chosen: SpecialToken) -> None:
        self.name, self._model = name, files[_FILE]
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(self._model)
        except RuntimeError as error:
            raise InputError(f"{name!r} is not a SentencePiece model: {error}") from error
        self.vocab_size = self._processor.vocab_size()
        ids = (self._processor.eos_id(), self._processor.bos_id(), self._processor.pad_id())
        self.choose_special_ids(*(None if i < 0 else i for i in ids), **chosen)
        # Arrays came after 0.2.0; lists cost more.
        self._encode: Callable[..., Any] = getattr(
            self._processor, "EncodeAsNumpy", self._processor.EncodeAsIds
        )
        self._space_ids = self._literal_space_ids()

    @property
    def unk_id(self) -> int | None:
        found = int(self._processor.unk_id())
        return None if found < 0 else found

    @classmethod
    def load(cls, spec: str, paths: Sequence[Path], /, **chosen: SpecialToken) -> Self:
        return cls({_FILE: read_file(paths[0], spec)}, name=paths[0].name, **chosen)

    def extended(self, texts: Sequence[str], **ids: int | None) -> "SentencePieceTokenizer":
        from sentencepiece import sentencepiece_model_pb2 as proto

        model = proto.ModelProto.FromString(self._model)
        for text in texts:
            model.pieces.add(piece=text, type=proto.ModelProto.SentencePiece.CONTROL)
        return SentencePieceTokenizer({_FILE: model.SerializeToString()}, name=self.name, **ids)

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        pieces = range(self.vocab_size)
        return {self._processor.id_to_piece(i): i for i in pieces if self._processor.is_control(i)}

    @cached_property
    def cuts_between_words(self) -> bool:
        """Whether this is BPE, and no piece has a space after another character.

        A unigram model also merges inside words, but sums scores along the text: rounding differs.
        """
        pieces = range(self.vocab_size)
        scores = [self._processor.get_score(i) for i in pieces]
        bpe = all(score == round(score) for score in scores)  # a rank; unigram: a logarithm
        inner_space = re.compile(f"[^{_SPACE}]{_SPACE}")
        return bpe and not any(inner_space.search(self._processor.id_to_piece(i)) for i in pieces)

    def encode_texts(self, texts: Sequence[str], special: bool) -> list[np.ndarray]:
        return self._encode_special(texts) if special else self._encode_plain(texts)

    def _encode_special(self, texts: Sequence[str]) -> list[np.ndarray]:
        parts = [list(split_at_special(text, self.special_tokens)) for text in texts]
        plain = [part for some in parts for part in some if isinstance(part, str)]
        ids = iter(self.encode(plain))
        empty = np.empty(0, np.int32)
        found = ([[p] if isinstance(p, int) else next(ids) for p in some] for some in parts)
        return [np.concatenate([empty, *own]).astype(np.int32) for own in found]

    def _encode_plain(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self._space_ids is None or not any(_SPACE in text for text in texts):
            found = self._encode(list(texts), num_threads=1)
            return [np.asarray(ids, dtype=np.int32) for ids in found]
        return [self._encode_spaces(text, self._space_ids) for text in texts]

    def _encode_spaces(self, text: str, space_ids: np.ndarray) -> np.ndarray:
        """Token ids of a text that may hold U+2581 itself."""
        first, *rest = (np.asarray(self._encode(part), np.int32) for part in text.split(_SPACE))
        return np.concatenate([first, *chain.from_iterable((space_ids, p) for p in rest)])

    def _literal_space_ids(self) -> np.ndarray | None:
        """The byte pieces of U+2581, None where the model is not lossless anyway.

        The library reads a U+2581 of the text as a space. Where that is the only loss, and parts
        of a text can be encoded by themselves (no dummy prefix), we write its bytes instead.
        """
        ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode()]
        probe = "  \t a\n"
        twice = self._processor.encode(probe, out_type=int) * 2
        lossless = self._processor.decode(twice) == probe * 2
        return np.array(ids, np.int32) if lossless and all(map(self._is_byte, ids)) else None

    def decode_ids(self, ids: list[int]) -> str:
        try:
            return str(self._processor.decode(ids))
        except IndexError as error:
            raise InputError(f"an id is not below {self.vocab_size}, the vocabulary") from error

    def piece_bytes(self) -> Sequence[bytes]:
        return [self._bytes_of(i) for i in range(self.vocab_size)]

    def _bytes_of(self, i: int) -> bytes:
        if self._processor.is_control(i) or self._processor.is_unknown(i):
            return b""
        piece: str = self._processor.id_to_piece(i)
        if self._is_byte(i):
            return bytes([int(piece[1:-1], 16)])
        return piece.replace(_SPACE, " ").encode()

    def _is_byte(self, i: int) -> bool:
        return bool(self._processor.is_byte(i))

    def files(self) -> dict[str, bytes]:
        return {_FILE: self._model}

    def token_id(self, text: str) -> int | None:
        i = int(self._processor.piece_to_id(text))
        return i if self._processor.id_to_piece(i) == text else None
