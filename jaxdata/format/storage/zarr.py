"""One-dimensional zarr3 arrays, so plain that a reader can map their chunk files."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.storage.contract import unwritable

__all__ = ["layout", "write"]

_CHUNK_BYTES = 2**32  # of an array in one file: a reader maps it whole; object stores take 5 GB


def write(kvstore: Any, array: NDArray[Any], context: Any = None) -> str:
    """Write `array` with tensorstore to the root of a KvStore (its spec or URL).

    Returns:
        The sha256 of its values, little-endian, in hex.
    """
    import tensorstore

    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    chunk = max(1, min(len(array), _CHUNK_BYTES // array.itemsize))
    metadata = {
        "shape": [len(array)],
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
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


def layout(metadata: bytes, url: str) -> tuple[int, int, np.dtype[Any]]:
    """(elements, elements a chunk, dtype) of the array at `url` that :func:`write` wrote."""
    try:
        fields = json.loads(metadata)
        chunk = fields["chunk_grid"]["configuration"]["chunk_shape"][0]
        return fields["shape"][0], chunk, np.dtype(fields["data_type"]).newbyteorder("<")
    except (ValueError, LookupError, TypeError) as error:
        raise DatasetError(
            f"{url}/zarr.json is damaged ({error!r}); restore it from a copy, or convert the "
            "source again"
        ) from None
