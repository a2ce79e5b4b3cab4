"""A dataset in an object store, through tensorstore's KvStore."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.format.storage import zarr
from jaxdata.format.storage.contract import Ints, Views, missing, truncated

__all__ = ["RemoteStore"]


class RemoteStore:
    """The objects below a URL (see `Store`)."""

    local = False

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def _kvstore(self) -> Any:
        import tensorstore

        return tensorstore.KvStore.open(f"{self.url}/", context=_context()).result()

    def read(self, name: str) -> bytes | None:
        result = self._kvstore.read(name).result()
        return None if result.state == "missing" else result.value

    def gather(self, names: Sequence[str], file: Ints, start: Ints, stop: Ints) -> Views:
        kvstore = self._kvstore
        ranges = list(zip(file.tolist(), start.tolist(), stop.tolist(), strict=True))
        # All are under way at once.
        asked = [kvstore.read(names[f], byte_range=slice(a, b)) for f, a, b in ranges]
        return Views.of(
            [
                self._value(answer, names[f], b)
                for answer, (f, _, b) in zip(asked, ranges, strict=True)
            ]
        )

    def _value(self, answer: Any, name: str, stop: int) -> bytes:
        try:
            result = answer.result()
        except ValueError as error:
            if "OUT_OF_RANGE" not in str(error):
                raise
            raise truncated(f"{self.url}/{name}", stop) from None
        if result.state == "missing":
            raise missing(f"{self.url}/{name}")
        value: bytes = result.value
        return value

    def pieces(self, name: str) -> Iterator[bytes]:
        data = self.read(name)
        if data is None:
            raise missing(f"{self.url}/{name}")
        yield data

    def write(self, name: str, data: bytes) -> None:
        self._kvstore.write(name, data).result()

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            yield path
            self.write(name, path.read_bytes())

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        while True:
            result = self._kvstore.read(name).result()
            data = change(None if result.state == "missing" else result.value)
            # Compare and swap: an empty generation in the answer means that somebody was faster.
            expected = result.stamp.generation
            if self._kvstore.write(name, data, if_equal=expected).result().generation:
                return

    def list(self, prefix: str = "") -> list[str]:
        keys = (key.decode() for key in self._kvstore.list().result())
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, prefix: str) -> None:
        names = self.list(prefix) if prefix.endswith("/") else [prefix]
        for name in names:
            self._kvstore.write(name, None).result()

    def sweep(self, prefix: str) -> None:
        """Nothing to do: an object appears whole or not at all."""

    def write_array(self, name: str, array: NDArray[Any]) -> str:
        self.delete(f"{name}/")
        return zarr.write(f"{self.url}/{name}/", array, context=_context())

    def read_array(self, name: str) -> NDArray[Any]:
        import tensorstore

        if self.read(f"{name}/zarr.json") is None:
            raise missing(f"{self.url}/{name}")
        spec = {"driver": "zarr3", "kvstore": f"{self.url}/{name}/"}
        opened = tensorstore.open(spec, context=_context()).result()
        return np.asarray(opened.read().result())


_contexts: dict[int, Any] = {}


def _context() -> Any:
    """The tensorstore context of this process: it must not be used across a fork."""
    import tensorstore

    process = os.getpid()
    if process not in _contexts:
        if _contexts:
            raise DatasetError(
                "remote data cannot be read in a forked process: start workers with 'spawn' "
                "(torch: DataLoader(multiprocessing_context='spawn'))"
            )
        _contexts[process] = tensorstore.Context()
    return _contexts[process]
