"""One-dimensional zarr3 arrays, plain enough for readers to map their chunk files."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.storage.contract import ANY, Kind, Store, missing

_CHUNK_BYTES = 2**32  # a chunk is one file, which readers map whole; object stores take 5 GB
_MOST_CHUNKS = 2**16
_MOST_BYTES = 2**56
_DESCRIPTION_BYTES = 2**16
_DTYPES = {np.dtype(code).name: np.dtype(f"<{code}") for code in np.typecodes["AllInteger"] + "efd"}
_RESTORE = "restore it from a copy, or convert the source again"


def write(store: Store, name: str, array: NDArray[Any]) -> str:
    """Write an array, little-endian, uncompressed, in large chunks; its description last.

    Returns:
        The sha256 of its values as stored, in hex; it does not depend on the chunks.
    """
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    data = little.view(np.uint8).data
    chunk = max(1, min(len(array), _CHUNK_BYTES // array.itemsize))
    fields = _metadata(len(array), chunk, array.dtype.name)
    described = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    if store.read(f"{name}/zarr.json") != described:
        # Another array; one as long is overwritten chunk by chunk, so that one that two processes
        # write to a bucket, who both have it right, is never missing.
        store.delete(f"{name}/")
    step = chunk * array.itemsize
    for number, start in enumerate(range(0, len(data), step)):
        part = data[start : start + step]
        # A reader maps every chunk: the last is as long as the others.
        store.write(
            f"{name}/c/{number}", part if len(part) == step else bytes(part).ljust(step, b"\0")
        )
    store.write(f"{name}/zarr.json", described)
    return hashlib.sha256(data).hexdigest()


class StoredArray(NamedTuple):
    """How an array is stored."""

    size: int
    """entries"""
    dtype: np.dtype[Any]
    chunks: list[str]
    """names of the files"""
    chunk_bytes: int
    """of each; the last is padded beyond the last entry"""


def describe(store: Store, name: str, kind: Kind = ANY) -> StoredArray:
    """How an array is stored; no chunk is opened.

    Raises:
        DatasetError: it is missing, not stored as :func:`write` stores arrays, or not of this kind.
    """
    dtype, size = kind
    url = f"{store.url}/{name}"
    data = store.read(f"{name}/zarr.json", _DESCRIPTION_BYTES)
    if data is None:
        raise missing(url)
    try:
        stored = _decode(data, name)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{url}/zarr.json is damaged ({error!r}); {_RESTORE}") from None
    if dtype is not None and stored.dtype != dtype:
        raise DatasetError(f"{url} is of {stored.dtype.name}, not {dtype.__name__}: {_RESTORE}")
    if size is not None and stored.size != size:
        raise DatasetError(f"{url} has {stored.size:,} entries, not {size:,}: {_RESTORE}")
    return stored


def _decode(data: bytes, name: str) -> StoredArray:
    fields = json.loads(data)
    (size,), dtype = fields["shape"], _DTYPES[fields["data_type"]]
    (chunk,) = fields["chunk_grid"]["configuration"]["chunk_shape"]
    for key, expected in _metadata(size, chunk, fields["data_type"]).items():
        if fields[key] != expected:
            raise ValueError(f"{key} is {fields[key]!r}, not {expected!r}")
    possible = 0 <= size < _MOST_BYTES and 1 <= chunk <= max(size, 1) <= chunk * _MOST_CHUNKS
    if not possible or type(size) is not int:
        raise ValueError(f"{size} entries in chunks of {chunk}")
    chunks = [f"{name}/c/{number}" for number in range(-(-size // chunk))]
    return StoredArray(size, dtype, chunks, chunk * dtype.itemsize)


def scan_array(store: Store, name: str, kind: Kind = ANY) -> Iterator[memoryview | bytes]:
    """The values of an array as stored, in buffers; each is valid until the next one.

    Raises:
        DatasetError: a file of it is missing, has the wrong size, or it is not as `describe` wants
            it.
    """
    array = describe(store, name, kind)
    left, expected = array.size * array.dtype.itemsize, array.chunk_bytes
    for chunk in array.chunks:
        read = 0
        for buffer in store.scan(chunk):
            read += len(buffer)
            if read > expected:
                break
            yield buffer[: max(left, 0)]
            left -= len(buffer)
        if read != expected:
            has = f"{read:,} bytes, not" if read < expected else "more than"
            raise DatasetError(f"{store.url}/{chunk} has {has} {expected:,} bytes: {_RESTORE}")


def _metadata(size: int, chunk: int, dtype: str) -> dict[str, Any]:
    """The content of zarr.json; byte order is omitted for one-byte types."""
    order = {} if _DTYPES[dtype].itemsize == 1 else {"configuration": {"endian": "little"}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [size],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes"} | order],
        "fill_value": 0,
    }
