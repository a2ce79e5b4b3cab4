"""The contract of a tokenizer, and where a long text may be cut without other tokens."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxdata.base.errors import InputError, digest
from jaxdata.base.lazy import cached_property
from jaxdata.storage.small_files import read_plain

GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {"gpt2": GPT2_SPLIT, "gpt4": CL100K_SPLIT, "gpt4o": O200K_SPLIT}
"""The splitting rules that a tokenizer may be trained with."""


def split_rule(name: str, digits: int | None = None) -> str:
    """A rule of `SPLITS` whose runs of digits are at most so long; None for the rule's own.

    >>> split_rule("gpt4", 2) == CL100K_SPLIT.replace("{1,3}", "{1,2}")
    True
    """
    rule = SPLITS[name]
    if digits is None:
        return rule
    return re.sub(r"\\p\{N\}(\+|\{1,3\})", lambda _: rf"\p{{N}}{{1,{digits}}}", rule)


def _alphabet() -> dict[str, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


BYTE_ALPHABET = _alphabet()
"""The byte that each character of a token of byte-level BPE stands for, in the order of GPT-2's
ids: printable ones first, as they are."""


# The rules, as tiktoken and as model files write them.
KNOWN_SPLITS = {
    *(split_rule(name, digits) for name in SPLITS for digits in (None, *range(1, 10))),
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    CL100K_SPLIT.replace("{1,3}", ""),  # Qwen
}
_BETWEEN_WORDS = re.compile(r"[A-Za-z](?= [A-Za-z])")
_ANCHORS = ("\u263a", ")", "\ue000", "|")


def split_at_special(text: str, special: Mapping[str, int]) -> Iterator[str | int]:
    """Yield the text between special tokens, and their ids.

    >>> list(split_at_special("<s>one</s>", {"<s>": 1, "</s>": 2}))
    [1, 'one', 2]
    """
    longest_first = sorted(special, key=len, reverse=True)
    found = "|".join(map(re.escape, longest_first))
    for part in re.split(f"({found})", text) if found else [text]:
        if part:
            yield special.get(part, part)


def read_file(path: Path, spec: str) -> bytes:
    """The content of a tokenizer's file; InputError where it cannot be read."""
    try:
        return read_plain(path)
    except OSError as error:
        hint = hub_hint(spec.removeprefix("hf:"), path)
        raise InputError(
            f"tokenizer {spec!r}: cannot read {path}: {error.strerror}{hint}"
        ) from error


def hub_hint(name: str, path: Path) -> str:
    """What to do where a tokenizer is named like a model of the Hub, and is no file."""
    if path.exists() or path.suffix == ".json" or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return ""
    return (
        f"; a model of the Hub must be downloaded before: hf download {name} "
        "--include 'tokenizer*' --local-dir FOLDER, and then given as hf:FOLDER"
    )


SpecialToken = int | str | None
"""A special token as a user names it: its id, its text, or None for the tokenizer's own."""


class CannotEncode(ValueError):
    """A library fails on a text, such as a million spaces in a row.

    >>> issubclass(CannotEncode, ValueError)
    True
    """


@contextmanager
def told_as(kind: type[Exception], what: str) -> Iterator[None]:
    """Raise what a library fails with as an error of ours; a panic of Rust is no `Exception`."""
    try:
        yield
    except BaseException as error:
        bare = type(error) is Exception or type(error).__name__ == "PanicException"
        known = bare or isinstance(error, ValueError | RuntimeError)
        if isinstance(error, InputError) or not known:
            raise
        raise kind(f"{what}: {error}") from error


class Tokenizer(ABC):
    """Text to token ids and back; one object is used by one thread at a time.

    Every implementation promises:

    - `encode` never adds an end-of-document (EOD) or begin-of-sequence token, and text that looks
      like a special token ("</s>") is encoded as plain text, where the library can.
    - `decode` inverts `encode` as far as the tokenizer is lossless; the ids `eod_id`, `bos_id` and
      `pad_id`, and the library's own special tokens, decode to nothing.
    - `token_bytes[i]` is the number of bytes of text that id *i* stands for. A token that is part
      of a UTF-8 sequence counts its true bytes; special ids count 0. For a lossless tokenizer
      `token_bytes[ids].sum() == len(text.encode())`, which is what bits-per-byte divides by.
    - `files` and `tokenizers.restore` are inverses: the bytes alone make an equal tokenizer.

    Args:
        files: what `files` gives.
        name: what it is called in messages.
        **chosen: special tokens, as `choose_special_ids` takes them.

    >>> from jaxdata import tokenizers
    >>> tokenizer = tokenizers.load("bytes")
    >>> (ids,) = tokenizer.encode(["naïve"])
    >>> tokenizer.decode(ids), int(tokenizer.token_bytes[ids].sum())
    ('naïve', 6)
    """

    kind: str
    """How it is implemented: "sentencepiece", "hf", "tiktoken" or "bytes"."""
    name: str
    """A file or encoding name, without folders."""
    vocab_size: int
    """All ids are below this; some may be unused."""
    eod_id: int
    bos_id: int | None
    pad_id: int | None
    guard: Any = None
    """What encodes texts in the place of `encode_texts`, where a faster encoder was attached."""
    chat_template: str | None = None
    """The Jinja template that writes conversations, where the tokenizer brings one."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.vocab_size:,} ids, EOD {self.eod_id})"

    @cached_property
    def fingerprint(self) -> str:
        """A digest of its files and special ids; functions of documents that use it have it."""
        return digest([self.kind, self.checksums, self.eod_id, self.bos_id, self.pad_id])

    @property
    def checksums(self) -> dict[str, str]:
        """The sha256 of each of its files, by name."""
        return {name: hashlib.sha256(data).hexdigest() for name, data in self.files().items()}

    @property
    def unk_id(self) -> int | None:
        """The id that stands for text the vocabulary lacks; None where there is no such text."""
        return None

    @abstractmethod
    def __init__(
        self, files: Mapping[str, bytes], *, name: str, **chosen: SpecialToken
    ) -> None: ...

    @classmethod
    @abstractmethod
    def load(cls, spec: str, paths: Sequence[Path], /, **chosen: SpecialToken) -> Self:
        """Make one from the files or folder that a spec names, as they are on this machine."""

    @property
    @abstractmethod
    def special_tokens(self) -> Mapping[str, int]:
        """The texts that `encode(..., special=True)` takes for one id, and the ids."""

    @abstractmethod
    def token_id(self, text: str) -> int | None:
        """The id of the token with this text, special or not; None if there is none."""

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """The files, by name, from which `tokenizers.restore` makes this tokenizer."""

    @abstractmethod
    def encode_texts(self, texts: Sequence[str], special: bool) -> list[np.ndarray]:
        """Token ids of whole texts; with `special`, texts of special tokens give their ids."""

    @abstractmethod
    def decode_ids(self, ids: list[int]) -> str:
        """The text of ids, none of which is `eod_id`, `bos_id` or `pad_id`."""

    @abstractmethod
    def piece_bytes(self) -> Sequence[bytes]:
        """The text of each id in UTF-8, or its part; none for the library's own special tokens."""

    @property
    def cuts_between_words(self) -> bool:
        """Whether no token lies on both sides of a space between ASCII letters."""
        return False

    def choose_special_ids(self, *own: SpecialToken, **asked: SpecialToken) -> None:
        """Set the special ids: those asked for (`eod`, `bos`, `pad`), else its own, in order."""
        for role, mine in zip(("eod", "bos", "pad"), own, strict=True):
            token = mine if asked.get(role) is None else asked[role]
            if role == "eod" and token is None:
                raise InputError(
                    f"tokenizer {self.name!r} has no end-of-document token that jaxdata knows; "
                    "name one of its tokens, by text or id, with --set eod=TOKEN (in Python: "
                    "eod=...)"
                )
            setattr(self, f"{role}_id", self.special_id(role, token))

    def special_id(self, role: str, token: SpecialToken) -> int | None:
        """The id of a token that a user named for a role, by text or id; None for None.

        Raises:
            InputError: there is no such token.
        """
        if token is None:
            return None
        found = self.token_id(token) if isinstance(token, str) else token
        if found is None or not 0 <= found < self.vocab_size:
            raise InputError(
                f"{role}={token!r} is not a token of {self.name!r}; expected the text of one of "
                f"its tokens, or an id from 0 to {self.vocab_size - 1}"
            )
        return found

    def with_special(self, texts: Sequence[str]) -> "Tokenizer":
        """The tokenizer with more special tokens, at the end of the vocabulary.

        All ids stay; a text that is a token already gets no other. No plain text is encoded to
        the new ids.

        Raises:
            InputError: the tokenizer cannot keep more tokens.
        """
        new = [text for text in dict.fromkeys(texts) if self.token_id(text) is None]
        if not new:
            return self
        if "" in new:
            raise InputError("special token '': expected a text")
        return self.extended(new, eod=self.eod_id, bos=self.bos_id, pad=self.pad_id)

    def extended(self, texts: Sequence[str], **_ids: int | None) -> "Tokenizer":
        """The tokenizer with new special tokens, and the ids of EOD, BOS and padding."""
        raise InputError(
            f"tokenizer {self.name!r} has no file to keep {texts[0]!r} in; use another tokenizer"
        )

    def encode(
        self, texts: Sequence[str], *, special: bool = False, continuing: bool = False
    ) -> list[np.ndarray]:
        """Token ids of each text: one integer array of shape (tokens,) a text, empty for "".

        Args:
            texts: any texts.
            special: read the texts of special tokens ("</s>") as their ids, as chat templates
                write them.
            continuing: the texts continue others, so no space is put in front of them, as
                SentencePiece does with whole texts.

        Raises:
            CannotEncode: the library fails on one of the texts.
        """
        if continuing and self._anchors:
            return [self._encode_after(text, special) for text in texts]
        if self.guard and not special:
            found: list[np.ndarray] = self.guard.encode(texts)
            return found
        return self.encode_texts(texts, special)

    @cached_property
    def _anchors(self) -> dict[str, np.ndarray]:
        """What goes before a continuing text, and its ids; empty where encoding adds nothing."""
        one, other = self.encode_texts(["a", "b"], False)
        if self.decode_ids([*one.tolist(), *other.tolist()]) == "ab":
            return {}
        return dict(zip(_ANCHORS, self.encode_texts(_ANCHORS, False), strict=True))

    def _encode_after(self, text: str, special: bool) -> np.ndarray:
        """Ids of a text that goes on, for tokenizers that put a space before every text.

        A character that never merges with its neighbour goes in front; its ids are dropped again.
        """
        for anchor, ids in self._anchors.items():
            (whole,) = self.encode_texts([anchor + text], special)
            if np.array_equal(whole[: len(ids)], ids):
                return whole[len(ids) :]
        return self.encode_texts([text], special)[0]

    def cuts(self, text: str, size: int) -> list[str]:
        """Cut a long text into parts of about `size` characters that can be encoded one by one.

        The tokens of the first part, and those of the others encoded as `continuing`, are together
        the tokens of the text. Without a place that guarantees this, the text stays whole: one is
        before a space between ASCII letters, with most ways to split text.
        """
        parts, start = [], 0
        if self.cuts_between_words:
            while found := _BETWEEN_WORDS.search(text, start + max(size - 1, 0)):
                parts.append(text[start : found.end()])
                start = found.end()
        return [*parts, text[start:]]

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """Bytes of text for each id: int32 of shape (vocab_size,), read-only."""
        lengths = np.array([*map(len, self.piece_bytes())], dtype=np.int32)
        lengths[list(self.silent_ids)] = 0
        lengths.flags.writeable = False
        return lengths

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of token ids; incomplete UTF-8 decodes to U+FFFD, special ids to nothing."""
        silent = self.silent_ids
        return self.decode_ids([i for i in np.asarray(ids).tolist() if i not in silent])

    @property
    def silent_ids(self) -> set[int]:
        """The ids that begin, end and pad documents."""
        return {i for i in (self.eod_id, self.bos_id, self.pad_id) if i is not None}
