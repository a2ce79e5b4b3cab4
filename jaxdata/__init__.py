"""jaxdata: from raw text to packed, mixed and elastic training batches for language models.

Raw text becomes an indexed dataset once; after that, row *i* of training is a pure function of
(dataset, config, *i*). Public names resolve on first use: importing the package is instant and
imports neither grain nor jax.

The house, from the ground up; a room imports only from rooms below it (tests/test_imports.py):

    errors installing wording notebook version      the ground: what is said,
    seeds ragged scalars facts settings             what is computed with,
    processes channel lifeline background progress  and what runs beside
    format | hashing                                files: shards, index, stores | copies have these
    tokenizers                                      text to token ids and back
    documents                                       open datasets, read ranges of tokens
    converter | rows | views                        text to dataset | a table of rows | kept lists
    packing | dedup                                 which documents share a row | which are copies
    mixing | preferences                            which row is next | pairs of answers
    map_datasets, megatron                          pack and mix for grain; Megatron-Core's order
    feed                                            rows to batches: loader, state, layouts
    materializer streaming exporter compat          rows and text for other programs
    train look testing, report, config, demo torch  what people run and see
    clients, cli                                    ways into other people's trainers; the commands
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxdata import errors
from jaxdata.lazy import resolver
from jaxdata.version import VERSION

if TYPE_CHECKING:  # for type checkers: the names that __getattr__ resolves
    from jaxdata.config import load as load
    from jaxdata.dedup.api import deduplicate as deduplicate
    from jaxdata.dedup.one_pass import convert as convert
    from jaxdata.documents.converted_dataset import open_dataset as open_dataset
    from jaxdata.documents.in_memory import ArrayDocuments as ArrayDocuments
    from jaxdata.errors import ConfigError as ConfigError
    from jaxdata.errors import DatasetError as DatasetError
    from jaxdata.errors import InputError as InputError
    from jaxdata.errors import JaxdataError as JaxdataError
    from jaxdata.errors import MissingExtra as MissingExtra
    from jaxdata.errors import SourceExhausted as SourceExhausted
    from jaxdata.errors import StateMismatch as StateMismatch
    from jaxdata.errors import WorkerDied as WorkerDied
    from jaxdata.exporter.api import export as export
    from jaxdata.feed.checkpoint import LoaderRestore as LoaderRestore
    from jaxdata.feed.checkpoint import LoaderSave as LoaderSave
    from jaxdata.feed.loader import Loader as Loader
    from jaxdata.map_datasets import evaluation_rows as evaluation_rows
    from jaxdata.map_datasets import mix as mix
    from jaxdata.map_datasets import pack as pack
    from jaxdata.materializer.api import materialize as materialize
    from jaxdata.materializer.row_source import open_rows as open_rows
    from jaxdata.mixing.phases import Phase as Phase
    from jaxdata.preferences.pairs import pairs as pairs
    from jaxdata.report.shown_batch import show_batch as show_batch
    from jaxdata.streaming.api import stream_text as stream_text
    from jaxdata.views.selecting import select as select

_PUBLIC = {
    "ArrayDocuments": "jaxdata.documents.in_memory",
    "Loader": "jaxdata.feed.loader",
    "LoaderRestore": "jaxdata.feed.checkpoint",
    "LoaderSave": "jaxdata.feed.checkpoint",
    "Phase": "jaxdata.mixing.phases",
    "convert": "jaxdata.dedup.one_pass",
    "deduplicate": "jaxdata.dedup.api",
    "evaluation_rows": "jaxdata.map_datasets",
    "export": "jaxdata.exporter.api",
    "load": "jaxdata.config",
    "materialize": "jaxdata.materializer.api",
    "mix": "jaxdata.map_datasets",
    "open_dataset": "jaxdata.documents.converted_dataset",
    "open_rows": "jaxdata.materializer.row_source",
    "pack": "jaxdata.map_datasets",
    "pairs": "jaxdata.preferences.pairs",
    "select": "jaxdata.views.selecting",
    "show_batch": "jaxdata.report.shown_batch",
    "stream_text": "jaxdata.streaming.api",
    **dict.fromkeys(errors.__all__, "jaxdata.errors"),
}

_ROOMS = ("errors", "megatron", "testing", "tokenizers", "torch")
"""modules with public names of their own; all modules resolve on first use"""

__all__ = sorted(_PUBLIC)
__version__ = VERSION

__getattr__ = resolver(__name__, _PUBLIC)


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, *_ROOMS, "__version__"})
