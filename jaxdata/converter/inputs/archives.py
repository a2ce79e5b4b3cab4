"""The files in a tar archive, read in one pass; nothing is ever unpacked to a path.

Python's `tarfile` ends quietly at a damaged header in the middle of a stream. Here an archive is
read to its end mark or refused, and so is what follows that, as where archives were joined.
"""

import io
from collections.abc import Iterator
from typing import IO, Any

from jaxdata.base.errors import InputError

_BLOCK = 512
_BUFFER = 2**16
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
            yield name, io.BufferedReader(content, _BUFFER) if kind in _FILES else None
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
