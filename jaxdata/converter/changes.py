"""Changed inputs: hashes of what units read, compared with what a source was made from."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

import orjson
from isal import isal_zlib

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.converter.inputs.files import InputFile, written_at
from jaxdata.converter.inputs.parsing import Raw, TextPiece, Unreadable, in_runs, plain_value
from jaxdata.converter.inputs.reading import cut, record_runs
from jaxdata.converter.inputs.units import FilePart, ReadSettings
from jaxdata.dataset.archive_members import Member
from jaxdata.dataset.history import InputHashes, hashes_name, read_hashes
from jaxdata.dataset.lease import leased
from jaxdata.dataset.manifest import SourceEntry
from jaxdata.storage import Store

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


_log = logging.getLogger("jaxdata")


def times_made(sources: Iterable[SourceEntry]) -> int:
    """How often sources that are made together were made, or files appended to them."""
    return max((len(entry.generations) + 1 for entry in sources), default=0)


def check_known(
    store: Store,
    folder: str,
    sources: dict[str, SourceEntry],
    files: Sequence[InputFile],
    *,
    every: bool,
    expansion: int,
) -> None:
    """Raise InputError if a file that was converted holds other records now.

    Args:
        store: the dataset.
        folder: the folder of the conversion.
        sources: what was made of the files, and perhaps of others.
        files: inputs; those with the digest of one that was converted are looked at.
        every: read all of them again; else those that may have changed since.
        expansion: as in `ReadSettings`.
    """
    longest = max(sources.values(), key=lambda entry: len(entry.inputs))
    names = dict(zip(longest.parameters["input_digests"], longest.inputs, strict=True))
    known = {names[file.digest]: file for file in files if file.digest in names}
    for times in range(times_made(sources.values())):
        name = hashes_name(folder, times)
        if not (hashes := read_hashes(store, name)):
            continue
        mine = {each: known.pop(each) for each in hashes.contents.keys() & known.keys()}
        since = None if every else store.written_at(name)
        again = {each: file for each, file in mine.items() if every or _touched(file, since)}
        if again:
            _compare(store, hashes, again, expansion)
            _renew(store, folder, name, hashes)
    if every and known:
        raise InputError(
            f"--verify-inputs: {store.url}/{folder} has no hash of {next(iter(known))!r}, as an "
            "earlier jaxdata converted it. To compare, convert it into another --output"
        )


def _renew(store: Store, folder: str, name: str, hashes: InputHashes) -> None:
    """Write hashes again, to be as new as what was compared, unless another process is at work."""
    with (
        suppress(OSError, DatasetError),  # it may only be read, or is held
        leased(store, [folder]) as lease,
    ):
        lease.fenced(store).write(name, hashes.encode())


def _touched(file: InputFile, since: int | None) -> bool:
    """Tell whether a file may have changed since a time; None is unknown."""
    if since is None:
        return False
    return written_at(file) >= since


def _compare(
    store: Store, hashes: InputHashes, files: dict[str, InputFile], expansion: int
) -> None:
    """Read files again, and raise InputError for the first that differs from its hash."""
    size = sum(file.size for file in files.values()) / 1e6
    _log.warning("reading %d known inputs again (%.0f MB): they may have changed", len(files), size)
    columns = None if hashes.columns is None else tuple(hashes.columns)
    reading = ReadSettings(
        columns,
        hashes.record_bytes,
        expansion,
        hashes.piece_bytes,
        joined=hashes.joined,
        arrays=hashes.arrays,
    )
    for name, file in sorted(files.items()):
        reads = (read for unit in cut([file], reading, hashes.unit_bytes) for read in unit.reads)
        content = joined_content("".join(content_of(*read, reading) for read in reads))
        if content != hashes.contents[name]:
            raise InputError(
                f"input {file.name!r} changed since it was converted, though not in size, head "
                f"and tail: {store.url} has its documents of before. Convert it into another "
                "--source or --output"
            )
