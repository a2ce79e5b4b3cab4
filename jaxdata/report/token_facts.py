"""What the tokenizer makes of each source: bytes a token, and how many of its ids are used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Documents, far
from jaxdata.documents.dataset import Dataset
from jaxdata.errors import InputError
from jaxdata.report.samples import FAR_SAMPLES, beginning, spread

_DOCUMENTS = 400
_TOKENS = 2_000  # of a document


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
    """what is known of the tokenizer, in words"""
    sources: list[SourceTokens]
    used: int
    """different ids in all samples"""
    vocab_size: int | None


def token_facts(dataset: Dataset, sources: Mapping[str, Documents]) -> TokenFacts:
    """Look at the tokens of documents spread evenly over each source."""
    token_bytes = _token_bytes(dataset)
    seen: set[int] = set()
    found = []
    for name, documents in sources.items():
        ids = _sampled_ids(documents)
        used = np.unique(ids)
        seen.update(used.tolist())
        found.append(_facts(name, documents, ids, len(used), token_bytes))
    size = None if token_bytes is None else len(token_bytes)
    return TokenFacts(_named(dataset), found, len(seen), size)


def _sampled_ids(documents: Documents) -> NDArray[Any]:
    count = _DOCUMENTS if far(documents) is None else FAR_SAMPLES  # whose pages are here
    chosen = spread(len(documents), count)
    parts = [beginning(documents, number, _TOKENS) for number in chosen]
    return np.concatenate([np.empty(0, np.uint32), *parts])


def _facts(
    name: str,
    documents: Documents,
    ids: NDArray[Any],
    used: int,
    token_bytes: NDArray[np.int32] | None,
) -> SourceTokens:
    statistics = getattr(getattr(documents, "entry", None), "statistics", {})
    text_bytes, tokens = statistics.get("text_bytes"), int(documents.lengths.sum(dtype=np.int64))
    rate: float | None = None
    if isinstance(text_bytes, int) and tokens:
        return SourceTokens(name, len(ids), used, text_bytes / tokens, exact=True)
    if token_bytes is not None and len(ids):
        known = ids[ids < len(token_bytes)].astype(np.int64)
        rate = float(token_bytes[known].sum()) / len(ids)
    return SourceTokens(name, len(ids), used, rate, exact=False)


def _token_bytes(dataset: Dataset) -> NDArray[np.int32] | None:
    try:
        return dataset.token_bytes
    except InputError:  # another tool's dataset, without a tokenizer
        return None


def _named(dataset: Dataset) -> dict[str, str]:
    try:
        tokenizer = dataset.tokenizer
    except InputError as error:
        return {"tokenizer": f"unknown: {error}"}
    ids = {"EOD": tokenizer.eod_id, "BOS": tokenizer.bos_id, "padding": tokenizer.pad_id}
    return {
        "tokenizer": f"{tokenizer.kind} {tokenizer.name}",
        "vocabulary": f"{tokenizer.vocab_size:,} ids",
        "special ids": ", ".join(f"{role} {n}" for role, n in ids.items() if n is not None),
    }
