"""SentencePiece's BPE word by word: each different word is encoded once, found by its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2 as proto

from jaxdata.base.ragged import consecutive
from jaxdata.tokenizers.base import CannotEncode, Tokenizer, runs_of_texts
from jaxdata.tokenizers.encoders.base import Encoder, Refused

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]
Keys = NDArray[np.uint64]
Numbers = NDArray[np.int32]

WORD = 16  # bytes: longer words are found in a dict, which takes ten times as long
_WORDS_AT_ONCE = 2**16  # words
_BYTES = 2**24  # of long words, and of ids
_TRIES = 32  # slots that a word may lie in

# The bytes of a word in its first and in its second 8, as masks by its size.
_ONES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_LOW = np.concatenate([_ONES, np.repeat(_ONES[-1], 8)])
_HIGH = np.concatenate([np.repeat(_ONES[0], 8), _ONES])
_KEY_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)


class WordTable:
    """What a function makes of words, kept for as many words as there is room for.

    A full table begins anew: what was in it says only how long the next words take, never what
    their ids are.

    Args:
        encode: the ids of each of some words; a function of the word alone. No word holds a NUL.
        words: how many are kept; at least 65,536.
    """

    def __init__(
        self, encode: Callable[[list[bytes]], Sequence[Sequence[int]]], words: int = 2**18
    ) -> None:
        self._encode = encode
        self._room = max(words, _WORDS_AT_ONCE)
        self._shift = np.uint64(64 - self._room.bit_length())
        self._keys = np.empty((2, self._room), np.uint64)  # of a word, by its number
        self._first = np.zeros(self._room + 1, np.int64)  # of its ids
        self._clear()

    def _clear(self) -> None:
        self._count = self._bytes = 0
        self._slots = np.full(1 << self._room.bit_length(), -1, np.int32)  # words by their hash
        self._others: dict[bytes, int] = {}  # words of more than 16 bytes
        self._ids = np.empty(2**16, np.int32)

    def encode(self, text: bytes, starts: Ints) -> tuple[Ids, Ints]:
        """Ids of all words of a text, end to end, and how many each word has.

        Args:
            text: words end to end.
            starts: where each word starts, int64 of shape (words,), ascending from 0.
        """
        nothing = np.empty(0, np.int32), np.empty(0, np.int64)
        found = [nothing, *(self._some(text, part) for part in _parts(starts, len(text)))]
        return np.concatenate([ids for ids, _ in found]), np.concatenate([n for _, n in found])

    def _some(self, text: bytes, edges: Ints) -> tuple[Ids, Ints]:
        if self._count + len(edges) > self._room or self._bytes + 4 * len(self._ids) > _BYTES:
            self._clear()
        sizes = np.diff(edges)
        numbers = self._find(_keys(text, edges[:-1], sizes))
        numbers[sizes > WORD] = -1
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            spans = map(slice, edges[missing].tolist(), edges[missing + 1].tolist())
            numbers[missing] = self._look_up(list(map(text.__getitem__, spans)))
        first = self._first.take(numbers)
        counts = self._first.take(numbers + 1) - first
        return self._ids.take(consecutive(first, counts)), counts

    def _find(self, keys: Keys) -> Numbers:
        """Numbers of words, -1 where they are not in the table."""
        at = self._hash(keys)
        numbers: Numbers = self._slots.take(at)
        other = np.flatnonzero(self._differ(numbers, keys))
        for _ in range(_TRIES):
            if not len(other):
                break
            at[other] = (at[other] + 1) & (len(self._slots) - 1)
            numbers[other] = self._slots[at[other]]
            other = other[self._differ(numbers[other], keys[:, other])]
        numbers[other] = -1
        return numbers

    def _differ(self, numbers: Numbers, keys: Keys) -> NDArray[np.bool_]:
        low, high = self._keys
        same: NDArray[np.bool_] = low.take(numbers) == keys[0]
        same &= high.take(numbers) == keys[1]
        return (numbers >= 0) & ~same

    def _hash(self, keys: Keys) -> Ints:
        mixed: Keys = (keys[0] * _KEY_FACTORS[0]) ^ (keys[1] * _KEY_FACTORS[1])
        mixed ^= mixed >> np.uint64(29)
        mixed *= _KEY_FACTORS[0]
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _look_up(self, words: list[bytes]) -> list[int]:
        """Numbers of words that the arrays lack."""
        numbers = {word: self._others.get(word, -1) for word in words}
        new = [word for word, number in numbers.items() if number < 0]
        if new:
            numbers.update(zip(new, self._add(new), strict=True))
        return list(map(numbers.__getitem__, words))

    def _add(self, new: list[bytes]) -> range:
        ids = self._encode(new)
        first = self._count
        ends = self._first[first] + np.cumsum([len(one) for one in ids])
        self._ids = _with_room(self._ids, int(ends[-1]))
        self._ids[self._first[first] : ends[-1]] = [i for one in ids for i in one]
        self._count += len(new)
        self._first[first + 1 : self._count + 1] = ends
        self._keep(new, first)
        return range(first, self._count)

    def _keep(self, new: list[bytes], first: int) -> None:
        """Let words be found again that have the numbers from `first` on."""
        short = [at for at, word in enumerate(new) if len(word) <= WORD]
        padded = b"".join(new[at].ljust(WORD, b"\0") for at in short)
        keys = np.frombuffer(padded, "<u8").reshape(-1, 2).T
        left = self._insert(np.array(short, np.int32) + np.int32(first), keys)
        long = [first + at for at, word in enumerate(new) if len(word) > WORD]
        for number in (*left.tolist(), *long):
            self._others[new[number - first]] = number
        self._bytes += sum(len(new[number - first]) for number in long)

    def _insert(self, numbers: Numbers, keys: Keys) -> Numbers:
        """Put different words that the table lacks into it, each at the first free slot.

        Returns:
            Those that found none near.
        """
        self._keys[:, numbers] = keys
        at = self._hash(keys)
        for _ in range(_TRIES):
            free = self._slots[at] < 0
            self._slots[at[free]] = numbers[free]  # of several for one slot, one gets it
            left = np.flatnonzero(self._slots[at] != numbers)
            numbers, at = numbers[left], (at[left] + 1) & (len(self._slots) - 1)
        return numbers


def _keys(text: bytes, starts: Ints, sizes: Ints) -> Keys:
    """The first 16 bytes of each word, as two numbers; 0 after its end."""
    eights = np.ndarray(len(text) + 8, "<u8", text + bytes(WORD), 0, (1,))  # one at each byte
    return np.stack(
        [
            eights.take(starts) & _LOW.take(sizes, mode="clip"),
            eights.take(starts + 8) & _HIGH.take(sizes, mode="clip"),
        ]
    )


def _parts(starts: Ints, end: int) -> list[Ints]:
    """The edges of words, some at a time."""
    edges = np.append(starts, end)
    return [edges[at : at + _WORDS_AT_ONCE + 1] for at in range(0, len(starts), _WORDS_AT_ONCE)]


def _with_room(array: Ids, count: int) -> Ids:
    if count <= len(array):
        return array
    larger = np.empty(2 * count, np.int32)
    larger[: len(array)] = array
    return larger


_SPACE = "\u2581"
_CHARACTERS_AT_ONCE = 2**20  # characters
_PAIR_FACTORS = np.array([0x9E3779B1, 0x85EBCA77], np.uint32)
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
        return [
            ids for some in runs_of_texts(texts, _CHARACTERS_AT_ONCE) for ids in self._encode(some)
        ]

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
        hashed: NDArray[np.uint32] = pair[0] * _PAIR_FACTORS[0]
        hashed ^= pair[1] * _PAIR_FACTORS[1]
        hashed *= _PAIR_FACTORS[0]
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


def _one_of_each_run(ids: Ids, edges: Ints, unknown: int) -> tuple[Ids, Ints]:
    """Ids without those that repeat an unknown one before them in the same text."""
    same = (ids[1:] == unknown) & (ids[:-1] == unknown)
    kept = np.append(True, ~same)[: len(ids)]
    kept[edges[edges < len(ids)]] = True
    return ids[kept], np.append(0, np.cumsum(kept))[edges]


_PROBES = 97


class WordsEncoder(Encoder):
    """Proven by the parts of the model, not by a trial; compared at once on the model's pieces."""

    name = "words"
    kinds = ("sentencepiece",)
    needs_trial = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = tokenizer.files()["tokenizer.model"]
        if reason := why_not(model):
            raise Refused(reason)
        self._words, probes = WordEncoder(model), _probes(model)
        library = tokenizer.encode_texts(probes, False)
        if not all(map(np.array_equal, self._words.encode(probes), library)):
            raise Refused("this version of sentencepiece encodes words otherwise than texts")

    @classmethod
    def version(cls) -> str:
        return "words 1"

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if not all(map(WordEncoder.takes, texts)):
            raise CannotEncode("a text holds a NUL or U+2581, which SentencePiece reads otherwise")
        return list(self._words.encode(texts))


def _probes(model: bytes) -> list[str]:
    """Texts of the model's own pieces, some 30,000 of them, in an unlikely order."""
    pieces = [piece.piece for piece in proto.ModelProto.FromString(model).pieces]
    pieces = pieces[:: 1 + len(pieces) // 2**15]
    texts = ["".join(pieces[k::_PROBES]).replace(_SPACE, " ") for k in range(_PROBES)]
    return [text for text in texts if WordEncoder.takes(text)]
