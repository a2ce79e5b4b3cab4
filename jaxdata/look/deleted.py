"""The account of deleted documents: which steps of which runs trained them.

From the states of the runs alone: the rows of a run follow from its dataset, config and state, and
the lengths of deleted documents are kept.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.config import Config, load, load_config, open_data
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.look.states import read_state
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


def deleted_documents(settings: Config) -> list[Trained]:
    """The deleted documents of the sources of a config's split."""
    dataset = open_data(settings).with_views({})
    found = []
    for source in dataset.splits.get(settings.split, []):
        docs = dataset.source(settings.split, source).base
        if isinstance(docs, ConvertedDocuments):
            found += [Trained(source, number) for number in docs.index.deleted.tolist()]
    return found


def trained_rows(settings: Config, run: str) -> Iterator[Trained]:
    """The rows of a run, up to its state, that held documents which were deleted since.

    Args:
        settings: the config of the run; the generations of its sources are those of the state.
        run: a loader's state, a checkpoint or a run's folder.

    Raises:
        InputError: there is no state, or not of a run of this config.
    """
    state = read_state(run)
    dataset = open_data(settings)
    data = state.get("run", {}).get("data", {})
    generations = dict(_generations(dataset, settings.split, data, run))
    loader = load(load_config(settings, {"generations": generations}))
    loader.set_state(state)
    tracer = Tracer(loader, None)
    for source in tracer.names:
        docs = tracer.documents(source)
        for document in [] if docs.blanked is None else docs.blanked.tolist():
            for row in tracer.rows_of(source, document, loader.next_row):
                step, _ = loader.step_of_row(row) or (None, None)
                if step is not None:
                    yield Trained(source, document, run, step, row)


def _generations(
    dataset: Dataset, split: str, data: Mapping[str, str], run: str
) -> Iterator[tuple[str, int]]:
    """The generation of each source that a state names by its fingerprint."""
    for source, fingerprint in data.items():
        for generation in count():
            try:
                docs = dataset.source(split, source, generation=generation)
            except DatasetError:  # a view of another one
                continue
            except InputError as error:
                if generation == 0:  # another tool's data has none
                    break
                raise InputError(
                    f"{run}: its state is of data {source}: {fingerprint}, which no generation of "
                    f"{split}/{source} in {dataset.url} is: give the config of that run"
                ) from error
            if docs.fingerprint.startswith(str(fingerprint)):
                yield source, generation
                break


def account(settings: Config, runs: Sequence[str]) -> Iterator[Any]:
    """The lines of CSV: a heading, the rows that runs trained, documents that none has trained."""
    yield ",".join(Trained._fields)
    seen: set[tuple[str, int]] = set()
    for trained in _of_all(settings, runs):
        seen.add(trained[:2])
        yield trained
    for document in deleted_documents(settings):
        if document[:2] not in seen:
            yield document


def _of_all(settings: Config, runs: Iterable[str]) -> Iterator[Trained]:
    for run in runs:
        yield from trained_rows(settings, run)
