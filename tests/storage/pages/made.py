"""Pages with a content that their names tell, and caches that are opened as by other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jaxdata.storage.pages.page_cache import PageCache, Wanted

SIZE = 1_000
STORED = SIZE + 12
Open = Callable[..., PageCache]


def content(name: str) -> bytes:
    return (name * SIZE).encode()[:SIZE]


def at(text: str) -> str:
    """What the cache calls a page of a shard, given as `shard/3`."""
    shard, _, number = text.partition("/")
    key, start = hashlib.blake2b(shard.encode(), digest_size=16).hexdigest(), int(number) * SIZE
    return f"{key}/{start}-{start + SIZE}"


def names(count: int) -> list[str]:
    return [at(f"shard/{number}") for number in range(count)]


def wanted(name: str) -> Wanted:
    return Wanted(name, SIZE, lambda: [content(name)])


def unwanted(name: str) -> Wanted:
    return Wanted(name, SIZE, lambda: pytest.fail("it is fetched"))


def add(cache: PageCache, *names: str) -> None:
    for name in names:
        assert cache.fetch(wanted(name))


def here(cache: PageCache, names: list[str]) -> list[str]:
    return [name for name in names if (cache.folder / "pages" / name).exists()]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the cache as another process would, each closed in the end."""
    with ExitStack() as stack:

        def open_cache(most: int = 10**6) -> PageCache:
            cache = PageCache(tmp_path, most)
            stack.callback(lambda: cache._closed or cache.close())
            return cache

        yield open_cache
