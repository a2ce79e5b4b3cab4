"""The shards of one unit: one for each source it feeds, opened when a document comes for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.hashing import Hashes
from jaxdata.converter.hashes import DocumentHashes
from jaxdata.converter.inputs.files import Unit
from jaxdata.converter.job import Job
from jaxdata.converter.receipts import OutputReceipt
from jaxdata.converter.statistics import Document, Streams, count_documents, count_tokens, sizes_of
from jaxdata.converter.tasks.base import Encoded, Task
from jaxdata.dataset.shards import ShardWriter

_Group = tuple[str, Sequence[Document], Streams]


class Outputs:
    """Write documents to the shards of a unit; they are published when `finish` ends well."""

    def __init__(
        self,
        job: Job,
        task: Task,
        unit: Unit,
        unknown_id: int | None,
        hashes: DocumentHashes | None,
    ) -> None:
        self._job, self._task, self._unit = job, task, unit
        self._unknown_id, self._hashes = unknown_id, hashes
        self._store = job.store()
        self._open: dict[str, _Shards] = {}
        self._unfinished = ExitStack()

    def add(self, documents: Sequence[Document], encoded: Streams) -> None:
        """Append documents in order, each to one source for each stream."""
        for split, mine, own in self._by_split(documents, encoded):
            for place, stream in enumerate(self._task.streams):
                output = self._job.output(split, stream)
                if output not in self._open:
                    self._open[output] = self._new(output)
                share = self._share(mine, stream) if len(self._task.streams) > 1 else mine
                hashes: Mapping[str, Hashes] = {}
                if self._hashes and not place:  # those of all streams, beside the first
                    hashes = self._hashes([one.content for one in mine], own)
                self._open[output].add(share, [one[place] for one in own], hashes)

    def _by_split(self, documents: Sequence[Document], encoded: Streams) -> Iterator[_Group]:
        """The documents that go to each split."""
        names = [document.split for document in documents]
        for split in {*names}:
            if len(self._job.splits) == 1:
                yield split, documents, encoded
            else:
                chosen = [number for number, name in enumerate(names) if name == split]
                yield split, [documents[n] for n in chosen], [encoded[n] for n in chosen]

    def _share(self, documents: Sequence[Document], stream: str) -> list[Document]:
        """Documents with the sizes of the texts that a stream gets."""
        share = []
        for document in documents:
            size, text_bytes = sizes_of(self._task.texts(document.content, stream))
            share.append(document._replace(characters=size, text_bytes=text_bytes))
        return share

    def _new(self, output: str) -> _Shards:
        spec, start = self._job.parameters.record_spec(self._task.masked), f"{output}/"
        start += self._unit.name
        files = {"": (f"{start}.array_record", spec)}
        for side, dtype in self._task.side.items():
            files[side] = f"{start}.{side}.array_record", spec.of_side(dtype)
        writers = {}
        for side, (name, own) in files.items():
            path = self._unfinished.enter_context(self._store.create(name))
            writers[side] = name, self._unfinished.enter_context(ShardWriter(path, own))
        return _Shards(writers, self._unknown_id)

    def finish(self) -> dict[str, OutputReceipt]:
        """Publish the shards and describe them, by output."""
        receipts = {name: self._open[name].finish() for name in sorted(self._open)}
        self._unfinished.close()
        return receipts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._unfinished.__exit__(*error)


class _Shards:
    """The shards of one source in the making, and where its documents came from."""

    def __init__(
        self, writers: Mapping[str, tuple[str, ShardWriter]], unknown_id: int | None
    ) -> None:
        self._writers, self._unknown_id = writers, unknown_id
        self._columns: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
        self._counts: Counter[str] = Counter()

    def add(
        self,
        documents: Sequence[Document],
        encoded: Sequence[Encoded],
        hashes: Mapping[str, Hashes],
    ) -> None:
        masks = [one.mask for one in encoded if one.mask is not None]
        for side, (_, writer) in self._writers.items():
            if side:
                writer.extend([one.side[side] for one in encoded])
            else:
                writer.extend([one.tokens for one in encoded], masks or None)
        self._columns["part"].append(np.array([one.part for one in documents], np.uint32))
        self._columns["record"].append(np.array([one.record for one in documents], np.uint32))
        if kept := b"".join([one.kept for one in documents]):
            self._columns["kept"].append(np.frombuffer(kept, np.uint8))
        for name, column in hashes.items():
            self._columns[name].append(column.ravel())
        count_documents(self._counts, documents)
        count_tokens(self._counts, encoded, self._unknown_id)

    def finish(self) -> OutputReceipt:
        shards, pages = {}, {}
        for side, (name, writer) in self._writers.items():
            writer.close()
            shards[side], pages[side] = writer.entry(name), writer.pages
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        columns["length"] = self._writers[""][1].lengths
        return OutputReceipt(shards, pages, columns, self._counts)
