"""Read costs counted one by one: every batch of a loader, every range that rows are read from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import jaxdata
from jaxdata.dataset.records import file_offset

Range = tuple[Any, int, int]
"""file, first byte, byte after the last"""


@dataclass
class Counted:
    """Totals of all hosts."""

    gets: int = 0
    bytes: int = 0
    held: int = 0
    first: int = 0


@dataclass
class _Recorder:
    """A store that writes down what is gathered."""

    store: Any
    ranges: list[Range] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def gather(self, names: Any, file: Any, start: Any, stop: Any) -> Any:
        columns = (file.tolist(), start.tolist(), stop.tolist())
        self.ranges += [(names[f], a, b) for f, a, b in zip(*columns, strict=True)]
        return self.store.gather(names, file, start, stop)


class SlowCount:
    """Counts the costs of a mixture of converted sources."""

    def __init__(self, mixed: Any, hosts: int, batch_size: int, page: int, segment: int) -> None:
        self._mixed, self._hosts, self._batch_size = mixed, hosts, batch_size
        self._page, self._segment = page, segment
        for docs in mixed.table.documents:
            list(docs)  # compares shards with the index, once
            docs.store = _Recorder(docs.store)

    def read(self) -> Iterator[tuple[int, int, int, Any, int, Range]]:
        """(step, host, epoch, documents, document, range), of every range of every row."""
        loader = jaxdata.Loader(self._mixed, batch_size=self._batch_size, prefetch=0)
        lengths = [len(rows) for rows in self._mixed.sources.values()]
        for step in range(len(loader)):
            for place, row in enumerate(loader.batch_rows(step).tolist()):
                host = place * self._hosts // self._batch_size
                _, source, rank = self._mixed.table.select(np.array([row]))
                epoch = int(rank[0]) // lengths[int(source[0])]
                for docs, document, span in self._ranges(row):
                    yield step, host, epoch, docs, document, span

    def _ranges(self, row: int) -> Iterator[tuple[Any, int, Range]]:
        found = self._mixed.table.segments(np.array([row]))
        for k in range(len(found.row)):
            docs = self._mixed.table.documents[int(found.source[k])]
            document, start = int(found.document[k]), int(found.start[k])
            left = int(docs.lengths[document]) - start
            docs.store.ranges.clear()
            wanted = (document, start, min(int(found.slots[k]) + 1, left))
            docs.tokens(*(np.array([value]) for value in wanted))
            for span in docs.store.ranges:
                yield docs, document, span

    def count(self, gap: int) -> tuple[Counted, Counted]:
        """By pages, and by exact ranges."""
        pages: dict[Any, tuple[int, int, int]] = {}
        spilled, exact = defaultdict(list), defaultdict(list)
        for step, host, epoch, docs, document, (file, start, stop) in self.read():
            exact[step, host, file].append((start, stop))
            low, high = self._home(docs, document, file)
            for outside in ((start, min(stop, low)), (max(start, high), stop)):
                if outside[0] < outside[1]:
                    spilled[step, host, file].append(outside)
            for page in range(start // self._page, (stop - 1) // self._page + 1):
                inside = max(start, page * self._page) < min(stop, (page + 1) * self._page)
                if inside and low <= page * self._page < high:
                    size = self._bytes(docs, file) - page * self._page
                    first = pages.get((host, epoch, file, page), (step, 0, 0))[0]
                    pages[host, epoch, file, page] = (first, step, min(size, self._page))
        return self._sum(pages, _merged(spilled, gap)), self._sum({}, _merged(exact, gap))

    def _home(self, docs: Any, document: int, file: str) -> tuple[int, int]:
        if not self._segment:
            return 0, self._bytes(docs, file)
        _, stream = docs.index.locate(np.array([document]))
        page = int(file_offset(stream)[0]) // self._segment
        return page * self._segment, (page + 1) * self._segment

    def _bytes(self, docs: Any, file: str) -> int:
        """Up to the end of the last record."""
        before = 0
        for shard in docs.entry.shards:
            after = before + shard.documents
            if shard.name == file:
                starts, sizes = docs.spec.record_spans(docs.lengths[before:after])
                return int(file_offset(starts[-1] + sizes[-1] - 1)) + 1
            before = after
        raise AssertionError(file)

    def _sum(self, pages: dict[Any, Any], ranges: dict[Any, list[int]]) -> Counted:
        sizes = [size for *_, size in pages.values()]
        total = Counted(len(sizes), sum(sizes))
        first: dict[int, int] = defaultdict(int)
        for (step, host, _), lengths in ranges.items():
            total.gets, total.bytes = total.gets + len(lengths), total.bytes + sum(lengths)
            first[host] += sum(lengths) * (step == 0)
        for (host, *_), (begin, _, size) in pages.items():
            first[host] += size * (begin == 0)
        total.first = max(first.values())
        for host in range(self._hosts):
            spans = [span for (h, *_), span in pages.items() if h == host]
            last = max((span[1] for span in spans), default=0)
            for step in range(last + 1):
                total.held = max(total.held, sum(a <= step <= b for a, b, _ in spans))
        return total


def _merged(ranges: dict[Any, list[tuple[int, int]]], gap: int) -> dict[Any, list[int]]:
    """The lengths of ranges that are merged where they lie near."""
    found = {}
    for key, spans in ranges.items():
        merged: list[list[int]] = []
        for start, stop in sorted(spans):
            if merged and start <= merged[-1][1] + gap:
                merged[-1][1] = max(merged[-1][1], stop)
            else:
                merged.append([start, stop])
        found[key] = [stop - start for start, stop in merged]
    return found
