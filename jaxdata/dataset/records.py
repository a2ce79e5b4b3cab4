"""Where each record lies in an uncompressed ArrayRecord file with one record a chunk.

The place follows from the sizes of records, so reading tokens is slicing a memory map:

* the file is cut into blocks of 65,536 bytes, each beginning with a header of 24 bytes, which may
  fall inside a record. Offsets that leave these headers out are called *stream* offsets here;
* the stream begins with the 40-byte header of the file's signature chunk;
* each record is a chunk: a header of 40 bytes, two bytes of chunk and compression type, the length
  of the size field as a varint of one byte, the record's size as a varint, and the record.

Source: the Riegeli records format, which ArrayRecord writes; `ShardWriter` checks the arithmetic
against every file it has written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK = 65_536
BLOCK_HEADER = 24
STREAM_BLOCK = BLOCK - BLOCK_HEADER
STREAM_START = 40
_SIZE_FIELD = 32  # offset of the content size in a chunk's header
_CHUNK_OVERHEAD = 42  # header, types and the first varint, without the varint of the size
_MOST_SIDE = 2**28  # values of 8 bytes: a record stays below 4 GiB
_MOST_TABLED = 2**20  # tokens of a record; sizes of larger ones are computed


def file_offset(stream: ArrayLike) -> NDArray[np.int64]:
    """Byte offset in the file of a stream offset; vectorised, int64."""
    offset = np.asarray(stream, np.int64)
    return offset + BLOCK_HEADER * (offset // STREAM_BLOCK + 1)


def without_headers(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The stream of a whole file."""
    blocks = [data[start + BLOCK_HEADER : start + BLOCK] for start in range(0, len(data), BLOCK)]
    return np.concatenate([data[:0], *blocks])


def _overhead(size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of a chunk before its record of `size` bytes."""
    varint = np.ones_like(size)
    for bits in (7, 14, 21, 28):
        varint += size >= (1 << bits)
    return varint + _CHUNK_OVERHEAD


@dataclass(frozen=True)
class RecordSpec:
    """How the documents of one source are cut into records.

    A document of more than `record_tokens` tokens is stored as consecutive records of exactly
    that many, the last one shorter. A record is its tokens and, if `masked`, a byte of loss mask
    for each token after them.

    >>> spec = RecordSpec("uint16", masked=False, record_tokens=4)
    >>> spec.records([4, 5]).tolist(), spec.stream_bytes([4, 5]).tolist()
    ([1, 2], [51, 96])
    """

    dtype: str
    masked: bool = False
    record_tokens: int = 16_384

    @property
    def item(self) -> int:
        """Bytes of a token in a record, without its mask."""
        return np.dtype(self.dtype).itemsize

    def of_side(self, dtype: str) -> RecordSpec:
        """How a side array of the same documents is cut into records."""
        tokens = min(self.record_tokens, _MOST_SIDE)
        return replace(self, dtype=dtype, masked=False, record_tokens=tokens)

    def records(self, lengths: ArrayLike) -> NDArray[np.int64]:
        """Records that documents of `lengths` tokens take."""
        return -(-np.asarray(lengths, np.int64) // self.record_tokens)

    def record_lengths(self, lengths: ArrayLike) -> NDArray[np.int64]:
        """Tokens of every record of documents of `lengths` tokens."""
        records = self.records(lengths)
        tokens = np.full(records.sum(), self.record_tokens)
        tokens[np.cumsum(records) - 1] -= -np.asarray(lengths, np.int64) % self.record_tokens
        return tokens

    def stream_bytes(self, lengths: ArrayLike) -> NDArray[np.int64]:
        """Stream bytes that documents of `lengths` tokens take, chunk headers included."""
        length = np.asarray(lengths, np.int64)
        taken = self._chunk(length)
        long = length > self.record_tokens
        if long.any():
            whole, rest = np.divmod(length[long], self.record_tokens)
            taken[long] = whole * _whole_chunk(self) + self._chunk(rest)
        return taken

    def chunk_bytes(self, tokens: ArrayLike) -> NDArray[np.int64]:
        """Stream bytes of one record of `tokens` tokens with its chunk header."""
        size = self._record_bytes(tokens)
        return size + _overhead(size)

    def record_spans(self, lengths: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(stream offset, bytes) of every record in a file of documents of `lengths` tokens."""
        tokens = self.record_lengths(lengths)
        ends = STREAM_START + np.cumsum(self.chunk_bytes(tokens))
        sizes = self._record_bytes(tokens)
        return np.asarray(ends - sizes, np.int64), sizes

    def token_offset(self, lengths: ArrayLike, token: ArrayLike) -> NDArray[np.int64]:
        """Stream offset of a token from the beginning of its document's first chunk."""
        # numpy divides by a scalar with SIMD, but its divmod does not.
        token = np.asarray(token, np.int64)
        record = token // self.record_tokens
        within = token - record * self.record_tokens
        tokens = self._tokens_in_record(lengths, record)
        header = self._chunk(tokens) - self._record_bytes(tokens)
        return np.asarray(record * _whole_chunk(self) + header + within * self.item, np.int64)

    def mask_offset(self, lengths: ArrayLike, token: ArrayLike) -> NDArray[np.int64]:
        """Stream offset of a token's mask byte, from the same beginning."""
        record, within = np.divmod(np.asarray(token, np.int64), self.record_tokens)
        tokens = self._tokens_in_record(lengths, record)
        first = self.token_offset(lengths, record * self.record_tokens)
        return np.asarray(first + tokens * self.item + within, np.int64)

    def size_field(
        self, lengths: ArrayLike, token: ArrayLike
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(stream offset, value) of the uint64 with the size of a token's record, in its header.

        From the beginning of the document's first chunk.
        """
        record = np.asarray(token, np.int64) // self.record_tokens
        sizes = self._record_bytes(self._tokens_in_record(lengths, record))
        return np.asarray(record * _whole_chunk(self) + _SIZE_FIELD, np.int64), sizes

    def _chunk(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stream bytes of a record of 0 (no record, no bytes) to `record_tokens` tokens."""
        if self.record_tokens <= _MOST_TABLED:
            return np.asarray(_chunk_table(self).take(tokens, mode="clip"), np.int64)
        some = np.clip(tokens, 0, self.record_tokens)
        return np.where(some > 0, self.chunk_bytes(some), 0)

    def _tokens_in_record(self, lengths: ArrayLike, record: NDArray[np.int64]) -> NDArray[np.int64]:
        rest = np.asarray(lengths, np.int64) - record * self.record_tokens
        return np.asarray(np.minimum(rest, self.record_tokens), np.int64)

    def _record_bytes(self, tokens: ArrayLike) -> NDArray[np.int64]:
        return np.asarray(tokens, np.int64) * (self.item + self.masked)


@lru_cache(8)
def _whole_chunk(spec: RecordSpec) -> int:
    """Stream bytes of a record of `record_tokens` tokens."""
    return int(spec.chunk_bytes(spec.record_tokens))


@lru_cache(8)
def _chunk_table(spec: RecordSpec) -> NDArray[np.int64]:
    """Stream bytes of a record of 0 (no record, no bytes) to `record_tokens` tokens."""
    table = spec.chunk_bytes(np.arange(spec.record_tokens + 1))
    table[0] = 0
    return table
