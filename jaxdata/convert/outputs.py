"""The shards of one unit: one for each source it feeds, opened when a document comes for it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from jaxdata.convert.batches import Documents
from jaxdata.convert.job import Job
from jaxdata.convert.parts import Unit
from jaxdata.convert.receipts import OutputReceipt
from jaxdata.convert.records import utf8_bytes
from jaxdata.convert.statistics import count_documents, count_tokens
from jaxdata.convert.tasks import Encoded, Task
from jaxdata.format.shards import ShardWriter
from jaxdata.format.storage import Store

__all__ = ["Outputs"]


class Outputs:
    """Write documents to the shards of a unit; they are published when `finish` ends well."""

    def __init__(
        self, store: Store, job: Job, task: Task, unit: Unit, unknown_id: int | None
    ) -> None:
        self._store, self._job, self._task, self._unit = store, job, task, unit
        self._count = 0
        self._layout = job.parameters.layout(task.masked)
        self._unknown_id = unknown_id
        self._open: dict[str, _Shard] = {}
        self._unfinished = ExitStack()

    def add(self, documents: Documents, encoded: Sequence[tuple[Encoded, ...]]) -> None:
        """Append documents in order, each to one source for each stream."""
        for split, chosen in self._by_split(documents).items():
            mine = documents.take(chosen)
            for place, stream in enumerate(self._task.streams):
                share = self._share(mine, stream) if len(self._task.streams) > 1 else mine
                output = self._job.output(split, stream)
                if output not in self._open:
                    self._open[output] = self._new(output)
                self._open[output].add(share, [encoded[number][place] for number in chosen])

    def _by_split(self, documents: Documents) -> dict[str, Sequence[int]]:
        """Numbers of the documents that go to each split."""
        if not documents:
            return {}
        if len(self._job.splits) == 1:
            return {self._job.split: range(len(documents))}
        chosen: dict[str, list[int]] = {}
        for number, split in enumerate(documents.split):
            chosen.setdefault(self._dealt(number) or split, []).append(number)
        self._count += len(documents)
        return {**chosen}

    def _dealt(self, number: int) -> str:
        """The split of a document by its number, where splits are contiguous; else ""."""
        deal = self._unit.deal
        return self._job.splits[bisect_right(deal, self._count + number)] if deal else ""

    def _share(self, documents: Documents, stream: str) -> Documents:
        """Documents with the sizes of the texts that a stream gets."""
        texts = [self._task.texts(content, stream) for content in documents.content]
        return replace(
            documents,
            characters=[sum(map(len, some)) for some in texts],
            text_bytes=[sum(map(utf8_bytes, some)) for some in texts],
        )

    def _new(self, output: str) -> _Shard:
        name = f"{output}/{self._unit.name}.array_record"
        path = self._unfinished.enter_context(self._store.create(name))
        writer = self._unfinished.enter_context(ShardWriter(path, self._layout))
        return _Shard(name, writer, self._unknown_id)

    def finish(self) -> dict[str, OutputReceipt]:
        """Publish the shards and describe them, by output."""
        receipts = {name: self._open[name].finish() for name in sorted(self._open)}
        self._unfinished.close()
        return receipts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._unfinished.__exit__(kind, error, trace)


class _Shard:
    """A shard in the making, and where its documents came from."""

    def __init__(self, name: str, writer: ShardWriter, unknown_id: int | None) -> None:
        self._name, self._writer, self._unknown_id = name, writer, unknown_id
        self._parts: list[int] = []
        self._records: list[int] = []
        self._kept: list[bytes] = []
        self._counts: Counter[str] = Counter()

    def add(self, documents: Documents, encoded: Sequence[Encoded]) -> None:
        tokens = [one.tokens for one in encoded]
        masks = [one.mask for one in encoded if one.mask is not None]
        self._writer.extend(tokens, masks or None)
        self._parts += documents.part
        self._records += documents.record
        self._kept += documents.kept
        count_documents(self._counts, documents)
        count_tokens(self._counts, encoded, self._unknown_id)

    def finish(self) -> OutputReceipt:
        self._writer.close()
        return OutputReceipt(
            shard=self._writer.entry(self._name),
            lengths=self._writer.lengths,
            part=np.array(self._parts, np.uint32),
            record=np.array(self._records, np.uint32),
            kept=b"".join(self._kept),
            counts=self._counts,
        )
