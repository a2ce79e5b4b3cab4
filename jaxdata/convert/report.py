"""What a conversion did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxdata.format.manifest import SourceEntry

__all__ = ["ConversionReport"]


@dataclass(frozen=True)
class ConversionReport:
    """What a finished source holds, and what it took.

    Attributes:
        output: the dataset.
        source: "<split>/<source>".
        sources: names of all sources that it fed, in the order of the task.
        documents: documents in the source.
        tokens: their tokens, with EOD.
        text_bytes: their bytes of UTF-8.
        shards: files they lie in.
        quarantined: number of bad records by reason.
        quarantine_file: where those are, None where there are none.
        dropped: number of records and documents that were left out on purpose, by reason.
        seconds: time this call took.
        already_complete: the source was there before; nothing was done.
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

    @classmethod
    def of(
        cls,
        output: str,
        source: str,
        entries: dict[str, SourceEntry],
        seconds: float,
        *,
        already_complete: bool,
    ) -> ConversionReport:
        """Report on sources as the manifest has them, all of one conversion."""
        made = list(entries.values())
        statistics = made[0].statistics
        quarantined = statistics["quarantined"]
        each = "*" if any(entry.generations for entry in made) else ""  # one a generation
        return cls(
            output=output,
            source=source,
            documents=sum(entry.documents for entry in made),
            tokens=sum(entry.tokens for entry in made),
            text_bytes=sum(entry.statistics["text_bytes"] for entry in made),
            shards=sum(len(entry.shards) for entry in made),
            quarantined=quarantined,
            quarantine_file=f"{output}/{source}/quarantine{each}.jsonl" if quarantined else None,
            dropped=statistics.get("dropped", {}),
            seconds=seconds,
            already_complete=already_complete,
            sources=tuple(entries),
        )

    def __str__(self) -> str:
        """Return a few lines for people."""
        tokens_a_byte = self.tokens / max(1, self.text_bytes)
        lines = [
            f"{', '.join(self.sources) or self.source}: "
            f"{self.documents:,} documents, {self.tokens:,} tokens, "
            f"{self.text_bytes / 1e6:,.1f} MB of text ({tokens_a_byte:.3f} tokens a byte), "
            f"{self.shards} shard{'s' * (self.shards != 1)}"
        ]
        if self.quarantined:
            count = sum(self.quarantined.values())
            lines.append(f"quarantined: {count:,} records, in {self.quarantine_file}")
            lines += [f"  {count:,}  {reason}" for reason, count in self.quarantined.items()]
        if self.dropped:
            lines.append(f"dropped: {sum(self.dropped.values()):,} records")
            lines += [f"  {count:,}  {reason}" for reason, count in self.dropped.items()]
        if self.already_complete:
            lines.append("already complete: nothing to do")
        else:
            rate = self.text_bytes / 1e6 / max(1e-9, self.seconds)
            lines.append(f"took {self.seconds:,.1f} s, {rate:,.1f} MB/s")
        return "\n".join(lines)
