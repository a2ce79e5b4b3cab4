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

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.ragged import Ints

BLOCK = 65_536
BLOCK_HEADER = 24
STREAM_BLOCK = BLOCK - BLOCK_HEADER
STREAM_START = 40
MAX_RECORD_TOKENS = 2**20
"""sizes of records are looked up in a table, with an entry for each number of tokens"""
_SIZE_FIELD = 32  # offset of the content size in a chunk's header
_CHUNK_OVERHEAD = 42  # header, types and the first varint, without the varint of the size


def file_offset(stream: ArrayLike) -> Ints:
    """Byte offset in the file of a stream offset; vectorised, int64."""
    offset = np.asarray(stream, np.int64)
    return offset + BLOCK_HEADER * (offset // STREAM_BLOCK + 1)


def without_headers(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The stream of a whole file."""
    blocks = [data[start + BLOCK_HEADER : start + BLOCK] for start in range(0, len(data), BLOCK)]
    return np.concatenate([data[:0], *blocks])


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

    @property
    def item_with_mask(self) -> int:
        """Bytes that a token takes in a record."""
        return self.item + self.masked

    def of_side(self, dtype: str) -> "RecordSpec":
        """How a side array of the same documents is cut into records."""
        return replace(self, dtype=dtype, masked=False)

    def records(self, lengths: ArrayLike) -> Ints:
        """Records that documents of `lengths` tokens take."""
        return -(-np.asarray(lengths, np.int64) // self.record_tokens)

    def record_lengths(self, lengths: ArrayLike) -> Ints:
        """Tokens of every record of documents of `lengths` tokens."""
        records = self.records(lengths)
        tokens = np.full(records.sum(), self.record_tokens)
        tokens[np.cumsum(records) - 1] -= -np.asarray(lengths, np.int64) % self.record_tokens
        return tokens

    def stream_bytes(self, lengths: ArrayLike) -> Ints:
        """Stream bytes that documents of `lengths` tokens take, chunk headers included."""
        length = np.asarray(lengths, np.int64)
        taken = _chunk_bytes(self).take(length, mode="clip")
        long = length > self.record_tokens
        if long.any():
            whole, rest = np.divmod(length[long], self.record_tokens)
            taken[long] = whole * _chunk_bytes(self)[-1] + _chunk_bytes(self)[rest]
        return taken

    def record_spans(self, lengths: ArrayLike) -> tuple[Ints, Ints]:
        """(stream offset, bytes) of every record in a file of documents of `lengths` tokens."""
        tokens = self.record_lengths(lengths)
        sizes = tokens * self.item_with_mask
        return STREAM_START + np.cumsum(_chunk_bytes(self)[tokens]) - sizes, sizes

    def token_offset(self, lengths: ArrayLike, token: ArrayLike) -> Ints:
        """Stream offset of a token from the beginning of its document's first chunk."""
        begin, tokens, within = self._record_of(lengths, token)
        return begin + self._header_bytes(tokens) + within * self.item

    def mask_offset(self, lengths: ArrayLike, token: ArrayLike) -> Ints:
        """Stream offset of a token's mask byte, from the same beginning."""
        begin, tokens, within = self._record_of(lengths, token)
        return begin + self._header_bytes(tokens) + tokens * self.item + within

    def size_field(self, lengths: ArrayLike, token: ArrayLike) -> tuple[Ints, Ints]:
        """(stream offset, value) of the uint64 with the size of a token's record, in its header.

        From the beginning of the document's first chunk.
        """
        begin, tokens, _ = self._record_of(lengths, token)
        return begin + _SIZE_FIELD, tokens * self.item_with_mask

    def _record_of(self, lengths: ArrayLike, token: ArrayLike) -> tuple[Ints, Ints, Ints]:
        """Of a token's record: the stream offset of its chunk, its tokens, and the token there."""
        # numpy divides by a scalar with SIMD, but its divmod does not.
        token = np.asarray(token, np.int64)
        record = token // self.record_tokens
        first = record * self.record_tokens
        tokens = np.minimum(np.asarray(lengths, np.int64) - first, self.record_tokens)
        return record * _chunk_bytes(self)[-1], tokens, token - first

    def _header_bytes(self, tokens: Ints) -> Ints:
        return _chunk_bytes(self).take(tokens, mode="clip") - tokens * self.item_with_mask


@lru_cache(8)
def _chunk_bytes(spec: RecordSpec) -> Ints:
    """Stream bytes of a record of 0 (no record, no bytes) to `record_tokens` tokens."""
    size = np.arange(spec.record_tokens + 1) * spec.item_with_mask
    varint = 1 + sum((size >= 1 << bits).astype(np.int64) for bits in (7, 14, 21))
    table = size + _CHUNK_OVERHEAD + varint
    table[0] = 0
    return table
