"""Compressed files as streams, in constant memory, cut into lines or values of a JSON array."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any, Literal

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.parsing import BYTE_ORDER_MARK, Unreadable, too_long

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


_SCANNED = 2**18
_SPACE = b" \t\r\n"
_OUTSIDE = re.compile(rb'["\[\]{},]')
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


def lines(stream: IO[bytes], limit: int, size: int = 2**63) -> Iterator[bytes | Unreadable]:
    r"""Give the lines of the next `size` bytes without their end, \n or \r\n."""
    while size > 0 and (line := stream.readline(min(limit + 2, size))):
        size -= len(line)
        if len(line) > limit and not line.endswith(b"\n"):
            size -= _past_line(stream, size)
            yield too_long(line, limit)
        else:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _past_line(stream: IO[bytes], size: int) -> int:
    """Read to the end of the line, at most `size` bytes; the bytes read."""
    passed = 0
    while passed < size and (piece := stream.readline(min(_SCANNED, size - passed))):
        passed += len(piece)
        if piece.endswith(b"\n"):
            break
    return passed


def json_values(stream: IO[bytes], limit: int) -> Iterator[bytes | Unreadable]:
    """Give the elements of a JSON array, or JSON objects one after the other, unparsed.

    Brackets and strings are all that is looked at; whether an element is JSON shows when it is
    parsed.

    Raises:
        EOFError: the array does not end.
        ValueError: something follows the array.

    >>> import io
    >>> list(json_values(io.BytesIO(b'[{"a": "]"}, 2]'), 99))
    [b'{"a": "]"}', b' 2']
    """
    return _Scanner(limit).scan(stream)


class _Scanner:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._array: bool | None = None  # known with the first byte that is no space
        self._depth = 0
        self._in_string = self._escaped = self._done = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._count = 0

    def scan(self, stream: IO[bytes]) -> Iterator[bytes | Unreadable]:
        chunk = stream.read(_SCANNED).removeprefix(BYTE_ORDER_MARK)
        while chunk:
            yield from self._chunk(chunk)
            chunk = stream.read(_SCANNED)
        if self._array and not self._done:
            raise EOFError("the JSON array does not end")
        yield from self._close(only_if_full=True)

    def _chunk(self, chunk: bytes) -> Iterator[bytes | Unreadable]:
        position = 0
        if self._array is None:
            rest = chunk.lstrip(_SPACE)
            if not rest:
                return
            self._array = rest.startswith(b"[")
            position = len(chunk) - len(rest) + self._array
            self._depth = int(self._array)
        start = position
        while position < len(chunk):
            if self._done:
                self._check_nothing_follows(chunk[position:])
                return
            if self._in_string:
                position = self._through_string(chunk, position)
                continue
            found = _OUTSIDE.search(chunk, position)
            if not found:
                break
            position = found.end()
            if ends := self._meet(found.group()):
                self._take(chunk[start : position - (ends != b"}")])
                yield from self._close(only_if_full=ends == b"]" and not self._count)
                start = position
        self._take(chunk[start:])

    def _meet(self, what: bytes) -> bytes:
        """Go on past a quote, bracket or comma; return it if it ends a value."""
        top = int(bool(self._array))
        if what == b'"':
            self._in_string = True
        elif what in b"[{":
            self._depth += 1
        elif what in b"]}" and self._depth > top:
            self._depth -= 1
            return b"}" if not self._array and not self._depth else b""
        elif what == b"]" and self._array:
            self._done = True
            return what
        elif what == b"," and self._array and self._depth == top:
            return what
        return b""

    def _through_string(self, chunk: bytes, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        inside = _INSIDE.match(chunk, position)
        assert inside is not None
        position = inside.end()
        if position < len(chunk):
            self._in_string = chunk[position] != ord('"')
            self._escaped = self._in_string  # a backslash that ends the chunk
            position += 1
        return position

    def _take(self, piece: bytes) -> None:
        room = self._limit + 1 - self._size
        if room > 0:
            self._pieces.append(piece[:room])
        self._size += len(piece)

    def _close(self, only_if_full: bool) -> Iterator[bytes | Unreadable]:
        value = b"".join(self._pieces)
        too_much = self._size > self._limit
        self._pieces, self._size = [], 0
        if only_if_full and not value.strip(_SPACE):
            return
        self._count += 1
        yield too_long(value, self._limit) if too_much else value

    def _check_nothing_follows(self, rest: bytes) -> None:
        if rest.strip(_SPACE):
            raise ValueError("something follows the end of the JSON array")
