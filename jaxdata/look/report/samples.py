"""A few documents of each source as text, and what the tokenizer makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import in_source
from jaxdata.look.terminal import printable, printable_lines
from jaxdata.look.trace import came_from, origin_of

Decode = Callable[[Any], str]
FAR_SAMPLES = 3
"""documents of a source in a bucket, where each is a request or two"""
_TOKENS = 700
_CHARACTERS = 2_500


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
    text: str | None
    """printable; None if no tokenizer is known"""
    cut: bool
    """whether the document goes on"""


def sample_documents(
    name: str, documents: Documents, decode: Decode | None, count: int
) -> list[Sample]:
    """Documents spread evenly over a source."""
    return [_sample(name, documents, decode, number) for number in spread(len(documents), count)]


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
    one = (np.array([value]) for value in (document, 0, count))
    data = bytes(documents.tokens(*one).views.join())
    return np.frombuffer(data, documents.dtype.newbyteorder("<"))


def _sample(name: str, documents: Documents, decode: Decode | None, document: int) -> Sample:
    length = int(documents.lengths[document])
    text = None if decode is None else decode(beginning(documents, document, _TOKENS))
    origin = origin_of(documents, document)
    _, number, first = in_source(documents, document)
    return Sample(
        source=name,
        document=number,
        first=first,
        length=length,
        origin=came_from(vars(origin)),
        kept={printable(key): printable(str(kept)[:200]) for key, kept in origin.kept.items()},
        text=None if text is None else printable_lines(text[:_CHARACTERS]),
        cut=length > _TOKENS or len(text or "") > _CHARACTERS,
    )


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
