"""Compressed files as streams, in constant memory, and lines of them."""

import io
import zlib
from collections.abc import Iterator
from functools import partial
from typing import IO, Any, Literal

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.parsing import Unreadable, too_long

Compression = Literal["", "gz", "zst"]
EXPANSION = 200
"""Times its size that a compressed file, or a table, may expand to."""

FREE = 2**28
"""Bytes that any file may unpack to."""
_BUFFER = 2**18
_CHUNK = 2**11  # bytes unpacked at a time: zstd may make 2**26 of them
_WINDOW = 2**31  # the largest that `zstd --long=31` asks for
_LINE = 2**20  # bytes of a line that are passed over at a time
_ZSTD = b"\x28\xb5\x2f\xfd"


def compression_of(head: bytes) -> Compression:
    """Tell from the first bytes of a file how it is compressed.

    >>> import gzip
    >>> compression_of(gzip.compress(b"")), compression_of(b"plain")
    ('gz', '')
    """
    if head.startswith(b"\x1f\x8b\x08"):
        return "gz"
    return "zst" if head.startswith(_ZSTD) else ""


def unpacked_head(head: bytes, compression: Compression, size: int) -> bytes:
    """Decompress the beginning of a file as far as it goes, at most `size` bytes."""
    import zstandard

    try:
        if compression == "gz":
            return zlib.decompressobj(wbits=31).decompress(head, size)
        if compression == "zst":
            unlimited = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
            return unlimited.stream_reader(head, read_across_frames=True).read(size)
    except (zlib.error, zstandard.ZstdError):  # reading it all will tell
        return b""
    return head


def unpacked(packed: io.BufferedReader, compression: Compression, name: str) -> io.BufferedReader:
    """Read a file, decompressed; its errors are EOFError, OSError, ValueError and InputError."""
    if not compression:
        return packed
    pieces = _gzip(packed) if compression == "gz" else _zstd(packed)
    return io.BufferedReader(_Guarded(pieces, packed, name), _BUFFER)


class _Guarded(io.RawIOBase):
    """A stream of pieces that were decompressed, with an expansion limit."""

    def __init__(self, pieces: Iterator[bytes], packed: IO[bytes], name: str) -> None:
        self._pieces, self._packed, self._name = pieces, packed, name
        self._piece = memoryview(b"")
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._piece and (piece := next(self._pieces, None)) is not None:
            self._piece = memoryview(piece)
            self._size += len(piece)
            if self._size > FREE and self._size > EXPANSION * self._packed.tell():
                raise expands_too_much(self._name)
        count = min(len(buffer), len(self._piece))
        buffer[:count], self._piece = self._piece[:count], self._piece[count:]
        return count


def expands_too_much(name: str) -> InputError:
    """The error for a file that is many times as large when it is read."""
    return InputError(
        f"{name} expands to more than {EXPANSION} times its size: is it a decompression bomb? "
        "Remove it from the inputs, or, if you trust it, give it unpacked"
    )


def _gzip(packed: IO[bytes]) -> Iterator[bytes]:
    """The content of gzip members, one after the other; three times as fast as the standard one."""
    from isal import igzip, igzip_lib

    damaged: Any = igzip_lib.IsalError
    try:
        yield from iter(partial(igzip.GzipFile(fileobj=packed).read, _BUFFER), b"")
    except damaged as error:
        raise ValueError(str(error)) from None


def _zstd(packed: IO[bytes]) -> Iterator[bytes]:
    """The content of zstd frames, one after the other; a frame cut short is an EOFError."""
    import zstandard

    frame: Any = None
    data = b""
    while data := data or packed.read(_CHUNK):
        frame = frame or zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        try:
            yield frame.decompress(data)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None
        data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame:
        raise EOFError("the last frame is not whole")


def lines(stream: IO[bytes], limit: int, size: int = 2**63) -> Iterator[bytes | Unreadable]:
    r"""Give the lines of the next `size` bytes without their end, \n or \r\n."""
    while size > 0 and (line := stream.readline(min(limit + 2, size))):
        size -= len(line)
        if len(line) > limit and not line.endswith(b"\n"):
            size -= pass_line(stream, size)
            yield too_long(line, limit)
        else:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def pass_line(stream: IO[bytes], most: int = 2**63) -> int:
    """Read to the end of the line, at most so many bytes; the bytes read."""
    passed = 0
    while passed < most and (piece := stream.readline(min(_LINE, most - passed))):
        passed += len(piece)
        if piece.endswith(b"\n"):
            break
    return passed
