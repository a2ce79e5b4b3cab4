"""One-dimensional zarr3 arrays, so plain that a reader can map their chunk files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.storage.contract import Store, missing, unwritable

__all__ = ["Layout", "array_pieces", "layout", "write"]

_CHUNK_BYTES = 2**32  # of an array in one file: a reader maps it whole; object stores take 5 GB


def write(kvstore: Any, array: NDArray[Any], context: Any = None) -> str:
    """Write `array` with tensorstore to the root of a KvStore (its spec or URL).

    Returns:
        The sha256 of its values, little-endian, in hex.
    """
    import tensorstore

    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    chunk = max(1, min(len(array), _CHUNK_BYTES // array.itemsize))
    metadata = _metadata(len(array), chunk, array.dtype.name)
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
    # Chunks that hold only zeros are files like the others: a reader maps every chunk.
    spec["store_data_equal_to_fill_value"] = True
    try:
        opened = tensorstore.open(spec, create=True, delete_existing=True, context=context)
        writing = opened.result().write(little)
        content = hashlib.sha256(little.data)  # meanwhile
        writing.result()
    except (ValueError, MemoryError, RuntimeError) as error:
        where = kvstore if isinstance(kvstore, str) else kvstore["path"]
        raise unwritable(where, error) from error
    return content.hexdigest()


class Layout(NamedTuple):
    """How an array is stored."""

    size: int
    """entries"""
    dtype: np.dtype[Any]
    chunks: list[str]
    """names of the files"""
    chunk_bytes: int
    """of each; behind the last entry the last has others of no meaning"""


def layout(store: Store, name: str) -> Layout:
    """How the array of a name is stored.

    Raises:
        DatasetError: it is missing, or not stored as :func:`write` does it.
    """
    data = store.read(f"{name}/zarr.json")
    if data is None:
        raise missing(f"{store.url}/{name}")
    try:
        fields = json.loads(data)
        size = fields["shape"][0]
        chunk = fields["chunk_grid"]["configuration"]["chunk_shape"][0]
        dtype = np.dtype(fields["data_type"]).newbyteorder("<")
        for key, expected in _metadata(size, chunk, dtype.name).items():
            if fields[key] != expected:
                raise ValueError(f"{key} is {fields[key]!r}, not {expected!r}")
        if size < 0 or chunk < 1:
            raise ValueError(f"{size} entries in chunks of {chunk}")
        numbers = range(-(-size // chunk))
    except (ValueError, LookupError, TypeError) as error:
        raise DatasetError(
            f"{store.url}/{name}/zarr.json is damaged ({error!r}); restore it from a copy, or "
            "convert the source again"
        ) from None
    return Layout(size, dtype, [f"{name}/c/{n}" for n in numbers], chunk * dtype.itemsize)


def array_pieces(store: Store, name: str) -> tuple[Layout, Iterator[memoryview | bytes]]:
    """The values of an array as they are stored, in pieces that stay valid until the next one.

    Raises:
        DatasetError: something of it is missing, has another size, or is not as we write arrays;
            of chunks, when the pieces come to them.
    """
    found = layout(store, name)
    return found, _pieces(store, found)


def _pieces(store: Store, array: Layout) -> Iterator[memoryview | bytes]:
    left = array.size * array.dtype.itemsize
    for chunk in array.chunks:
        size = 0
        for piece in store.pieces(chunk):
            size += len(piece)
            yield piece[: max(left, 0)]
            left -= len(piece)
        if size != array.chunk_bytes:
            raise DatasetError(
                f"{store.url}/{chunk} has {size:,} bytes, not {array.chunk_bytes:,}: restore it "
                "from a copy, or convert the source again"
            )


def _metadata(size: int, chunk: int, dtype: str) -> dict[str, Any]:
    """What zarr.json says; of single bytes the order is not told."""
    order = {} if np.dtype(dtype).itemsize == 1 else {"configuration": {"endian": "little"}}
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
