"""The shards of one unit: one for each source it feeds, opened when a document comes for it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

import numpy as np

from jaxdata.base.hashing import Hashes
from jaxdata.converter.document_batch import Documents
from jaxdata.converter.hashes import DocumentHashes
from jaxdata.converter.inputs.files import Unit
from jaxdata.converter.job import Job
from jaxdata.converter.receipts import OutputReceipt, SideReceipt
from jaxdata.converter.statistics import count_documents, count_tokens, sizes_of
from jaxdata.converter.tasks.base import Encoded, Task
from jaxdata.dataset.records import RecordSpec
from jaxdata.dataset.shards import ShardWriter
from jaxdata.storage import Store


class Outputs:
    """Write documents to the shards of a unit; they are published when `finish` ends well."""

    def __init__(
        self,
        store: Store,
        job: Job,
        task: Task,
        unit: Unit,
        unknown_id: int | None,
        hashes: DocumentHashes | None = None,
    ) -> None:
        self._store, self._job, self._task, self._unit = store, job, task, unit
        self._hashes = hashes
        self._count = 0
        self._spec = job.parameters.record_spec(task.masked)
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
                if self._hashes and not place:  # of all streams, beside the first
                    streams = [encoded[number] for number in chosen]
                    self._open[output].add_hashes(self._hashes(mine.content, streams))

    def _by_split(self, documents: Documents) -> dict[str, Sequence[int]]:
        """Numbers of the documents that go to each split."""
        if not documents:
            return {}
        if len(self._job.splits) == 1:
            return {self._job.split: range(len(documents))}
        chosen: dict[str, list[int]] = {}
        for number, split in enumerate(documents.split):
            chosen.setdefault(self._split_by_position(number) or split, []).append(number)
        self._count += len(documents)
        return {**chosen}

    def _split_by_position(self, number: int) -> str:
        """The split of a document by its number, where splits are contiguous; else ""."""
        ends = self._unit.split_ends
        return self._job.splits[bisect_right(ends, self._count + number)] if ends else ""

    def _share(self, documents: Documents, stream: str) -> Documents:
        """Documents with the sizes of the texts that a stream gets."""
        contents = documents.content
        sizes = [sizes_of(self._task.texts(content, stream)) for content in contents]
        characters, text_bytes = map(list, zip(*sizes, strict=True))
        return replace(documents, characters=characters, text_bytes=text_bytes)

    def _new(self, output: str) -> _Shard:
        shard = self._writer(f"{output}/{self._unit.name}.array_record", self._spec)
        sides = {
            name: self._writer(
                f"{output}/{self._unit.name}.{name}.array_record", self._spec.of_side(dtype)
            )
            for name, dtype in self._task.side.items()
        }
        return _Shard(*shard, sides, self._unknown_id)

    def _writer(self, name: str, spec: RecordSpec) -> tuple[str, ShardWriter]:
        path = self._unfinished.enter_context(self._store.create(name))
        return name, self._unfinished.enter_context(ShardWriter(path, spec))

    def finish(self) -> dict[str, OutputReceipt]:
        """Publish the shards and describe them, by output."""
        receipts = {name: self._open[name].finish() for name in sorted(self._open)}
        self._unfinished.close()
        return receipts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._unfinished.__exit__(*error)


class _Shard:
    """A shard in the making, and where its documents came from."""

    def __init__(
        self,
        name: str,
        writer: ShardWriter,
        sides: Mapping[str, tuple[str, ShardWriter]],
        unknown_id: int | None,
    ) -> None:
        self._name, self._writer, self._unknown_id = name, writer, unknown_id
        self._sides = sides
        self._parts: list[int] = []
        self._records: list[int] = []
        self._kept: list[bytes] = []
        self._hashes: defaultdict[str, list[Hashes]] = defaultdict(list)
        self._counts: Counter[str] = Counter()

    def add_hashes(self, hashes: Mapping[str, Hashes]) -> None:
        """Append the hashes of documents, by column."""
        for name, column in hashes.items():
            self._hashes[name].append(column)

    def add(self, documents: Documents, encoded: Sequence[Encoded]) -> None:
        tokens = [one.tokens for one in encoded]
        masks = [one.mask for one in encoded if one.mask is not None]
        self._writer.extend(tokens, masks or None)
        for side, (_, writer) in self._sides.items():
            writer.extend([one.side[side] for one in encoded])
        self._parts += documents.part
        self._records += documents.record
        self._kept += documents.kept
        count_documents(self._counts, documents)
        count_tokens(self._counts, encoded, self._unknown_id)

    def finish(self) -> OutputReceipt:
        self._writer.close()
        sides = {}
        for side, (name, writer) in self._sides.items():
            writer.close()
            sides[side] = SideReceipt(writer.entry(name), writer.pages)
        return OutputReceipt(
            shard=self._writer.entry(self._name),
            lengths=self._writer.lengths,
            part=np.array(self._parts, np.uint32),
            record=np.array(self._records, np.uint32),
            pages=self._writer.pages,
            kept=b"".join(self._kept),
            counts=self._counts,
            sides=sides,
            hashes={name: np.concatenate(parts).ravel() for name, parts in self._hashes.items()},
        )
