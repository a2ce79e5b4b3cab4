"""An encoder under guard: what it may not do goes to the library, and samples are compared.

Verdicts are kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import re
import time
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from pydantic import BaseModel, ConfigDict

from jaxdata.storage import Store
from jaxdata.storage.cached_files import find_kept, keep
from jaxdata.tokenizers.base import CannotEncode, Tokenizer
from jaxdata.tokenizers.encoders.base import CodePointSet, Encoder, library_of

_TRIAL = 3
"""Counts up when trials change, so that what an earlier one found is not taken."""


class Verdict(BaseModel):
    """What a trial found.

    Attributes:
        refused: why the encoder may not be used; None where it may.
        left: ranges of code points that are left to the library, both ends included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    refused: str | None = None
    left: list[tuple[int, int]] = []


def kept_verdict(tokenizer: Tokenizer, encoder: str) -> Verdict | None:
    """The verdict on an encoder ("fastokens 0.3.5") for a tokenizer; None before its trial."""
    for store, name in find_kept(_name(tokenizer, encoder), None):
        with suppress(ValueError):
            if data := store.read(name):
                return Verdict.model_validate_json(data)
    return None


def keep_verdict(tokenizer: Tokenizer, encoder: str, verdict: Verdict) -> None:
    """Keep a verdict, where the cache can be written."""
    data = verdict.model_dump_json(indent=1).encode() + b"\n"

    def write(store: Store, name: str) -> None:
        store.write(name, data)

    with suppress(OSError, ValueError):
        keep(_name(tokenizer, encoder), None, write)


class EncodedDataset(BaseModel):
    """What an encoder encoded of a dataset, by a conversion on this machine.

    Attributes:
        dataset: its folder or URL.
        made: the sources, and the fingerprint of the generation of each.
        command: what was run.
        folder: where it was run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    made: dict[str, str]
    command: str
    folder: str


def note_encoded(tokenizer: Tokenizer, encoder: str, what: EncodedDataset) -> None:
    """Remember what an encoder encoded, where the cache can be written."""
    line = what.model_dump_json().encode() + b"\n"

    def write(store: Store, name: str) -> None:
        store.update(name, lambda before: (before or b"").replace(line, b"") + line)

    with suppress(OSError, ValueError):
        keep(_list_name(tokenizer, encoder), None, write)


def encoded_by(tokenizer: Tokenizer, encoder: str) -> Iterator[EncodedDataset]:
    """What an encoder encoded with a tokenizer, as far as this cache knows."""
    for store, name in find_kept(_list_name(tokenizer, encoder), None):
        for line in (store.read(name) or b"").splitlines():
            with suppress(ValueError):
                yield EncodedDataset.model_validate_json(line)


def _name(tokenizer: Tokenizer, encoder: str) -> str:
    return f"encoders/{_digest(_facts(tokenizer, encoder))}.json"


def _list_name(tokenizer: Tokenizer, encoder: str) -> str:
    """Of datasets: ids that are wrong are wrong whatever version of the library was there."""
    return f"encoders/{_digest((encoder, *_files(tokenizer)))}.datasets.jsonl"


def _digest(facts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _facts(tokenizer: Tokenizer, encoder: str) -> Iterator[str]:
    """Whatever a verdict depends on."""
    yield from (f"trial {_TRIAL}", encoder, str(library_of(tokenizer.kind)))
    yield f"Python's Unicode {unicodedata.unidata_version}"
    yield from _files(tokenizer)


def _files(tokenizer: Tokenizer) -> Iterator[str]:
    for name, data in sorted(tokenizer.files().items()):
        yield f"{name} {hashlib.sha256(data).hexdigest()}"


Encode = Callable[[Sequence[str]], list[np.ndarray]]

_ONE_IN = 256
"""Of how many texts one is encoded by the library too."""
PASSAGE = 4_096
"""Characters of a long text that are compared."""
_HEAD = 64

# The regular expressions of tiktoken fail, and print, from 999,999 spaces in a row: where it is the
# library, the others must not succeed.
_RUN = 500_000
_SPACES = re.compile(r"\s{7}")


class EncoderDiffers(Exception):
    """An encoder gave other ids than the library."""

    def __init__(self, encoder: str, text: str) -> None:
        super().__init__(encoder, text)
        self.encoder, self.text = encoder, text

    def __str__(self) -> str:
        return f"{self.encoder} gives other ids than the library for {shown(self.text)}"


def shown(text: str) -> str:
    """The beginning of a text, escaped."""
    return ascii(text[:_HEAD]) + ("..." if len(text) > _HEAD else "")


class GuardedEncoder:
    """Encodes texts as the library does, most of them by an encoder.

    Args:
        encoder: what encodes most texts.
        name: how errors and receipts call it.
        library: encodes texts as they must be encoded.
        suspects: code points; a text that holds one is left to the library.
        everything: compare every text, not a sample.

    Attributes:
        counts: texts, characters and microseconds of processor time: of all texts, of those that
            the library encoded instead, and of those that both did; "cut texts" are those of the
            last of which only a passage was compared.
    """

    def __init__(
        self,
        encoder: Encoder,
        name: str,
        library: Encode,
        suspects: CodePointSet,
        *,
        everything: bool = False,
    ) -> None:
        self.name = name
        self.counts: Counter[str]
        self._encoder, self._library = encoder, library
        self._suspects, self._everything = suspects, everything
        self.begin()

    def begin(self) -> None:
        """Begin a unit of work: its first texts are compared in any case, and counts begin at 0."""
        self.counts = Counter()
        self._first = True

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The library's ids of each text.

        Raises:
            EncoderDiffers: a text that was compared got other ids.
            CannotEncode: the library fails on one of the texts.
        """
        self._count("all", texts)
        suspect = {*self._suspects.found_in(texts), *_with_long_runs(texts)}
        own = iter(self._own([text for n, text in enumerate(texts) if n not in suspect]))
        found = [None if n in suspect else next(own) for n in range(len(texts))]
        left = [text for text, ids in zip(texts, found, strict=True) if ids is None]
        self._count("left", left)
        others = iter(self._library(left) if left else ())
        return [next(others) if ids is None else ids for ids in found]

    def _own(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """The encoder's ids, compared in samples; None for a text on which it fails."""
        try:
            ids = self._timed("own", self._encoder.encode, texts)
        except CannotEncode:
            return [None] if len(texts) == 1 else [self._own([text])[0] for text in texts]
        self._count("own", texts)
        self._compare(texts, ids)
        return list(ids)

    def _compare(self, texts: Sequence[str], ids: Sequence[np.ndarray]) -> None:
        chosen = range(len(texts)) if self._everything else drawn(texts, self._first)
        self._first &= not chosen
        passages = texts if self._everything else [passage(texts[n]) for n in chosen]
        # A passage alone is a text like any other: both must agree on it.
        cut = [p for n, p in zip(chosen, passages, strict=True) if len(p) < len(texts[n])]
        again = iter(self._encoder.encode(cut)) if cut else iter(())
        mine = [
            next(again) if len(p) < len(texts[n]) else ids[n]
            for n, p in zip(chosen, passages, strict=True)
        ]
        theirs = self._timed("both", self._library, passages)
        self._count("both", passages)
        self.counts["cut texts"] += len(cut)
        for text, one, other in zip(passages, mine, theirs, strict=True):
            if not np.array_equal(one, other):
                raise EncoderDiffers(self.name, text)

    def _timed(self, what: str, encode: Encode, texts: Sequence[str]) -> list[np.ndarray]:
        begin = time.thread_time_ns()
        ids = encode(texts)
        self.counts[f"{what} microseconds"] += (time.thread_time_ns() - begin) // 1_000
        return ids

    def _count(self, what: str, texts: Sequence[str]) -> None:
        self.counts[f"{what} texts"] += len(texts)
        self.counts[f"{what} characters"] += sum(map(len, texts))


def drawn(texts: Sequence[str], some: bool) -> list[int]:
    """The numbers of the texts that are compared, by their content; with `some` at least one.

    One text in 256 is drawn, of long ones as many more as they are longer than a passage.

    >>> drawn(["one", "two"], True) == drawn(["one", "two"], True), drawn([], True)
    (True, [])
    """
    marks = [_mark(text) for text in texts]
    least = min(marks, default=0) if some else -1
    return [
        n
        for n, mark in enumerate(marks)
        if mark == least or mark % _ONE_IN < max(1, len(texts[n]) // PASSAGE)
    ]


def _with_long_runs(texts: Sequence[str]) -> Iterator[int]:
    """The numbers of texts that may hold more spaces in a row than a library can take."""
    for number, text in enumerate(texts):
        if len(text) >= _RUN and _SPACES.search(text[:: _RUN // 8]):
            yield number


def passage(text: str) -> str:
    """A text, or a part of a long one, at a place that its content decides."""
    if len(text) <= PASSAGE:
        return text
    start = _mark(text) // _ONE_IN % (len(text) - PASSAGE)
    return text[start : start + PASSAGE]


def _mark(text: str) -> int:
    """A number that a text's length and some of its characters decide."""
    middle = len(text) // 2
    some = f"{len(text)} {text[:_HEAD]}{text[middle : middle + _HEAD]}{text[-_HEAD:]}"
    return zlib.crc32(some.encode("utf-8", "surrogatepass"))
