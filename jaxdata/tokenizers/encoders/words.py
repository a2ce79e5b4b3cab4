"""SentencePiece's BPE word by word: each different word is encoded once, and found by its bytes.

BPE merges neighbouring pieces only. So where no piece of the model holds two characters side by
side, a text may be cut between them without changing a token. What lies between two such cuts is a
word here; its ids are those that the library gives to it alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2 as proto

from jaxdata.base.ragged import Ints, consecutive, in_runs
from jaxdata.tokenizers.base import CannotEncode, Tokenizer
from jaxdata.tokenizers.encoders.base import Encoder, Refused

Ids = NDArray[np.int32]
Keys = NDArray[np.uint64]

_SLOTS = 2**20
_ROOM = 2**18  # words
_WORDS_AT_ONCE = 2**16
_BYTES = 2**24  # of ids, and of words without a slot
_WORD = 16  # bytes of a key: longer words are found in a dict, which takes ten times as long

# The bytes of a word in its first and in its second 8, as masks by its size.
_ONES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_LOW = np.concatenate([_ONES, np.repeat(_ONES[-1], 8)])
_HIGH = np.concatenate([np.repeat(_ONES[0], 8), _ONES])
_KEY_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)


class WordTable:
    """The ids of words, kept for as many words as there is room for.

    A full table begins anew: what is in it says only how long the next words take, never what
    their ids are. A word of up to 16 bytes lies in the slot of its hash; a longer one, and one
    whose slot is taken, in a dict.

    Args:
        encode: the ids of each of some words; a function of the word alone. No word holds a NUL.
        room: how many words are kept; at least 65,536.
    """

    def __init__(
        self, encode: Callable[[list[bytes]], Sequence[Sequence[int]]], room: int = _ROOM
    ) -> None:
        self._encode, self._room = encode, room
        self._keys = np.zeros((2, room + 1), np.uint64)  # of a word, by its number
        self._first = np.zeros(room + 2, np.int64)  # of its ids
        self._clear()

    def _clear(self) -> None:
        self._count, self._bytes = 1, 0  # number 0 is no word
        self._slots = np.zeros(_SLOTS, np.int32)
        self._others: dict[bytes, int] = {}
        self._ids = np.empty(2**16, np.int32)

    def encode(self, text: bytes, starts: Ints) -> tuple[Ids, Ints]:
        """Ids of all words of a text, end to end, and how many each word has.

        Args:
            text: words end to end.
            starts: where each word starts, int64 of shape (words,), ascending from 0.
        """
        edges = np.append(starts, len(text))
        found = [(np.empty(0, np.int32), np.empty(0, np.int64))]
        for at in range(0, len(starts), _WORDS_AT_ONCE):
            found.append(self._some(text, edges[at : at + _WORDS_AT_ONCE + 1]))
        return np.concatenate([ids for ids, _ in found]), np.concatenate([n for _, n in found])

    def _some(self, text: bytes, edges: Ints) -> tuple[Ids, Ints]:
        if self._count + len(edges) > self._room or self._bytes + 4 * len(self._ids) > _BYTES:
            self._clear()
        sizes = np.diff(edges)
        low, high = keys = _keys(text, edges[:-1], sizes)
        numbers = self._slots.take(_slot(keys))
        other = (self._keys[0].take(numbers) != low) | (self._keys[1].take(numbers) != high)
        missing = np.flatnonzero(other | (sizes > _WORD))
        if len(missing):
            spans = map(slice, edges[missing].tolist(), edges[missing + 1].tolist())
            numbers[missing] = self._look_up(list(map(text.__getitem__, spans)))
        first = self._first.take(numbers)
        counts = self._first.take(numbers + 1) - first
        return self._ids.take(consecutive(first, counts)), counts

    def _look_up(self, words: list[bytes]) -> list[int]:
        """Numbers of words that are not in their slots."""
        numbers = {word: self._others.get(word, 0) for word in words}
        if new := [word for word, number in numbers.items() if not number]:
            numbers.update(zip(new, self._add(new), strict=True))
        return list(map(numbers.__getitem__, words))

    def _add(self, words: list[bytes]) -> list[int]:
        """Encode words that the table lacks; their numbers."""
        found = self._encode(words)
        numbers = np.arange(self._count, self._count + len(words), dtype=np.int32)
        self._count += len(words)
        start = int(self._first[numbers[0]])
        self._first[numbers + 1] = start + np.cumsum([*map(len, found)])
        stop = int(self._first[self._count])
        if stop > len(self._ids):
            self._ids = np.append(self._ids, np.empty(2 * stop, np.int32))
        self._ids[start:stop] = np.fromiter(chain.from_iterable(found), np.int32, stop - start)
        sizes = np.array([*map(len, words)])
        keys = self._keys[:, numbers] = _keys(b"".join(words), np.cumsum(sizes) - sizes, sizes)
        slots = _slot(keys)
        free = (self._slots[slots] == 0) & (sizes <= _WORD)
        self._slots[slots[free]] = numbers[free]  # of several for one slot, one gets it
        for at in np.flatnonzero(self._slots[slots] != numbers).tolist():
            self._others[words[at]] = int(numbers[at])
            self._bytes += len(words[at])
        return numbers.tolist()


def _keys(text: bytes, starts: Ints, sizes: Ints) -> Keys:
    """The first 16 bytes of each word, as two numbers; 0 after its end."""
    eights = np.ndarray(len(text) + 8, "<u8", text + bytes(_WORD), 0, (1,))  # one at each byte
    low = eights.take(starts) & _LOW.take(sizes, mode="clip")
    high = eights.take(starts + 8) & _HIGH.take(sizes, mode="clip")
    return np.stack([low, high])


def _slot(keys: Keys) -> Ints:
    """The slot that each word may lie in."""
    mixed: Keys = (keys[0] * _KEY_FACTORS[0]) ^ (keys[1] * _KEY_FACTORS[1])
    mixed ^= mixed >> np.uint64(29)
    mixed *= _KEY_FACTORS[0]
    mixed >>= np.uint64(64 - _SLOTS.bit_length() + 1)
    return mixed.view(np.int64)


_SPACE = "\u2581"
_CHARACTERS_AT_ONCE = 2**20
_PAIR_FACTORS = np.array([0x9E3779B1, 0x85EBCA77], np.uint32)
_PROBES = 97
_Piece = proto.ModelProto.SentencePiece


class WordsEncoder(Encoder):
    """Proven by the parts of the model, not by a trial; compared at once on the model's pieces."""

    name = "words"
    kinds = ("sentencepiece",)
    trial_bytes = 0

    def __init__(self, tokenizer: Tokenizer) -> None:
        content = tokenizer.files()["tokenizer.model"]
        model = proto.ModelProto.FromString(content)
        if reason := why_not(model):
            raise Refused(reason)
        self._normalise = _normaliser(model, content)
        words = _of_words(model)
        self._table = WordTable(partial(words.EncodeAsIds, num_threads=1))
        self._joined = JoinedPairs(pairs(model))
        probes = list(filter(self.takes, _probes(model)))
        if not all(map(np.array_equal, self.encode(probes), tokenizer.encode_texts(probes, False))):
            raise Refused("this version of sentencepiece encodes words otherwise than texts")

    @classmethod
    def version(cls) -> str:
        return "words 1"

    @staticmethod
    def takes(text: str) -> bool:
        """Whether a text can be encoded: words are kept by their bytes, with NULs after them."""
        return "\0" not in text and _SPACE not in text

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if not all(map(self.takes, texts)):
            raise CannotEncode("a text holds a NUL or U+2581, which SentencePiece reads otherwise")
        runs = in_runs(texts, len, lambda: _CHARACTERS_AT_ONCE)
        return [ids for some, _ in runs for ids in self._encode(some)]

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        texts = list(map(self._normalise, texts))
        text = "".join(texts)
        raw = text.encode()
        begins = np.cumsum([0, *map(len, texts)])
        words = self._joined.words(text, begins)
        ids, counts = self._table.encode(raw, _in_bytes(raw, words, len(text)))
        edges = np.append(0, np.cumsum(counts))[np.searchsorted(words, begins)]
        return np.split(ids, edges[1:-1])


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
        hashed: NDArray[np.uint32] = pair[0] * _PAIR_FACTORS[0]
        hashed ^= pair[1] * _PAIR_FACTORS[1]
        hashed *= _PAIR_FACTORS[0]
        hashed >>= self._shift
        return hashed


def why_not(model: Any) -> str | None:
    """What makes a model's ids of a text more than those of its words; None for nothing."""
    trained, normal = model.trainer_spec, model.normalizer_spec
    if trained.model_type != proto.TrainerSpec.BPE:
        kind = proto.TrainerSpec.ModelType.Name(trained.model_type).lower()
        return f"it is a {kind} model, not BPE"
    if not trained.byte_fallback:
        return "it has no byte_fallback, so that unknown characters are one token a run"
    if trained.treat_whitespace_as_suffix or not normal.escape_whitespaces:
        return "it does not write spaces at the start of words"
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
        normalize = _load(content).Normalize
        return lambda text: str(normalize(text)).replace(_SPACE, " ")
    return (lambda text: " " + text if text else text) if spec.add_dummy_prefix else str


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


def _probes(model: Any) -> list[str]:
    """Texts of the model's own pieces, some 30,000 of them, in an unlikely order."""
    pieces = [piece.piece for piece in model.pieces][:: 1 + len(model.pieces) // 2**15]
    return ["".join(pieces[k::_PROBES]).replace(_SPACE, " ") for k in range(_PROBES)]
