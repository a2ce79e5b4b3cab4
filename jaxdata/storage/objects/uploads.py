"""A file of any size to an object, in parts: tensorstore takes an object whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jaxdata.base.errors import DatasetError, MissingExtra, install_command
from jaxdata.storage.contract import Fence
from jaxdata.storage.objects.bucket import answer, library, open_bucket

_MOST_WHOLE = 2**26
_PART = 2**24  # at least: there are 10,000 at most
_MOST_PARTS = 10_000
_AT_ONCE = 3
_AMAZONS_MOST = 5 * 10**9  # in one request


def upload(url: str, path: Path, fence: Fence | None) -> bool:
    """Write a file as an object, in parts; `fence` is called when only the end is missing.

    Returns:
        Whether it was done. The caller writes a small one whole; without obstore, one of 5 GB too.

    Raises:
        DatasetError: it cannot be written.
    """
    size = path.stat().st_size
    if size <= _MOST_WHOLE or url.startswith("memory:"):
        return False
    try:
        obstore = library()
    except MissingExtra:
        if size <= _AMAZONS_MOST:
            return False
        raise DatasetError(
            f"{url} would have {size:,} bytes, more than the {_AMAZONS_MOST:,} of one request: to "
            f"write it in parts, {install_command('buckets')}"
        ) from None
    store, name = open_bucket(url, writing=True)
    part = max(_PART, -(-size // _MOST_PARTS))

    async def put() -> None:
        parts = _parts(path, part, fence)
        many = {"use_multipart": True, "chunk_size": part, "max_concurrency": _AT_ONCE}
        await obstore.put_async(store, name, parts, **many)

    answer(put, url, done="written")
    return True


def _parts(path: Path, size: int, fence: Fence | None) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(size):
            yield part
    if fence:
        fence()
