"""What is in a dataset: the beginnings of documents, token by token."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxdata.base.ragged import AnyArray, Bools, equal_runs
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import in_source
from jaxdata.look.terminal import printable, printable_lines
from jaxdata.look.trace import Decode, came_from, decoder, origin_of

_TOKENS = 500  # of a document that is shown


class Sample(NamedTuple):
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
    name: str, documents: Documents, dataset: Dataset, count: int
) -> Iterator[Sample]:
    """Documents spread evenly over a source."""
    decode = decoder(dataset)
    for document in spread(len(documents), count):
        origin, pieces = origin_of(documents, document), None
        _, number, first = in_source(documents, document)
        if decode is not None:
            ids = documents.read(document, 0, _TOKENS)
            loss = np.ones(len(ids), bool)
            if documents.masked:
                given = (np.array([each]) for each in (document, 0, len(ids)))
                loss = documents.masks(*given).views.array(np.uint8) == 1
            texts = token_texts(ids, loss, decode, dataset.token_bytes)
            pieces = [(printable_lines(text), has) for text, has in texts]
        length = int(documents.lengths[document])
        kept = {printable(key): printable(str(each)[:200]) for key, each in origin.kept.items()}
        came, cut = came_from(vars(origin)), length > _TOKENS
        yield Sample(name, number, first, length, came, kept, pieces, cut)


def spread(total: int, count: int) -> list[int]:
    """At most `count` numbers below `total`, evenly spread.

    >>> spread(10, 3), spread(2, 5), spread(0, 5)
    ([1, 5, 8], [0, 1], [])
    """
    if total <= count:
        return list(range(total))
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


def token_texts(
    ids: AnyArray, loss: Bools, decode: Decode, token_bytes: AnyArray
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
