"""What changed since a source was made, or begun: its inputs, its settings, or the dataset itself.

Inputs are told by their size, head and tail, and by a hash of the records that units read of them;
settings by the parameters that a source keeps.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from isal import isal_zlib

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.facts import differences
from jaxdata.converter.inputs.files import FilePart, InputFile, ReadSettings, written_at
from jaxdata.converter.inputs.parsing import Raw, TextPiece, Unreadable, in_runs, plain_value
from jaxdata.converter.inputs.reading import cut, record_runs
from jaxdata.converter.parameters import Parameters, default_of
from jaxdata.dataset.archive_members import Member
from jaxdata.dataset.history import InputHashes, hashes_name, read_hashes
from jaxdata.dataset.lease import leased
from jaxdata.dataset.manifest import Manifest, SourceEntry
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


_FREELY_ADDED = {"text_key", "text_joiner", "transform", "transform_digest"}
_FREELY_ADDED |= {"unit_bytes", "max_record_bytes", "piece_bytes"}
_MAKERS = {"library", "hashing"}
_HASHES = {"exact_hash", "minhash"}
_ABOUT_HASHES = "--dedup and --minhash keep hashes; jaxdata dedup finds copies without them, too"


def check_dataset(manifest: Manifest, wanted: Parameters, url: str) -> None:
    """Raise InputError unless a source with these parameters can join the dataset."""
    if changes := _shared_changes(manifest, wanted):
        raise InputError(
            f"{url}: all sources of a dataset share one tokenizer and record size: "
            f"{'; '.join(changes)}. Use the dataset's, or another --output"
        )


def check_finished(manifest: Manifest, source: str, wanted: Parameters, url: str) -> None:
    """Raise InputError if a finished source has other inputs or parameters."""
    entry = manifest.sources[source]
    changes = [_changes_since(entry.at(n), wanted) for n in range(len(entry.generations) + 1)]
    if all(changes):
        added = len(changes[-1]) == 1 and set(wanted.inputs) > set(entry.inputs)
        remedy = "Add these files with --append, or use" if added else "Use"
        raise InputError(
            f"{url} already has {source} with different "
            f"{'inputs' if added else 'settings'}: {'; '.join(changes[-1])}. "
            f"{remedy} another --source or --output"
        )


def check_unchanged(
    manifest: Manifest, outputs: Iterable[str], base: Mapping[str, SourceEntry], url: str
) -> None:
    """Raise DatasetError if sources are not what a conversion knows them as: files are replaced."""
    for name in outputs:
        if manifest.sources.get(name) != base.get(name):
            raise DatasetError(
                f"{url}: {name} was changed by another process while documents were added to "
                "it; run the same command again"
            )


def _changes_since(entry: SourceEntry, wanted: Parameters) -> list[str]:
    was = dict(entry.parameters)
    digests = dict(zip(entry.inputs, was.pop("input_digests", []), strict=False))
    inputs = list(_input_changes(digests, wanted.inputs))
    return [*_own_changes(was, wanted.own(), other_inputs=bool(inputs)), *inputs]


def check_addition(source: str, entry: SourceEntry, wanted: Parameters) -> None:
    """Raise InputError unless documents with these parameters can be appended to a source."""
    was = {k: v for k, v in entry.parameters.items() if k not in _FREELY_ADDED | {"input_digests"}}
    now = {k: v for k, v in wanted.own().items() if k not in _FREELY_ADDED}
    if changes := [*_own_changes(was, now), *_library_changes(was, now)]:
        raise InputError(
            f"--append: {source} was made with different settings: {'; '.join(changes)}. Use the "
            "same settings, or another --source"
        )


def unfinished_changes(begun: bytes, wanted: Parameters) -> list[str]:
    """Name what differs from an unfinished conversion; raises ValueError if it is unreadable."""
    was = Parameters.model_validate_json(begun)
    inputs = list(_input_changes(was.inputs, wanted.inputs))
    changes = [*_own_changes(was.own(), wanted.own(), other_inputs=bool(inputs))]
    changes += _library_changes(was.own(), wanted.own())
    changes += _shared_changes(was, wanted)
    if was.first_file != wanted.first_file:
        changes.append(
            f"--append: the source had {was.first_file} input files, has {wanted.first_file}"
        )
    return [*changes, *inputs]


def _own_changes(was: dict[str, Any], now: dict[str, Any], other_inputs: bool = False) -> list[str]:
    """Name the parameters that differ; a missing one has its default.

    Other inputs change the size of units, which is not worth naming then. The library of the
    tokenizer may be another, and what makes hashes, if nothing is to be encoded.
    """
    tasks = was.get("task", "lm"), now.get("task", "lm")
    if tasks[0] != tasks[1]:
        return [f"task was {tasks[0]!r}, is {tasks[1]!r}"]
    names = (was.keys() | now.keys()) - ({"unit_bytes"} if other_inputs else set()) - _MAKERS
    usual = {name: default_of(name, tasks[0]) for name in names}
    before, after = ({name: given.get(name, usual[name]) for name in names} for given in (was, now))
    changes = differences(before, after)
    return [*changes.values(), *([_ABOUT_HASHES] if changes.keys() & _HASHES else [])]


def _library_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Tell of a library that could give other ids; our own tokenizers have none."""
    before, after = was.get("library"), now.get("library")
    if before and after and before != after:
        name, version = before.partition(",")[0].split(" ")
        yield (
            f"the tokenizer's library was {before}, is {after}, which could give other ids "
            f"(pip install '{name}=={version}' brings the first one back)"
        )
    before, after = was.get("hashing"), now.get("hashing")
    if before and after and before != after:
        yield f"hashes of documents were made by {before}, are by {after}"


def _shared_changes(was: Manifest | Parameters, now: Parameters) -> list[str]:
    """Name what differs in what all sources of a dataset share."""
    names = {"kind", "vocab_size", "eod_id", "bos_id", "pad_id"}
    before, after = was.tokenizer.model_dump(include=names), now.tokenizer.model_dump(include=names)
    changes = [f"tokenizer {change}" for change in differences(before, after).values()]
    if was.tokenizer.files != now.tokenizer.files and not changes:
        other = f"is {now.tokenizer.name!r} with other content"
        changes = [f"tokenizer was {was.tokenizer.name!r}, {other}"]
    records = [{"record_tokens": one.record_tokens} for one in (was, now)]
    return [*changes, *differences(records[0], records[1]).values()]


def _input_changes(was: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """Name the first input that is missing, new or changed, of each kind."""
    gone, new = sorted(was.keys() - now.keys()), sorted(now.keys() - was.keys())
    changed = sorted(name for name in was.keys() & now.keys() if was[name] != now[name])
    for names, fate in ((gone, "is missing"), (new, "is new"), (changed, "has other content")):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            yield f"input {names[0]!r}{more} {fate}"
