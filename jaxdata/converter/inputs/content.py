"""What a unit read, as a hash: how a changed input is noticed.

The hash is over raw records, as they come to be parsed: it depends neither on where a file lies nor
on how it is compressed. Most files never have to be read again for it: their stamp is unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import orjson
from isal import isal_zlib

from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.inputs.raw_records import Raw, TextPiece, Unreadable, in_runs, plain_value
from jaxdata.converter.inputs.readers import record_runs
from jaxdata.converter.inputs.units import FilePart, ReadSettings
from jaxdata.format.archive_members import Member

_DIGITS = 16


class ContentHash:
    """64 bits over records in their order: a CRC-32 and an Adler-32.

    Both together cost a hundredth of the fastest tokenizer's time (a cryptographic hash, a tenth
    where the processor has no instructions for it), and they need not resist an attacker: who can
    write the inputs has other ways.
    """

    def __init__(self) -> None:
        self._crc, self._adler = 0, 1

    def _update(self, data: bytes) -> None:
        self._crc = isal_zlib.crc32(data, self._crc)
        self._adler = isal_zlib.adler32(data, self._adler)

    def begin(self, member: Member | None) -> None:
        """Go on with a file of an archive."""
        if member:
            self._update(repr(tuple(member)).encode())

    def add(self, run: Sequence[Raw]) -> None:
        """Take some records; runs of the same records have to be the same."""
        self._update(b"%d\n" % len(run))
        self._update(_encoded(run))

    def hexdigest(self) -> str:
        """16 hex digits."""
        return f"{self._crc:08x}{self._adler:08x}"


def content_of(file: InputFile, part: FilePart, settings: ReadSettings) -> str:
    """Read a part of a file, and return its hash."""
    content = ContentHash()
    for member, records in record_runs(file, part, settings):
        content.begin(member)
        for run, _ in in_runs(records):
            content.add(run)
    return content.hexdigest()


def joined_content(contents: str) -> str:
    """One hash of 16 digits for those of the parts of a file, end to end."""
    several = len(contents) > _DIGITS
    return hashlib.sha256(contents.encode()).hexdigest()[:_DIGITS] if several else contents


def _encoded(run: Sequence[Raw]) -> bytes:
    kinds = set(map(type, run))
    if kinds == {bytes}:
        return b"\n".join(run)  # type: ignore[arg-type]
    if kinds == {dict}:
        return _rows(run)
    return b"\n".join(map(_encoded_one, run))


def _encoded_one(record: Raw) -> bytes:
    if isinstance(record, TextPiece):
        return b"%d%d" % (record.begins, record.ends) + record.data
    if isinstance(record, Unreadable):
        return record.reason.encode() + (record.raw or b"")
    return record if isinstance(record, bytes) else _rows([record])


def _rows(rows: Sequence[Raw]) -> bytes:
    try:
        return orjson.dumps(rows, default=plain_value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # numbers or characters that it does not take
        return json.dumps(rows, default=plain_value).encode()
