"""Whether inputs that a source was made from are still what they were."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from jaxdata.converter.inputs.content import content_of, joined_content
from jaxdata.converter.inputs.cutting import cut
from jaxdata.converter.inputs.identity import written_at
from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.inputs.units import ReadSettings
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.input_hashes import InputHashes, hashes_name, read_hashes
from jaxdata.format.lease import leased
from jaxdata.format.manifest import SourceEntry
from jaxdata.format.storage import Store

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
