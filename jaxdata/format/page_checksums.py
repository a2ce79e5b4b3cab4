"""Checksums of the pages of shards: by them a page from a bucket is known to be whole."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.manifest import ShardEntry
from jaxdata.format.storage import PAGE_BYTES


def page_checksums(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRC-32 of each page of a file; uint32 (pages,), the last page may be shorter.

    >>> page_checksums(np.frombuffer(b"123456789", np.uint8)).tolist() == [0xCBF43926]
    True
    """
    starts = range(0, len(data), PAGE_BYTES)
    found = [zlib.crc32(data[start : start + PAGE_BYTES].data) for start in starts]
    return np.array(found, np.uint32)


def page_count(shards: Iterable[ShardEntry]) -> int:
    """Pages of some shards."""
    return sum(-(-shard.bytes // PAGE_BYTES) for shard in shards)
