"""The account of deleted documents: which steps of which runs trained them.

From the states of the runs alone: the rows of a run follow from its dataset, config and state, and
the lengths of deleted documents are kept.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
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


def deleted_documents(config: Config, runs: Sequence[str]) -> Iterator[Trained]:
    """The deleted documents of the data of a config: the rows of runs that held them.

    Then those that none of these runs trained.

    Args:
        config: of all runs.
        runs: where their states are (see `read_state`); empty for the run of the config itself.
    """
    dataset, trained, own = open_data(config), set[tuple[str, int]](), config.train.output
    for run in runs or ([own] if Path(own).is_dir() else []):
        state = read_state(run)
        data = (state.get("run") or {}).get("data") or {}
        known = {n: _generation(dataset, config.split, n, each, run) for n, each in data.items()}
        generations = {name: each for name, each in known.items() if each is not None}
        loader = load(load_config(config, {"generations": generations}))
        loader.set_state(state)
        tracer = Tracer(loader, None)
        for source in tracer.names:
            gone = tracer.documents(source).blanked
            for document in [] if gone is None else gone.tolist():
                for row in tracer.rows_of(source, document, loader.next_row):
                    if (place := loader.step_of_row(row)) is not None:
                        trained.add((source, document))
                        yield Trained(source, document, run, place[0], row)
    for source in dataset.splits.get(config.split, []):
        docs = dataset.with_views({}).source(config.split, source).base
        deleted = docs.index.deleted.tolist() if isinstance(docs, ConvertedDocuments) else []
        yield from (Trained(source, each) for each in deleted if (source, each) not in trained)


def _generation(
    dataset: Dataset, split: str, source: str, fingerprint: Any, run: str
) -> int | None:
    """The generation of a source that a state is of; None of another tool's data, which has one."""
    for generation in count():
        try:
            docs = dataset.source(split, source, generation=generation)
        except DatasetError:  # a view of another one
            continue
        except InputError as error:
            if generation == 0:
                return None
            raise InputError(
                f"{run}: its state is of data {source}: {fingerprint}, which no generation of "
                f"{split}/{source} in {dataset.url} is: give the config of that run"
            ) from error
        if docs.fingerprint.startswith(str(fingerprint)):
            return generation
    return None
