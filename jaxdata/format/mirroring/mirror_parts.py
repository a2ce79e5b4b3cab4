"""The parts of a dataset that are copied, each compared with its checksum while it is copied."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from jaxdata.errors import DatasetError
from jaxdata.format.cache import CACHED_ARRAYS
from jaxdata.format.checksums import ends_with_checksum
from jaxdata.format.index import SourceIndex
from jaxdata.format.input_hashes import is_hashes_name
from jaxdata.format.manifest import Manifest
from jaxdata.format.storage import Store, array_files
from jaxdata.format.verify.damage import (
    Damage,
    damage_of_array,
    damage_of_cached,
    damage_of_file,
    damage_of_hashes,
)

_Buffer = memoryview | bytes


@dataclass(frozen=True)
class Part:
    """A file, or the files of a column."""

    name: str
    checksum: str
    """what the manifest says; "" where a file carries its own, or an earlier jaxdata wrote none"""
    size: int
    """bytes, as far as the manifest says"""
    copy: Callable[[Store, Store], int]
    """copies it; returns bytes"""
    damage: Callable[[Store], list[Damage]]
    """what is wrong with a copy; empty if it is whole"""


def parts(store: Store, manifest: Manifest) -> Iterator[Part]:
    """Everything but the manifest, each once; shards last."""
    for name, sha256 in (manifest.tokenizer.checksums | manifest.files).items():
        yield _file(name, sha256, None)
    for name in store.list():
        if name.startswith("plans/") and name.endswith(CACHED_ARRAYS):
            yield Part(name, "", 0, _copy_sealed(name), partial(damage_of_cached, name=name))
        elif is_hashes_name(name) and name.rpartition("/")[0] in manifest.sources:
            yield Part(name, "", 0, _copy_plain(name), partial(damage_of_hashes, name=name))
    seen: set[str] = set()
    for name, entry in manifest.sources.items():
        for generation in range(len(entry.generations) + 1):
            index = SourceIndex(store, name, entry.at(generation), manifest.record_spec(name))
            yield from (_column(index, column) for column in index.columns)
    for entry in manifest.sources.values():
        for shard in entry.all_shards:
            if shard.name not in seen:
                yield _file(shard.name, shard.sha256, shard.bytes)
            seen.add(shard.name)


def _file(name: str, sha256: str, size: int | None) -> Part:
    def copy(source: Store, target: Store) -> int:
        content = hashlib.sha256()
        copied = 0

        def buffers() -> Iterator[_Buffer]:
            nonlocal copied
            for buffer in source.scan(name, size):
                content.update(buffer)
                copied += len(buffer)
                yield buffer
            if content.hexdigest() != sha256 or (size is not None and copied != size):
                raise not_as_written(source, name)

        _write(target, name, buffers())
        return copied

    def damage(target: Store) -> list[Damage]:
        return damage_of_file(target, name, sha256, size)

    return Part(name, sha256, size or 0, copy, damage)


def _column(index: SourceIndex, column: str) -> Part:
    name, (dtype, size) = index.file(column), index.columns[column]
    sha256 = index.entry.checksums.get(column)

    def copy(source: Store, target: Store) -> int:
        content, copied = hashlib.sha256(), 0

        def whole(buffers: Iterator[_Buffer]) -> Iterator[_Buffer]:
            yield from buffers
            if sha256 not in (None, content.hexdigest()):
                raise not_as_written(source, name)

        for file, buffers, is_last in array_files(source, name, content):
            copied += _write(target, file, whole(buffers) if is_last else buffers)
        return copied + _copy_plain(f"{name}/zarr.json")(source, target)

    def damage(target: Store) -> list[Damage]:
        return damage_of_array(target, name, sha256, dtype, size)

    return Part(name, sha256 or "", 0, copy, damage)


def _copy_plain(name: str) -> Callable[[Store, Store], int]:
    def copy(source: Store, target: Store) -> int:
        return _write(target, name, source.scan(name))

    return copy


def _copy_sealed(name: str) -> Callable[[Store, Store], int]:
    """Copy a file that ends with its checksum; a damaged one is left out, as it is made again."""

    def copy(source: Store, target: Store) -> int:
        if not ends_with_checksum(source.scan(name)):
            return 0
        return _write(target, name, source.scan(name))

    return copy


def _write(target: Store, name: str, buffers: Iterable[_Buffer]) -> int:
    """Publish a file whole, or not at all if the buffers end with an error."""
    with target.create(name) as path, path.open("wb") as file:
        return sum(file.write(buffer) for buffer in buffers)


def not_as_written(source: Store, name: str) -> DatasetError:
    """The error for a part whose checksum is another."""
    return DatasetError(
        f"{source.url}/{name} is not what was written: its checksum is another. Restore it from a "
        f"copy; jaxdata verify {source.url} names all that is damaged"
    )
