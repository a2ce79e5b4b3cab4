"""SentencePiece models (`sentencepiece:FILE`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import sentencepiece

from jaxdata.errors import InputError
from jaxdata.tokenizers.base import BaseTokenizer, SpecialToken

__all__ = ["SentencePieceTokenizer"]

_FILE = "tokenizer.model"
_SPACE = "\u2581"  # SentencePiece writes spaces as this character, and reads both as a space


class SentencePieceTokenizer(BaseTokenizer):
    """A SentencePiece model; control symbols are never found in text, so text stays text.

    User-defined symbols are: that is what they are for, and they decode to themselves.
    """

    kind = "sentencepiece"

    def __init__(
        self,
        model: bytes,
        *,
        name: str,
        eod: SpecialToken = None,
        bos: SpecialToken = None,
        pad: SpecialToken = None,
    ) -> None:
        self.name = name
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise InputError(f"{name!r} is not a SentencePiece model: {error}") from error
        self.vocab_size = self._processor.vocab_size()
        own = (self._processor.eos_id(), self._processor.bos_id(), self._processor.pad_id())
        own_ids = (i if i >= 0 else None for i in own)
        asked = (own if asked is None else asked for asked, own in zip((eod, bos, pad), own_ids, strict=True))
        self.choose_special_ids(self._find, *asked)
        self._space_ids = self._literal_space_ids()
        # Arrays came with 0.2.1 or later; lists cost a few per cent more.
        self._output = "numpy" if hasattr(self._processor, "EncodeAsNumpy") else int

    @classmethod
    def from_files(
        cls, files: Mapping[str, bytes], *, name: str, eod: int
    ) -> SentencePieceTokenizer:
        """Make it again from its model."""
        return cls(files[_FILE], name=name, eod=eod)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text: int32 of shape (tokens,)."""
        return [
            self._encode_spaces(text)
            if self._space_ids is not None and _SPACE in text
            else self._encode(text)
            for text in texts
        ]

    def _encode(self, text: str) -> np.ndarray:
        return np.asarray(self._processor.encode(text, out_type=self._output), dtype=np.int32)

    def _encode_spaces(self, text: str) -> np.ndarray:
        """Encode a text that holds U+2581 itself, writing those as byte pieces."""
        parts = [self._encode(part) for part in text.split(_SPACE)]
        pieces = [parts[0]]
        for part in parts[1:]:
            pieces += [self._space_ids, part]
        return np.concatenate(pieces)

    def _literal_space_ids(self) -> np.ndarray | None:
        """Return the byte pieces of U+2581 in a model that loses nothing else, None in others."""
        ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode()]
        probe = "  \t a\n"
        lossless = self._processor.decode(self._processor.encode(probe)) == probe
        return np.array(ids, np.int32) if lossless and self._has_byte_pieces(ids) else None

    def _has_byte_pieces(self, ids: list[int]) -> bool:
        return all(self._processor.is_byte(i) for i in ids)

    def decode_ids(self, ids: list[int]) -> str:
        """Return the text of ids; the library shows an unknown piece as U+2047."""
        try:
            return str(self._processor.decode(ids))
        except IndexError as error:
            raise InputError(f"an id is not below {self.vocab_size}, the vocabulary") from error

    def piece_lengths(self) -> Sequence[int]:
        """Byte pieces stand for one byte, control and unknown pieces for none."""
        return [self._piece_length(i) for i in range(self.vocab_size)]

    def _piece_length(self, i: int) -> int:
        if self._processor.is_control(i) or self._processor.is_unknown(i):
            return 0
        if self._processor.is_byte(i):
            return 1
        return len(self._processor.id_to_piece(i).replace(_SPACE, " ").encode())

    def files(self) -> dict[str, bytes]:
        """Return the model file."""
        return {_FILE: self._model}

    def _find(self, token: str) -> int | None:
        i = int(self._processor.piece_to_id(token))
        return i if self._processor.id_to_piece(i) == token else None
