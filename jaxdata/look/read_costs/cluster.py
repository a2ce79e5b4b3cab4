"""Who reads: hosts, their batch, and how they fetch."""

from __future__ import annotations

from dataclasses import dataclass

from jaxdata.base.errors import InputError


@dataclass(frozen=True)
class Cluster:
    """Hosts that read one run from far away.

    Raises:
        InputError: a number is below 1, or hosts do not divide the batch.
    """

    hosts: int
    batch_size: int
    """rows of the global batch"""
    page_bytes: int = 2**20
    """bytes of a page, which the page cache fetches at once"""
    cache_bytes: int | None = None
    """bytes that a host's cache holds; None: as many as it needs"""
    gap_bytes: int = 2**8
    """exact ranges of a batch that lie as near as this are one request: headers lie between"""

    def __post_init__(self) -> None:
        for name in ("hosts", "batch_size", "page_bytes", "cache_bytes"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise InputError(f"{name}={given}: expected a whole number of at least 1")
        if self.batch_size % self.hosts:
            raise InputError(
                f"a batch of {self.batch_size:,} rows cannot be divided among {self.hosts:,} "
                "hosts: choose a multiple of the hosts"
            )
