"""Compressed files as streams: gzip and zstd, in constant memory, bombs rejected."""

from __future__ import annotations

import io
import zlib
from typing import IO, Any, Literal

from jaxdata.errors import InputError

Compression = Literal["", "gz", "zst"]
EXPANSION = 200
"""Expansion limit of a large compressed file, as a multiple of its size."""

FREE = 2**28
"""Bytes that any file may unpack to."""
_BUFFER = 2**18
_CHUNK = 2**11  # bytes unpacked at a time: zstd may make 2**26 of them
_WINDOW = 2**31  # the largest that `zstd --long=31` asks for
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


def unpacked(
    packed: IO[bytes], compression: Compression, name: str, expansion: int = EXPANSION
) -> io.BufferedReader:
    """Read a file, decompressed; its errors are EOFError, OSError, ValueError and InputError.

    `packed` knows its place; `expansion` is the expansion limit, as a multiple of its size.
    """
    if not compression:
        return io.BufferedReader(_Plain(packed), _BUFFER)
    source = _Gzip(packed) if compression == "gz" else _Zstd(packed)
    return io.BufferedReader(_Guarded(source, packed, name, expansion), _BUFFER)


class _Plain(io.RawIOBase):
    """A file as a raw stream: BufferedReader wants one."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Guarded(_Plain):
    """A decompressed stream with an expansion limit."""

    def __init__(self, source: Any, packed: IO[bytes], name: str, expansion: int) -> None:
        super().__init__(source)
        self._packed, self._name, self._expansion = packed, name, expansion
        self._size = 0

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        self._size += count
        if self._size > FREE and self._size > self._expansion * self._packed.tell():
            raise expands_too_much(self._name, self._expansion)
        return count


def expands_too_much(name: str, expansion: int) -> InputError:
    """The error for a file that is many times as large when it is read."""
    return InputError(
        f"{name} expands to more than {expansion} times its size: is it a decompression bomb? "
        "Remove it from the inputs, or, if you trust it, raise --max-expansion"
    )


class _Gzip:
    """The content of gzip members, one after the other; three times as fast as the standard one."""

    def __init__(self, packed: IO[bytes]) -> None:
        from isal import igzip
        from isal.igzip_lib import IsalError

        self._file: IO[bytes] = igzip.GzipFile(fileobj=packed)
        self._error: Any = IsalError

    def read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except self._error as error:
            raise ValueError(str(error)) from None


class _Zstd:
    """The content of zstd frames, one after the other; a frame cut short is an EOFError."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._frame: Any = None
        self._unused = b""
        self._ready = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._ready and self._fill():
            pass
        piece = self._ready[:size]
        self._ready = self._ready[len(piece) :]
        return bytes(piece)

    def _fill(self) -> bool:
        import zstandard

        data = self._unused or self._packed.read(_CHUNK)
        if not data:
            if self._frame is not None:
                raise EOFError("the last frame is not whole")
            return False
        if self._frame is None:
            self._frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(data))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None
        self._unused = b""
        if self._frame.eof:
            self._unused, self._frame = self._frame.unused_data, None
        return True
