"""The account of deleted documents: which steps of which runs trained them.

From the states of the runs alone: the rows of a run follow from its dataset, config and state, and
the lengths of deleted documents are kept.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.feed.loader import Loader
from jaxdata.look.trace import Tracer


class Trained(NamedTuple):
    """A row that held a deleted document; of a document that no run trained, only what it is."""

    source: str
    document: int
    run: str = ""
    step: int | None = None
    """from 0"""
    row: int | None = None
    """of the run"""

    def __str__(self) -> str:
        """A line of CSV, without its end."""
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(self)
        return text.getvalue()


def deleted_documents(dataset: Dataset, split: str) -> Iterator[Trained]:
    """The deleted documents of the sources of a split."""
    for source in dataset.splits.get(split, []):
        docs = dataset.with_views({}).source(split, source).base
        if isinstance(docs, ConvertedDocuments):
            yield from (Trained(source, number) for number in docs.index.deleted.tolist())


def trained_rows(loader: Loader[Any], run: str) -> Iterator[Trained]:
    """The rows up to a loader's state that held documents which were deleted since.

    Args:
        loader: set to the state of a run, and reading the generations of that.
        run: what the account calls it.
    """
    tracer = Tracer(loader, None)
    for source in tracer.names:
        docs = tracer.documents(source)
        for document in [] if docs.blanked is None else docs.blanked.tolist():
            for row in tracer.rows_of(source, document, loader.next_row):
                step, _ = loader.step_of_row(row) or (None, None)
                if step is not None:
                    yield Trained(source, document, run, step, row)


def generations_of(
    dataset: Dataset, split: str, state: Mapping[str, Any], run: str
) -> dict[str, int]:
    """The generation of each source that a state is of, by its fingerprint.

    Raises:
        InputError: the state is of other data.
    """
    facts = state.get("run")
    data = facts.get("data") if isinstance(facts, dict) else None
    named = data.items() if isinstance(data, dict) else ()
    found = {name: _generation(dataset, split, name, each, run) for name, each in named}
    return {name: generation for name, generation in found.items() if generation is not None}


def _generation(
    dataset: Dataset, split: str, source: str, fingerprint: Any, run: str
) -> int | None:
    for generation in count():
        try:
            docs = dataset.source(split, source, generation=generation)
        except DatasetError:  # a view of another one
            continue
        except InputError as error:
            if generation == 0:  # another tool's data has none
                return None
            raise InputError(
                f"{run}: its state is of data {source}: {fingerprint}, which no generation of "
                f"{split}/{source} in {dataset.url} is: give the config of that run"
            ) from error
        if docs.fingerprint.startswith(str(fingerprint)):
            return generation
    return None
