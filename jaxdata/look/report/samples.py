"""A few documents of each source as text, and what the tokenizer makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import equal_runs
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import in_source
from jaxdata.look.terminal import printable, printable_lines
from jaxdata.look.trace import came_from, origin_of

Decode = Callable[[Any], str]
FAR_SAMPLES = 3
"""documents of a source in a bucket, where each is a request or two"""
_TOKENS = 500


@dataclass(frozen=True)
class Sample:
    """The beginning of a document."""

    source: str
    document: int
    """the number of the document in the source, through whatever view it is read"""
    first: int
    """the token of that document at which this begins: 0 unless a view cuts it"""
    length: int
    """tokens, with EOD"""
    origin: str
    """the document's input file and line; empty if unknown"""
    kept: dict[str, str]
    pieces: list[tuple[str, bool]] | None
    """the printable text of each token, and whether it has loss as a target; tokens that share a
    character, or whose borders are not known, are one piece. None if no tokenizer is known"""
    cut: bool
    """whether the document goes on"""


def sample_documents(
    name: str, documents: Documents, dataset: Dataset, decode: Decode | None, count: int
) -> list[Sample]:
    """Documents spread evenly over a source."""
    reads = None if decode is None else (decode, dataset.token_bytes)
    return [_sample(name, documents, reads, number) for number in spread(len(documents), count)]


def spread(total: int, count: int) -> list[int]:
    """At most `count` numbers below `total`, evenly spread.

    >>> spread(10, 3), spread(2, 5), spread(0, 5)
    ([1, 5, 8], [0, 1], [])
    """
    if total <= count:
        return list(range(total))
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


def beginning(documents: Documents, document: int, tokens: int) -> NDArray[Any]:
    """The first tokens of a document; nothing else of it is read."""
    count = min(tokens, int(documents.lengths[document]))
    data = bytes(documents.tokens(*_one(document, count)).views.join())
    return np.frombuffer(data, documents.dtype.newbyteorder("<"))


def _one(document: int, count: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    return np.array([document]), np.array([0]), np.array([count])


def _sample(
    name: str, documents: Documents, reads: tuple[Decode, NDArray[Any]] | None, document: int
) -> Sample:
    length = int(documents.lengths[document])
    origin = origin_of(documents, document)
    _, number, first = in_source(documents, document)
    pieces = None
    if reads is not None:
        ids = beginning(documents, document, _TOKENS)
        loss = np.ones(len(ids), bool)
        if documents.masked:
            stored = bytes(documents.masks(*_one(document, len(ids))).views.join())
            loss = np.frombuffer(stored, np.uint8) == 1
        pieces = [(printable_lines(text), has) for text, has in token_texts(ids, loss, *reads)]
    return Sample(
        source=name,
        document=number,
        first=first,
        length=length,
        origin=came_from(vars(origin)),
        kept={printable(key): printable(str(kept)[:200]) for key, kept in origin.kept.items()},
        pieces=pieces,
        cut=length > _TOKENS,
    )


def token_texts(
    ids: NDArray[Any], loss: NDArray[np.bool_], decode: Decode, token_bytes: NDArray[Any]
) -> Iterator[tuple[str, bool]]:
    """The text of each token in turn, and whether it has loss; a piece has one character or more.

    SentencePiece adds a space in front, which is not decoded. Where the bytes of the tokens are not
    those of the text, pieces are runs of equal loss.
    """
    known = (ids < len(token_bytes)).all()
    for cut in range(min(4, len(ids)) if known else 0):  # the last character may be cut
        some = ids[: len(ids) - cut]
        text, ends = decode(some), np.cumsum(token_bytes[some.astype(np.int64)])
        starts = np.cumsum([0, *(len(c.encode(errors="surrogatepass")) for c in text)])
        ends = ends - (ends[0] - len(decode(ids[:1]).encode(errors="surrogatepass")) == 1)
        if ends[-1] == starts[-1] and not text.endswith("\ufffd"):
            stops = np.searchsorted(starts, ends)
            yield from (
                (text[first:stop], bool(has))
                for first, stop, has in zip([0, *stops[:-1]], stops, loss, strict=False)
                if stop > first
            )
            return
    for first, stop in equal_runs(loss):
        yield decode(ids[first:stop]), bool(loss[first])


_DOCUMENTS = 400
_COUNTED_TOKENS = 2_000  # of a document


@dataclass(frozen=True)
class SourceTokens:
    """A sample of the tokens of a source."""

    name: str
    sampled: int
    """tokens"""
    used: int
    """different ids among them"""
    bytes_a_token: float | None
    """None if no tokenizer is known; exact where the conversion counted, else of the sample"""
    exact: bool


@dataclass(frozen=True)
class TokenFacts:
    """The tokenizer, and its use."""

    named: dict[str, str]
    """facts about the tokenizer, by what they are called"""
    sources: list[SourceTokens]
    used: int
    """different ids in all samples"""
    vocab_size: int | None


def token_facts(dataset: Dataset, sources: Mapping[str, Documents]) -> TokenFacts:
    """Look at the tokens of documents spread evenly over each source."""
    token_bytes: NDArray[np.int32] | None = None
    try:
        tokenizer = dataset.tokenizer
        token_bytes = dataset.token_bytes
        ids = {"EOD": tokenizer.eod_id, "BOS": tokenizer.bos_id, "padding": tokenizer.pad_id}
        named = {
            "tokenizer": f"{tokenizer.kind} {tokenizer.name}",
            "vocabulary": f"{tokenizer.vocab_size:,} ids",
            "special ids": ", ".join(f"{role} {n}" for role, n in ids.items() if n is not None),
        }
    except InputError as error:  # another tool's dataset, without a tokenizer
        named = {"tokenizer": f"unknown: {error}"}
    seen: set[int] = set()
    found = []
    for name, documents in sources.items():
        sample = _sampled_ids(documents)
        used = np.unique(sample)
        seen.update(used.tolist())
        found.append(_facts(name, documents, sample, len(used), token_bytes))
    size = None if token_bytes is None else len(token_bytes)
    return TokenFacts(named, found, len(seen), size)


def _sampled_ids(documents: Documents) -> NDArray[Any]:
    count = FAR_SAMPLES if documents.is_far else _DOCUMENTS  # whose pages are here
    chosen = spread(len(documents), count)
    parts = [beginning(documents, number, _COUNTED_TOKENS) for number in chosen]
    return np.concatenate([np.empty(0, np.uint32), *parts])


def _facts(
    name: str,
    documents: Documents,
    ids: NDArray[Any],
    used: int,
    token_bytes: NDArray[np.int32] | None,
) -> SourceTokens:
    statistics = documents.entry.statistics if documents.entry else {}
    text_bytes, tokens = statistics.get("text_bytes"), int(documents.lengths.sum(dtype=np.int64))
    rate: float | None = None
    if isinstance(text_bytes, int) and tokens:
        return SourceTokens(name, len(ids), used, text_bytes / tokens, exact=True)
    if token_bytes is not None and len(ids):
        known = ids[ids < len(token_bytes)].astype(np.int64)
        rate = float(token_bytes[known].sum()) / len(ids)
    return SourceTokens(name, len(ids), used, rate, exact=False)
