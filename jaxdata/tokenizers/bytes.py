"""The byte tokenizer: ids 0 to 255 are the bytes of UTF-8, 256 is the end of a document."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from jaxdata.tokenizers.base import SpecialToken, Tokenizer


class BytesTokenizer(Tokenizer):
    """Needs no file and no library, loses nothing, and is the fastest there is.

    >>> BytesTokenizer({}, name="bytes").encode(["é!"])
    [array([195, 169,  33], dtype=uint8)]
    """

    kind = "bytes"
    vocab_size = 257

    def __init__(self, _files: Mapping[str, bytes], *, name: str, **chosen: SpecialToken) -> None:
        self.name = name
        self.choose_special_ids(256, None, None, **chosen)

    @classmethod
    def load(cls, spec: str, _paths: Sequence[Path], /, **chosen: SpecialToken) -> Self:
        return cls({}, name=spec, **chosen)

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return {}

    def encode_texts(self, texts: Sequence[str], _special: bool) -> list[np.ndarray]:
        """UTF-8 bytes of each text: uint8 of shape (bytes,)."""
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def cuts(self, text: str, size: int) -> list[str]:
        return [text[at : at + size] for at in range(0, len(text), size)] or [text]

    def decode_ids(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def piece_bytes(self) -> Sequence[bytes]:
        return [*(bytes([byte]) for byte in range(256)), b""]

    def files(self) -> dict[str, bytes]:
        return {}

    def token_id(self, text: str) -> int | None:
        raw = text.encode()
        return raw[0] if len(raw) == 1 else None
