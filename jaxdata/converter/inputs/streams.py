"""Compressed files and archives as streams, in constant memory, and lines of them.

The files in a tar archive are read in one pass; nothing is ever unpacked to a path. Python's
`tarfile` ends quietly at a damaged header in the middle of a stream. Here an archive is read to its
end mark or refused, and so is what follows that, as where archives were joined.
"""

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


_BLOCK = 512
_ARCHIVE_BUFFER = 2**16
_EXTENSION = 2**20  # bytes that a long name or a pax header may have
_FILES, _FOLDER, _HARD_LINK, _LINKS = b"0\0007", b"5", b"1", b"12"
_SPARSE = b"S"
_REFUSED = {b"3": "a device", b"4": "a device", b"6": "a named pipe", _SPARSE: "a sparse file"}


def is_archive(head: bytes) -> bool:
    """Tell whether a file that begins like this is a tar archive."""
    return head[257:262] == b"ustar" and _checked(head[:_BLOCK])


def entries(stream: IO[bytes], archive: str) -> Iterator[tuple[str, io.BufferedReader | None]]:
    """Give the files of a tar archive in order: the name, and the content until the next.

    A link has no content. Folders are passed over.

    Raises:
        InputError: it contains a device, or a path that escapes it.
        EOFError, ValueError: it is damaged.
    """
    said: dict[str, str] = {}
    while header := _header(stream):
        if not _checked(header):
            raise ValueError("a header's checksum is wrong")
        kind = header[156:157]
        size = int(said.get("size", 0)) or _number(header[124:136])
        if size < 0:
            raise ValueError("a size is negative")
        if kind in b"LKxg":
            if size > _EXTENSION:
                raise ValueError(f"a header has {size:,} bytes")
            said |= _extension(kind, _exactly(stream, size + -size % _BLOCK)[:size])
            continue
        name = _text(header[:100])
        if header[257:263] == b"ustar\0" and (prefix := _text(header[345:500])):
            name = f"{prefix}/{name}"
        name = said.get("path") or name
        _check(name, _SPARSE if "sparse" in said else kind, archive)
        said = {}
        # A hard link may say the size of what it leads to, as GNU tar knows too.
        content = _Content(stream, 0 if kind == _HARD_LINK else size)
        if kind != _FOLDER:
            yield name, io.BufferedReader(content, _ARCHIVE_BUFFER) if kind in _FILES else None
        content.skip()
        _exactly(stream, -content.size % _BLOCK)


def _header(stream: IO[bytes]) -> bytes:
    """The next block that is not empty; nothing at the end, which has an empty one before it."""
    header = _exactly(stream, _BLOCK)
    while header and not any(header):
        header = stream.read(_BLOCK)
    return header


def _check(name: str, kind: bytes, archive: str) -> None:
    if kind not in _FILES + _FOLDER + _LINKS:
        what = _REFUSED.get(kind, "a thing of unknown kind")
        raise InputError(
            f"{archive} contains {name!r}, {what}; expected plain files only: pack it without"
        )
    if name.startswith("/") or ".." in name.split("/"):
        raise InputError(
            f"{archive} contains {name!r}, a path that escapes the archive: pack it with relative "
            "paths"
        )


def _extension(kind: bytes, data: bytes) -> dict[str, str]:
    """What a header that extends the next one says of its path, size and kind."""
    if kind == b"L":
        return {"path": _text(data)}
    said = {}
    while kind == b"x" and data:
        length, _, rest = data.partition(b" ")
        end = int(length) - len(length) - 1
        if not 0 < end <= len(rest):
            raise ValueError("a pax header is damaged")
        key, _, value = rest[: end - 1].partition(b"=")
        name = "sparse" if key.startswith(b"GNU.sparse.") else _text(key)
        said[name] = _text(value)
        data = rest[end:]
    return {key: said[key] for key in ("path", "size", "sparse") if key in said}


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", "backslashreplace")


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU: binary where octal digits do not suffice
        return int.from_bytes(field[1:], "big")
    return int(field.split(b"\0")[0].strip() or b"0", 8)


def _checked(header: bytes) -> bool:
    if len(header) < _BLOCK:
        return False
    try:
        return sum(header[:148]) + 8 * 32 + sum(header[156:]) == _number(header[148:156])
    except ValueError:
        return False


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the archive has no end mark")
    return data


class _Content(io.RawIOBase):
    """The next bytes of a stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self.size, self._left = stream, size, size

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size - self._left

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(min(len(buffer), self._left))
        if self._left and not data:
            raise EOFError("a file in the archive is cut short")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def skip(self) -> None:
        piece = bytearray(min(_EXTENSION, self._left))
        while self._left:
            self.readinto(piece)
