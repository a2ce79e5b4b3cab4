"""Documents on their way to shards, and what a conversion counts of them.

The counts are sums over units, which depend on the input alone. Texts are counted twice, as they
were read and as they were after cleaning; everything else is of the documents that were written.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base.errors import counted, reasons, sized
from jaxdata.base.ragged import AnyInts
from jaxdata.converter.tasks import Encoded
from jaxdata.dataset.manifest import SourceEntry
from jaxdata.tokenizers.encoders.choice import EncodingSummary


class Document(NamedTuple):
    """A document: what the task made of it, where it came from, and its sizes."""

    content: Any
    part: int  # its number in the unit
    record: int  # its number in the part
    split: str
    characters: int
    text_bytes: int
    raw_characters: int  # before cleaning; of all documents of a record, with the first
    raw_bytes: int
    kept: bytes = b""  # a line of JSON with the fields to keep


Streams = Sequence[tuple[Encoded, ...]]
"""What documents were encoded to: for each, one `Encoded` a stream."""


def in_pieces(whole: Sequence[Document], encoded: Streams) -> tuple[Sequence[Document], Streams]:
    """Documents with each piece of those that were cut as one; the first has the sizes of all."""
    if not any(streams[0].cuts for streams in encoded):
        return whole, encoded
    cut, pieces = [], []
    for document, streams in zip(whole, encoded, strict=True):
        rest = document._replace(characters=0, text_bytes=0, raw_characters=0, raw_bytes=0)
        for number, piece in enumerate(zip(*(one.pieces() for one in streams), strict=True)):
            cut.append(rest if number else document)
            pieces.append(piece)
    return cut, pieces


PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
SIZES = ("raw_characters", "raw_bytes", "characters", "text_bytes")
COUNTED = (*SIZES, "loss_tokens", "unknown_tokens")


def sizes_of(texts: Sequence[str]) -> tuple[int, int]:
    """Characters of texts, and their bytes in UTF-8.

    >>> sizes_of(["\u00e9!", "a"])
    (3, 4)
    """
    # An ASCII text is not encoded to be counted: it knows both of its sizes.
    in_bytes = (len(text) if text.isascii() else len(text.encode()) for text in texts)
    return sum(map(len, texts)), sum(in_bytes)


def count(
    documents: Sequence[Document], encoded: Sequence[Encoded], unknown_id: int | None
) -> Counter[str]:
    """The sizes of documents' texts, their targets with loss, and tokens of unknown text, summed.

    A document's first token is nobody's target.

    >>> counts = count([], [Encoded(np.array([5, 0, 2]), np.array([1, 0, 1]))], unknown_id=0)
    >>> counts["loss_tokens"], counts["unknown_tokens"]
    (1, 1)
    """
    counts = Counter({name: sum(map(attrgetter(name), documents)) for name in SIZES})
    counts["loss_tokens"] = sum(
        len(one.tokens) - 1 if one.mask is None else int(one.mask[1:].sum()) for one in encoded
    )
    if unknown_id is not None and encoded:
        tokens = np.concatenate([one.tokens for one in encoded])
        counts["unknown_tokens"] = int(np.count_nonzero(tokens == unknown_id))
    return counts


def derived(counts: Mapping[str, int], lengths: AnyInts) -> dict[str, Any]:
    """The statistics of a source in the manifest: its counts, and ratios of these."""
    documents, tokens = len(lengths), int(lengths.sum(dtype=np.int64))
    sums = {name: counts.get(name, 0) for name in COUNTED}
    at = np.percentile(lengths, PERCENTILES, method="inverted_cdf") if documents else ()
    percentiles = {f"p{p:02}": int(n) for p, n in zip(PERCENTILES, at, strict=False)}
    return {
        **sums,
        "longest_document": int(lengths.max(initial=0)),
        "length_percentiles": percentiles,
        "tokens_per_byte": tokens / sums["text_bytes"] if sums["text_bytes"] else 0.0,
        "tokens_per_document": tokens / max(1, documents),
        "characters_per_document": sums["characters"] / max(1, documents),
        "bytes_per_document": sums["text_bytes"] / max(1, documents),
        "unknown_token_rate": sums["unknown_tokens"] / max(1, tokens),
    }


Made = tuple[dict[str, SourceEntry], EncodingSummary | None]
"""The sources, and what encoded them; None where they were complete before."""


@dataclass(frozen=True)
class ConversionReport:
    """A finished source in numbers, and the time it took.

    Attributes:
        output: the dataset.
        source: "<split>/<source>".
        sources: names of all sources that it fed, in the order of the task.
        documents: documents in the source.
        tokens: their tokens, with EOD.
        text_bytes: their bytes of UTF-8.
        shards: files they lie in.
        quarantined: number of bad records by reason.
        quarantine_file: where those are; None if there are none.
        dropped: number of records and documents that were left out on purpose, by reason.
        seconds: time this call took.
        already_complete: the source was there before; nothing was done.
        encoding: what encoded the texts; None where nothing was done.
        files: inputs that were read.
        files_not_read: number of files in the same folders of kinds that are not read, by suffix.
        bytes: the size of the shards.
    """

    output: str
    source: str
    documents: int
    tokens: int
    text_bytes: int
    shards: int
    quarantined: dict[str, int] = field(default_factory=dict)
    quarantine_file: str | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    already_complete: bool = False
    sources: tuple[str, ...] = ()
    encoding: EncodingSummary | None = None
    files: int = 0
    files_not_read: dict[str, int] = field(default_factory=dict)
    bytes: int = 0

    @classmethod
    def of(cls, output: str, source: str, made: Made, seconds: float) -> "ConversionReport":
        """Report on sources as the manifest has them, all of one conversion."""
        named, encoding = made
        entries = list(named.values())
        statistics, quarantined = entries[0].statistics, entries[0].statistics["quarantined"]
        each = "*" if any(entry.generations for entry in entries) else ""  # one a generation
        return cls(
            output=output,
            source=source,
            documents=sum(entry.documents for entry in entries),
            tokens=sum(entry.tokens for entry in entries),
            text_bytes=sum(entry.statistics["text_bytes"] for entry in entries),
            shards=sum(len(entry.shards) for entry in entries),
            quarantined=quarantined,
            quarantine_file=f"{output}/{source}/quarantine{each}.jsonl" if quarantined else None,
            dropped=statistics.get("dropped", {}),
            seconds=seconds,
            already_complete=encoding is None,
            sources=tuple(named),
            encoding=encoding,
            files=len(entries[0].inputs),
            files_not_read=statistics.get("files_not_read", {}),
            bytes=sum(shard.bytes for entry in entries for shard in entry.shards),
        )

    def __str__(self) -> str:
        """Return lines for people: what was read, what was written, and how."""
        size = f", {sized(self.text_bytes)} of text" if self.text_bytes else ""  # ids have none
        said = [f"read {counted(self.documents, 'document')}{size}, from "]
        said[0] += counted(self.files, "file")
        if self.files_not_read:
            kinds = reasons(self.files_not_read, noun="kind")
            count = counted(sum(self.files_not_read.values()), "file")
            said.append(f"passed over {count} of other kinds ({kinds})")
        if self.quarantined:
            count = counted(sum(self.quarantined.values()), "record")
            said.append(f"quarantined {count} ({reasons(self.quarantined)}), ")
            said[-1] += f"in {self.quarantine_file}"
        if self.dropped:
            count = counted(sum(self.dropped.values()), "record")
            said.append(f"dropped {count} ({reasons(self.dropped)})")
        rate = f" ({self.tokens / self.text_bytes:.3f} per byte)" if self.text_bytes else ""
        wrote = (
            f"wrote {', '.join(self.sources) or self.source}: {counted(self.tokens, 'token')}"
            f"{rate}, {counted(self.shards, 'shard')}, {sized(self.bytes)}, in {self.output}"
        )
        return "\n".join(["; ".join(said), wrote, self._took()])

    def _took(self) -> str:
        if self.already_complete:
            return "already complete: nothing to do"
        seconds = max(1e-9, self.seconds)
        speed = f"{self.tokens / seconds:,.0f} tokens"
        speed = sized(self.text_bytes / seconds) if self.text_bytes else speed
        encoding = self.encoding
        encoded = encoding.lines() if encoding else ()
        return "; ".join([f"took {self.seconds:,.1f} s, {speed}/s", *encoded])
