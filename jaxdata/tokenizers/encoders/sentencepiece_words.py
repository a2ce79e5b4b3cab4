"""SentencePiece's BPE word by word: a word ends where no piece goes on.

Why the ids are the library's. It normalises a text, divides it into characters (and user-defined
symbols, which are pieces), and merges neighbours whose joint text is a piece: those of the best
score first, of equal ones the leftmost. So where two characters stand side by side in no piece,
nothing is ever merged or matched across them, and the merges on one side depend on nothing on the
other: the ids are those of both sides, end to end. An unused piece is divided again into what it
was merged from, which is the same wherever it stands, since until it is whole nothing else touches
it. Unknown characters that follow each other get one id: equal neighbours are dropped here too.
Unigram models are left to the library: they add up rounded scores along the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2 as proto

from jaxdata.tokenizers.encoders.word_table import Ids, Ints, WordTable
from jaxdata.tokenizers.text_cuts import runs_of_texts

_SPACE = "\u2581"
_AT_ONCE = 2**20  # characters
_FACTORS = np.array([0x9E3779B1, 0x85EBCA77], np.uint32)
_Piece = proto.ModelProto.SentencePiece


class WordEncoder:
    """Encodes texts with a SentencePiece model; each different word once.

    Args:
        model: a model without a reason in `why_not`.
    """

    def __init__(self, model: bytes) -> None:
        read = proto.ModelProto.FromString(model)
        self._normalise = _normaliser(read, model)
        words = _of_words(read)
        self._table = WordTable(partial(words.EncodeAsIds, num_threads=1))
        self._joined = JoinedPairs(pairs(read))
        self._unknown = None if read.trainer_spec.byte_fallback else int(words.unk_id())

    @staticmethod
    def takes(text: str) -> bool:
        """Whether a text can be encoded: words are kept by their bytes, with NULs after them."""
        return "\0" not in text and _SPACE not in text

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of texts, each of which `takes`: int32 of shape (tokens,) a text.

        Raises:
            UnicodeEncodeError: a text holds half a surrogate pair.
        """
        return [ids for some in runs_of_texts(texts, _AT_ONCE) for ids in self._encode(some)]

    def _encode(self, texts: Sequence[str]) -> list[Ids]:
        texts = list(map(self._normalise, texts))
        text = "".join(texts)
        raw = text.encode()
        begins = np.cumsum([0, *map(len, texts)])
        words = self._joined.words(text, begins)
        ids, counts = self._table.encode(raw, _in_bytes(raw, words, len(text)))
        edges = np.append(0, np.cumsum(counts))[np.searchsorted(words, begins)]
        if self._unknown is not None:
            ids, edges = _one_of_each_run(ids, edges, self._unknown)
        return [ids[a:b] for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]


class JoinedPairs:
    """The pairs of characters that pieces hold side by side, as a table of hashes.

    Other pairs of the same hash count as joined too: words are longer then, and as right.
    """

    def __init__(self, pairs: set[str]) -> None:
        bits = min(max(16, (64 * len(pairs)).bit_length()), 22)
        self._shift = np.uint32(32 - bits)
        self._table = np.zeros(1 << bits, np.bool_)
        self._table[self._hash(_code_points("".join(pairs)).reshape(-1, 2).T)] = True

    def words(self, text: str, begins: Ints) -> Ints:
        """The characters at which the words of some texts start, ascending.

        Args:
            text: the texts, end to end.
            begins: where each of them begins, and the end of the last.
        """
        points = _code_points(text)
        cut = np.ones(len(points) + 1, np.bool_)
        if len(points) > 1:
            cut[1:-1] = ~self._table.take(self._hash((points[:-1], points[1:])))
        cut[begins] = True
        return np.flatnonzero(cut[:-1])

    def _hash(self, pair: Any) -> NDArray[np.uint32]:
        hashed: NDArray[np.uint32] = pair[0] * _FACTORS[0]
        hashed ^= pair[1] * _FACTORS[1]
        hashed *= _FACTORS[0]
        hashed >>= self._shift
        return hashed


def why_not(model: bytes) -> str | None:
    """What makes a model's ids of a text more than those of its words; None for nothing."""
    read = proto.ModelProto.FromString(model)
    trained, normal = read.trainer_spec, read.normalizer_spec
    if trained.model_type != proto.TrainerSpec.BPE:
        kind = proto.TrainerSpec.ModelType.Name(trained.model_type).lower()
        return f"it is a {kind} model, not BPE"
    if trained.treat_whitespace_as_suffix or not normal.escape_whitespaces:
        return "it does not write spaces at the start of words"
    if any("\0" in piece.piece for piece in read.pieces):
        return "a piece holds a NUL"
    return None


def pairs(model: Any) -> set[str]:
    """Characters that stand side by side in a piece, spaces as spaces."""
    found: set[str] = set()
    for piece in model.pieces:
        if piece.type in (_Piece.NORMAL, _Piece.USER_DEFINED, _Piece.UNUSED):
            text = piece.piece.replace(_SPACE, " ")
            found.update(map(str.__add__, text, text[1:]))
    return found


def _of_words(model: Any) -> Any:
    """The model for words of normalised texts: it adds and changes nothing."""
    plain = proto.ModelProto()
    plain.CopyFrom(model)
    plain.normalizer_spec.precompiled_charsmap = b""
    plain.normalizer_spec.add_dummy_prefix = False
    plain.normalizer_spec.remove_extra_whitespaces = False
    return _load(plain.SerializeToString())


def _normaliser(model: Any, content: bytes) -> Callable[[str], str]:
    spec = model.normalizer_spec
    if spec.precompiled_charsmap or spec.remove_extra_whitespaces:
        return partial(_normalised, _load(content))
    return _after_a_space if spec.add_dummy_prefix else str


def _normalised(library: Any, text: str) -> str:
    return str(library.Normalize(text)).replace(_SPACE, " ")


def _after_a_space(text: str) -> str:
    return " " + text if text else text


def _load(model: bytes) -> Any:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _in_bytes(raw: bytes, characters: Ints, count: int) -> Ints:
    """Where characters start in UTF-8."""
    if len(raw) == count:
        return characters
    return np.flatnonzero((np.frombuffer(raw, np.uint8) & 0xC0) != 0x80)[characters]


def _one_of_each_run(ids: Ids, edges: Ints, unknown: int) -> tuple[Ids, Ints]:
    """Ids without those that repeat an unknown one before them in the same text."""
    same = (ids[1:] == unknown) & (ids[:-1] == unknown)
    kept = np.append(True, ~same)[: len(ids)]
    kept[edges[edges < len(ids)]] = True
    return ids[kept], np.append(0, np.cumsum(kept))[edges]
