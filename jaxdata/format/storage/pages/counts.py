"""What this process fetched from buckets: requests, bytes, hits, waits."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class ReadCounts:
    """Counts since the process began; times in seconds."""

    gets: int = 0
    """requests for parts of files, second tries included"""
    bytes: int = 0
    """fetched by them"""
    used_bytes: int = 0
    """of the ranges that rows were made of"""
    hits: int = 0
    """ranges found in cached pages"""
    misses: int = 0
    """ranges fetched on their own"""
    pages: int = 0
    """pages fetched"""
    refetched: int = 0
    """of these, pages that had been fetched before"""
    wait_seconds: float = 0.0
    """in which batches waited for ranges"""

    def as_dict(self) -> dict[str, float]:
        """Plain JSON values."""
        return asdict(self)


READS = ReadCounts()
